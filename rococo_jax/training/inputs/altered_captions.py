"""Altered captions as negatives of images, for the SC loss: made on the host, step by step or as a pool of features.

The word that is replaced is chosen by its influence on the caption's embedding. A table of influences is computed once
with the starting model and kept in the working folder, where the config names none.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.embedding import embed_texts
from rococo_jax.errors import InputError
from rococo_jax.losses.altered import ALTERED
from rococo_jax.perturb.text.influence_table import read_influence_table, write_influence_table
from rococo_jax.perturb.text.lexicon import open_lexicon
from rococo_jax.perturb.text.replacement import AlterCaptions, CaptionAlterer, vocabulary_words
from rococo_jax.progress import progress
from rococo_jax.runtime import barrier
from rococo_jax.training.inputs.loss_input import POOL_SEED, LossInput, Making, Pool, PoolMaterial, register_input

INFLUENCE = "influence.jsonl"
Influence = Mapping[str, np.ndarray]


class AlteredCaptions(LossInput):
    """`losses.sc.count` altered captions a pair."""

    fields = (ALTERED,)
    sample_texts = (("altered_captions", ALTERED),)
    pooled = True

    def items(self, config: ConfigDict) -> dict[str, tuple[int, ...]]:
        return {ALTERED.name: (config.losses.sc.count,)}

    def check(self, source: object, config: ConfigDict) -> None:
        count, pool = config.losses.sc.count, config.data.feature_pool.captions
        if config.data.cached_features and count > pool:
            wanted = "at most config.data.feature_pool.captions"
            raise InputError(source, "config.losses.sc.count", f"{count} of a pool of {pool}", wanted)

    def transform(self, making: Making) -> AlterCaptions:
        alterers = make_alterers(making.config, making.encoder)
        return AlterCaptions(alterers, influence_of_words(making), making.config.losses.sc.count)

    def make_pool(self, making: Making, material: PoolMaterial) -> Pool:
        alterers, influence = make_alterers(making.config, making.encoder), influence_of_words(making)
        size = making.config.data.feature_pool.captions
        texts = [
            _altered(caption, sample.captions, alterers, influence, size)
            for sample in material.samples
            for caption in sample.captions
        ]
        valid = np.array([[text is not None for text in each] for each in texts], bool)
        # The caption itself stands where there is nothing to alter, and does not count.
        flat = [text or caption for each, caption in zip(texts, material.captions, strict=True) for text in each]
        features = embed_texts(making.encoder, flat, material.cache, features=True)
        return Pool(features.reshape(*valid.shape, -1), valid)

    def draw(self, shape: tuple[int, int], config: ConfigDict, random: np.random.Generator) -> Int[np.ndarray, "b k"]:
        return np.argsort(random.random(shape), axis=1)[:, : config.losses.sc.count]


register_input(AlteredCaptions())


def make_alterers(config: ConfigDict, encoder: Encoder) -> list[CaptionAlterer]:
    """One alterer for each of `losses.sc.variants`. Raises InputError for an unknown variant or a broken lexicon."""
    lexicon = open_lexicon(config.losses.sc.lexicon)
    variants = config.losses.sc.variants.split(",")
    seed = POOL_SEED if config.data.cached_features else config.seed
    common = {"lexicon": lexicon, "seed": seed, "select": config.losses.sc.select}
    common["fit_article"] = config.losses.sc.fit_article
    words = vocabulary_words(encoder.tokenizer) if "rand_voca" in variants else ()
    return [CaptionAlterer(variant, vocabulary=words, **common) for variant in variants]


def influence_of_words(making: Making) -> Influence | None:
    """Caption -> influence of its words; None where the word is drawn. Computed once where the config names
    no table.
    """
    sc = making.config.losses.sc
    if sc.select == "random":
        return None
    path = Path(sc.influence or making.folder / INFLUENCE)
    if not sc.influence and not path.exists() and jax.process_index() == 0:
        samples = (making.source[index] for index in range(len(making.source)))
        images = [CaptionedImage(sample.name, tuple(sample.captions)) for sample in samples]
        with progress("influence", sum(len(image.captions) for image in images), "captions") as advance:
            write_influence_table(making.encoder, images, path, lexicon=open_lexicon(sc.lexicon), on_progress=advance)
    barrier("influence")
    return read_influence_table(path)


def _altered(
    caption: str,
    originals: Sequence[str],
    alterers: Sequence[CaptionAlterer],
    influence: Influence | None,
    size: int,
) -> list[str | None]:
    """`size` altered captions, the alterers in turn; None where there is nothing to alter."""
    of_words = None if influence is None else influence[caption]
    texts: list[str | None] = []
    for place in range(size):
        alterer, draw = alterers[place % len(alterers)], place // len(alterers)
        altered = alterer.alter(caption, originals, of_words, count=1, draw=draw)
        texts.append(altered[0].caption if altered else None)
    return texts
