"""Images, captions and models of the experiments on single words and ties, as unit vectors.

Drawn scenes of the split `test`, whose compositions occur in no training scene, and the models of the demo. A world has
queries (images with captions) and further images that no model was trained on, for comparison. Intervals resample
images, with the models fixed.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.encoders.loading import load_encoder
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.perturb.text.lexicon import Lexicon

SCENES, FURTHER_SCENES, SEED = 300, 700, 64
DEMO_MODELS = {"plain": ["demo:plain"], "sc-vc": ["demo:sc-vc"], "grounded": ["demo:grounded"]}
DRAWS = 4000


@dataclasses.dataclass(frozen=True)
class World:
    """Images with captions, and the models that are tested on them.

    Attributes:
        items: the queries.
        files: files of the queries, then of the further images.
        lexicon: nouns that replace each other.
        influence_model: model by whose text tower the influence of words is computed.
        models: sources of the models of each arm, one for each training seed; the first arm is the reference.
    """

    items: Sequence[CaptionedImage]
    files: Sequence[Path]
    lexicon: Lexicon
    influence_model: str
    models: dict[str, list[str]]

    @cached_property
    def captions(self) -> list[str]:
        return [caption for item in self.items for caption in item.captions]

    @cached_property
    def image_of_caption(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.items)), [len(item.captions) for item in self.items])


@dataclasses.dataclass(frozen=True)
class EmbeddedWorld:
    """A model with the embeddings of a world's images."""

    model: LoadedModel
    images: np.ndarray
    cache: EmbeddingCache

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return embed_texts(self.model, texts, self.cache)


def embed(world: World, source: str, cache: EmbeddingCache, images: int | None = None) -> EmbeddedWorld:
    """Load a model and embed the first images of a world, or all."""
    model = load_encoder(source)
    return EmbeddedWorld(model, embed_images(model, world.files[:images], cache), cache)


def scenes() -> World:
    """Return drawn scenes with the models of the demo."""
    drawn = [make_scene("test", SEED, index) for index in range(SCENES + FURTHER_SCENES)]
    folder = Path(tempfile.gettempdir()) / f"rococo-scenes-{SEED}"
    folder.mkdir(exist_ok=True)
    for scene in drawn:
        if not (folder / f"{scene.name}.png").exists():
            draw_scene(scene, 256).save(folder / f"{scene.name}.png", compress_level=1)
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in drawn[:SCENES]]
    files = [folder / f"{scene.name}.png" for scene in drawn]
    return World(items, files, demo_lexicon(), "demo:plain", DEMO_MODELS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all of these experiments."""
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="folder of the embedding cache (default: none)")


def mean_over_images(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Return 100 * the mean of values with its 95 % percentile interval over images.

    Args:
        sums: sum of the values of each image.
        counts: number of values of each image.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=DRAWS)
    means = (draws @ sums) / (draws @ counts)
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(sums.sum() / counts.sum()), 100 * float(low), 100 * float(high)


def cell(sums: np.ndarray, counts: np.ndarray, sign: str = "") -> str:
    """Return a mean with its interval for a table."""
    value, low, high = mean_over_images(sums, counts)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
