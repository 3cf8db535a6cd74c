"""Training data of the demo's models, and their architecture.

The data is `scenes:20000`: scenes that are drawn once and kept in the cache folder. The models are two small
transformers that average their tokens, with a million parameters together.
"""

import functools
from pathlib import Path

import jax
import numpy as np

from rococo_jax.data.content_hashes import hash_files
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.pictures import image_bytes
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.errors import InputError
from rococo_jax.locks import made_once
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec
from rococo_jax.processes import barrier
from rococo_jax.progress import progress
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_bytes, hash_json

IMAGE_SIZE, DIM, CONTEXT_LENGTH = 96, 96, 48
# Scenes are drawn at twice the stored size, less finely than in the benchmark; the resize removes the difference.
_DRAWING_SIZE, _FINENESS = 192, 2


def demo_preprocessing() -> Preprocessing:
    """Return the preprocessing, which resizes to 96 x 96 pixels."""
    return Preprocessing(exact_size=(IMAGE_SIZE, IMAGE_SIZE), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def demo_spec() -> ModelSpec:
    """Return the towers and heads; the tokenizer decides the size of the vocabulary."""
    vision = VisionSpec(
        image_size=IMAGE_SIZE,
        patch_size=16,
        width=128,
        layers=4,
        heads=4,
        mlp_width=256,
        activation="gelu",
        norm_eps=1e-6,
        class_token=False,
        patch_bias=True,
        norm_before_blocks=False,
        layer_scale=False,
        pooling="mean",
    )
    text = TextSpec(
        vocabulary_size=0,
        context_length=CONTEXT_LENGTH,
        width=96,
        layers=3,
        heads=4,
        mlp_width=192,
        activation="gelu",
        norm_eps=1e-6,
        attention="masked",
        norm_after_blocks=False,
        pooling="mean",
    )
    return ModelSpec(vision, text, HeadSpec("linear", DIM), HeadSpec("linear", DIM))


def training_captions_of(count: int) -> list[str]:
    """Return the captions of the first `count` training scenes without drawing them."""
    return [caption for index in range(count) for caption in captions_of(make_scene("train", 0, index))]


def open_scenes(name: str) -> PairSource:
    """Open `scenes:COUNT`, the first COUNT (2 or more) training scenes. No test scene has one of their compositions.

    They are drawn at first use and kept in the cache folder.

    Raises InputError: COUNT is no such number.
    """
    count = name.removeprefix("scenes:")
    if not count.isdecimal() or int(count) < 2:
        raise InputError("training data", "images", repr(name), "scenes:COUNT, as scenes:20000")
    # Another version of this package or of Pillow may draw other pictures.
    folder = cache_folder() / f"scenes_{_hash_of_drawing()[:16]}_{count}"
    draw = functools.partial(_draw_all, int(count))
    if jax.process_index() == 0:
        made_once(folder, draw)  # the other processes then find them
    barrier("scenes")
    return ScenePairs(int(count), made_once(folder, draw))


class ScenePairs(PairSource):
    """Scenes of a folder of `open_scenes`, each as the bytes of a small PNG with five captions."""

    def __init__(self, count: int, folder: Path):
        self.count, self.folder = count, folder
        self.ends = np.load(folder / "ends.npy")
        self.bytes = np.memmap(folder / "pngs", np.uint8, mode="r")

    def __reduce__(self):
        return ScenePairs, (self.count, self.folder)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> PairSample:
        start = self.ends[index - 1] if index else 0
        png = self.bytes[start : self.ends[index]].tobytes()
        scene = make_scene("train", 0, index)
        return PairSample(png, scene.name, tuple(captions_of(scene)))

    def hash(self) -> str:
        """Return the hash of the pictures and their captions."""
        captions = training_captions_of(self.count)
        return hash_json(
            {"pictures": hash_files([self.folder / "pngs", self.folder / "ends.npy"]), "captions": captions}
        )


def _draw_all(count: int, folder: Path) -> None:
    ends = np.zeros(count, np.int64)
    with progress("drawing", count, "scenes") as advance, (folder / "pngs").open("wb") as file:
        for index in range(count):
            file.write(_png_of(index))
            ends[index] = file.tell()
            advance(1)
    np.save(folder / "ends.npy", ends)


def _hash_of_drawing() -> str:
    """Return the hash of some pictures, which represents the way of drawing them."""
    return hash_bytes(*map(_png_of, range(8)))


def _png_of(index: int) -> bytes:
    picture = draw_scene(make_scene("train", 0, index), size=_DRAWING_SIZE, fineness=_FINENESS)
    return image_bytes(demo_preprocessing().resize(picture), "PNG", compress_level=3)
