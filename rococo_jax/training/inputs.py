"""What training reads, from the config: the data, the altered captions of the SC loss, hard positives."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.hard_positives import AddHardPositives, read_hard_positives
from rococo_jax.data.pair_source import PairSource
from rococo_jax.data.pairs import open_pairs
from rococo_jax.data.training_input import TrainingInput, make_training_input
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.influence_table import read_influence_table, write_influence_table
from rococo_jax.perturb.text.lexicon import open_lexicon
from rococo_jax.perturb.text.replacement import AlterCaptions, CaptionAlterer, vocabulary_words
from rococo_jax.progress import progress
from rococo_jax.runtime import barrier, cache_folder
from rococo_jax.training.feature_input import FeatureInput
from rococo_jax.training.features import POOL_SEED, Features, make_features

# Captions are short; a longer one is cut as the tower would cut it.
_MOST_TOKENS = 64
INFLUENCE = "influence.jsonl"


def open_source(config: ConfigDict) -> PairSource:
    """The pairs that `data.images` and `data.captions` name.

    Raises:
        InputError: nothing is named, or what is named cannot be read.
    """
    if not config.data.images:
        raise InputError("config", "data.images", "''", "folders of images, shards, tfds:NAME, or scenes:COUNT")
    return open_pairs(config.data.images, config.data.captions, allow_missing=True)


def make_input(
    config: ConfigDict,
    encoder: Encoder,
    source: PairSource,
    folder: Path,
    keep: Callable[[ConfigDict, Callable[[], Features]], Features] = lambda config, make: make(),
) -> TrainingInput | FeatureInput:
    """The batches of this process, from step 0.

    Args:
        folder: where the influence of the captions' words is kept, where the config names no table.
        keep: makes the features of frozen towers, or has them from another run.
    """

    def altering() -> tuple[list[CaptionAlterer], dict[str, np.ndarray] | None]:
        alterers = make_alterers(config, encoder) if config.losses.sc.weight else []
        return alterers, _influence(config, encoder, source, folder) if alterers else None

    shard = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    augmentation = _augmentation(config)
    if config.data.cached_features:
        cache = EmbeddingCache(cache_folder() / "embeddings")
        features = keep(config, lambda: make_features(encoder, source, config, cache, augmentation, *altering()))
        data = config.data
        drawn = {"altered": config.losses.sc.count, "squash": data.squash, "noise": data.feature_noise}
        return FeatureInput(features, batch_size=config.batch_size, seed=config.seed, **drawn, **shard)
    alterers, influence = altering()
    transforms: list[Any] = []
    if alterers:
        transforms.append(AlterCaptions(alterers, influence, config.losses.sc.count))
    if config.losses.hard_positives.weight:
        transforms.append(_hard_positives(config))
    return make_training_input(
        source,
        preprocessing=encoder.preprocessing,
        tokenizer=encoder.tokenizer,
        batch_size=config.batch_size,
        seed=config.seed,
        text_length=text_length(config, encoder),
        captions_per_image=config.data.captions_per_image,
        extra_text=transforms,
        augmentation=augmentation,
        on_broken_image=config.data.on_broken_image,
        workers=config.data.workers,
        prefetch=config.data.prefetch,
        **shard,
    )


def _augmentation(config: ConfigDict) -> Augmentation:
    vc = config.losses.vc
    return Augmentation(
        (config.data.crop, 1.0) if config.data.crop else None,
        flip=config.data.flip,
        squash=config.data.squash,
        also_squashed=bool(vc.weight) and "squashed" in vc.views.split(","),
    )


def text_length(config: ConfigDict, encoder: Encoder) -> int:
    """Tokens that every text is padded to."""
    fixed = encoder.tokenizer.spec.fixed_length
    return fixed or config.data.text_length or min(encoder.spec.text.context_length, _MOST_TOKENS)


def make_alterers(config: ConfigDict, encoder: Encoder) -> list[CaptionAlterer]:
    """One for each of `losses.sc.variants`.

    Raises:
        InputError: an unknown variant, or a lexicon that cannot be read.
    """
    lexicon = open_lexicon(config.losses.sc.lexicon)
    variants = config.losses.sc.variants.split(",")
    # A pool of features is shared by runs of all seeds.
    seed = POOL_SEED if config.data.cached_features else config.seed
    common = {"lexicon": lexicon, "seed": seed, "select": config.losses.sc.select}
    common["fit_article"] = config.losses.sc.fit_article
    words = vocabulary_words(encoder.tokenizer) if "rand_voca" in variants else ()
    return [CaptionAlterer(variant, vocabulary=words, **common) for variant in variants]


def _influence(config: ConfigDict, encoder: Encoder, source: PairSource, folder: Path) -> dict[str, np.ndarray] | None:
    """Caption -> influence of its words. Made once with the starting model where the config names no table."""
    if config.losses.sc.select == "random":
        return None
    path = Path(config.losses.sc.influence or folder / INFLUENCE)
    if not config.losses.sc.influence and not path.exists() and jax.process_index() == 0:
        images = _captioned(source)
        with progress("influence", sum(len(image.captions) for image in images), "captions") as advance:
            lexicon = open_lexicon(config.losses.sc.lexicon)
            write_influence_table(encoder, images, path, lexicon=lexicon, on_progress=advance)
    barrier("influence")
    return read_influence_table(path)


def _captioned(source: PairSource) -> Sequence[CaptionedImage]:
    samples = (source[index] for index in range(len(source)))
    return [CaptionedImage(sample.name, tuple(sample.captions)) for sample in samples]


def _hard_positives(config: ConfigDict) -> AddHardPositives:
    hard = config.losses.hard_positives
    if not hard.negatives:
        wanted = "a file of captions with hard positives and hard negatives, or of the negatives beside `positives`"
        raise InputError("config", "losses.hard_positives.negatives", "''", wanted)
    return AddHardPositives(read_hard_positives(hard.negatives, hard.positives or None), hard.count)
