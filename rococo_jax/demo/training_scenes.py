"""Drawn scenes as training data: `scenes:20000`, drawn once and kept as shards in the cache folder."""

import io
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.demo.benchmark import map_in_processes
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.runtime import barrier, cache_folder
from rococo_jax.storage import atomic_directory, hash_json

# The demo's tower sees 96 pixels. Half the benchmark's fineness: what is lost is lost again in the resize.
_DRAWN, _KEPT, _FINENESS = 192, 96, 2


def open_scenes(name: str) -> PairSource:
    """Training scenes 0 to COUNT of `scenes:COUNT`; their compositions occur in no test scene.

    Raises:
        InputError: no number, or fewer than two.
    """
    count = name.removeprefix("scenes:")
    if not count.isdecimal() or int(count) < 2:
        raise InputError("config", "data.images", repr(name), "scenes:COUNT, as scenes:20000")
    if jax.process_index() == 0:
        ScenePairs(int(count))  # draws, so that the other processes of this machine find them drawn
    barrier("scenes")
    return ScenePairs(int(count))


class ScenePairs:
    """Scenes by number, as the bytes of a small PNG with five captions. Drawn when first asked for, and kept.

    Args:
        count: how many.
    """

    def __init__(self, count: int):
        self.count = count
        self.folder = cache_folder() / f"scenes_{_KEPT}_{count}"
        if not self.folder.exists():
            _draw_all(count, self.folder)
        self._open()

    def _open(self) -> None:
        self.ends = np.load(self.folder / "ends.npy")
        self.bytes = np.memmap(self.folder / "pngs", np.uint8, mode="r")

    def __reduce__(self):
        return ScenePairs, (self.count,)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> PairSample:
        start = self.ends[index - 1] if index else 0
        png = self.bytes[start : self.ends[index]].tobytes()
        scene = make_scene("train", 0, index)
        return PairSample(png, scene.name, tuple(captions_of(scene)))

    def hash(self) -> str:
        """Of the pictures and what they are made from."""
        return hash_json({"scenes": self.count, "side": _KEPT, "bytes": int(self.ends[-1])})


def _draw_all(count: int, folder: Path) -> None:
    with atomic_directory(folder) as made, progress("drawing", count, "scenes") as advance:
        ends = np.zeros(count, np.int64)
        with (made / "pngs").open("wb") as file:
            for index, png in enumerate(map_in_processes(_png_of, range(count))):
                file.write(png)
                ends[index] = file.tell()
                advance(1)
        np.save(made / "ends.npy", ends)


def _png_of(index: int) -> bytes:
    picture = draw_scene(make_scene("train", 0, index), size=_DRAWN, fineness=_FINENESS)
    small = Image.fromarray(Preprocessing(exact_size=(_KEPT, _KEPT), mean=(0.5,) * 3, std=(0.25,) * 3).resize(picture))
    file = io.BytesIO()
    small.save(file, "PNG", compress_level=3)
    return file.getvalue()
