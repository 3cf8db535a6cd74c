"""Altered captions as negatives of images, for the SC loss: made on the host, for each step or as a pool of features.

The word to replace is chosen by its influence on the embedding of the caption. If the config names no table of
influences, it is computed once with the starting model and stored in the working directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.pair_source import PairSource
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError
from rococo_jax.losses.contrastive import ALTERED
from rococo_jax.perturb.text.influence_table import InfluenceTable, write_influence_table
from rococo_jax.perturb.text.kinds import KINDS, KindAlterer
from rococo_jax.perturb.text.lexicon import open_lexicon
from rococo_jax.perturb.text.replacement import (
    AlterCaptions,
    Alterer,
    CaptionAlterer,
    influence_of_caption,
    vocabulary_words,
)
from rococo_jax.processes import barrier, broadcast_from_process_0
from rococo_jax.progress import progress
from rococo_jax.storage import hash_file, read_json_object, write_json
from rococo_jax.training.config_needs import cached_sides
from rococo_jax.training.inputs.field_maker import (
    POOL_SEED,
    FieldContext,
    FieldMaker,
    Pool,
    PoolSources,
    check_count,
    differ_in_tokens,
)

INFLUENCE, _INFLUENCE_OF = "influence.jsonl", "influence_of.json"
Influence = Mapping[str, np.ndarray] | InfluenceTable


class AlteredCaptions(FieldMaker):
    """`losses.sc.count` altered captions per pair."""

    fields = (ALTERED,)
    sample_texts = (("altered_captions", ALTERED),)
    pooled = True

    def shapes(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {ALTERED.name: (config.losses.sc.count,)}

    def check(self, source: object, config: ConfigDict) -> None:
        check_count(source, config, "sc")
        sc = config.losses.sc
        if config.init.spec and chooses_by_influence(sc) and not sc.influence:
            wanted = "'random' with config.init.spec, or a table in config.losses.sc.influence: the influence of words"
            wanted += " on the embeddings of a model with random parameters has no meaning"
            raise InputError(source, "config.losses.sc.select", repr(sc.select), wanted)

    def file_hashes(self, context: FieldContext) -> dict[str, str]:
        sc = context.config.losses.sc
        table = {"influence": hash_file(_table_path(context))} if chooses_by_influence(sc) else {}
        return {"lexicon": open_lexicon(sc.lexicon).hash(), **table}

    def needs_encoder(self, config: ConfigDict, folder: Path) -> bool:
        sc = config.losses.sc
        return chooses_by_influence(sc) and not sc.influence and not (folder / INFLUENCE).exists()

    def transform(self, context: FieldContext) -> AlterCaptions:
        alterers = make_alterers(context)
        return AlterCaptions(alterers, influence_of_words(context), context.config.losses.sc.count)

    def make_pools(self, context: FieldContext, sources: PoolSources) -> dict[str, Pool]:
        alterers, influence = make_alterers(context), influence_of_words(context)
        size = context.config.data.feature_pool.captions
        texts = [
            _altered(caption, sample.captions, alterers, influence, size)
            for sample in sources.samples
            for caption in sample.captions
        ]
        # A missing altered caption is replaced by the caption itself, which is not valid as it has the same tokens.
        pairs = zip(texts, sources.captions, strict=True)
        flat_texts = [text or caption for caption_texts, caption in pairs for text in caption_texts]
        valid = differ_in_tokens(context.encoder, sources.captions, flat_texts)
        features = embed_texts(context.encoder, flat_texts, sources.cache, features=True)
        return {ALTERED.name: Pool(features.reshape(*valid.shape, -1), valid)}


def chooses_by_influence(sc: ConfigDict) -> bool:
    """Return whether the influence of words decides which one is replaced. Only nouns are chosen by it."""
    return sc.select != "random" and any(variant not in KINDS for variant in sc.variants.split(","))


def make_alterers(context: FieldContext) -> list[Alterer]:
    """Return an alterer for each of `losses.sc.variants`, which replaces nouns or alters captions in another way.

    Raises InputError: the lexicon cannot be read.
    """
    config, encoder = context.config, context.encoder
    lexicon = open_lexicon(config.losses.sc.lexicon)
    variants = config.losses.sc.variants.split(",")
    seed = POOL_SEED if "text" in cached_sides(config) else config.seed
    common = {"lexicon": lexicon, "seed": seed, "select": config.losses.sc.select}
    common["fit_article"] = config.losses.sc.fit_article
    words = vocabulary_words(encoder.tokenizer) if "rand_voca" in variants else ()
    return [
        KindAlterer(variant, lexicon, seed) if variant in KINDS else CaptionAlterer(variant, vocabulary=words, **common)
        for variant in variants
    ]


def influence_of_words(context: FieldContext) -> Influence | None:
    """Return the influence of the words of each caption, computing it if necessary; None if no word is chosen by it.

    All processes must call it.
    """
    sc = context.config.losses.sc
    if not chooses_by_influence(sc):
        return None
    path = _table_path(context)
    if not sc.influence and not broadcast_from_process_0("influence", lambda: _is_computed(path, context)):
        images = CaptionsOfSource(context.source)
        with progress("influence", sum(len(image.captions) for image in images), "captions") as advance:
            write_influence_table(context.encoder, images, path, lexicon=open_lexicon(sc.lexicon), on_progress=advance)
    barrier("influence")
    # Opening the table builds its index if there is none; process 0 does it for all.
    broadcast_from_process_0("the influence table", lambda: len(InfluenceTable(path)))
    return InfluenceTable(path)


def _table_path(context: FieldContext) -> Path:
    return Path(context.config.losses.sc.influence or context.folder / INFLUENCE)


def _is_computed(path: Path, context: FieldContext) -> bool:
    """Return whether the folder has the influence table of this run; a file beside the table describes it.

    Raises InputError: the table was computed with another model, other captions or another lexicon.
    """
    about, encoder = path.with_name(_INFLUENCE_OF), context.encoder
    expected = {
        "weights": encoder.provenance.get("weights_sha256"),
        "tokenizer": encoder.tokenizer.hash(),
        "captions": context.source.hash(),
        "lexicon": open_lexicon(context.config.losses.sc.lexicon).hash(),
    }
    if not path.exists():
        write_json(about, expected)
        return False
    saved = read_json_object(about, "the description of an influence table") if about.exists() else {}
    for name, value in expected.items():
        if saved.get(name) != value:
            wanted = f"{value}, that of this run; remove the table to have it computed again"
            raise InputError(path, name, f"{saved.get(name)}", wanted)
    return True


class CaptionsOfSource(Sequence[CaptionedImage]):
    """The captions of a source without its images, lazily: captions are read when they are accessed."""

    def __init__(self, source: PairSource):
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> CaptionedImage:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.source.captioned(index)


def _altered(
    caption: str,
    originals: Sequence[str],
    alterers: Sequence[Alterer],
    influence: Influence | None,
    size: int,
) -> list[str | None]:
    """Return `size` altered captions, by the alterers in turn; None for those that cannot be made."""
    word_influence = None if influence is None else influence_of_caption(influence, caption)
    texts: list[str | None] = []
    for place in range(size):
        alterer, draw = alterers[place % len(alterers)], place // len(alterers)
        altered = alterer.alter(caption, originals, word_influence, count=1, draw=draw)
        texts.append(altered[0].caption if altered else None)
    return texts
