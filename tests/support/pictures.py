"""Small pictures: a folder of them, more than a batch of the published mixing, and a benchmark of a few."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def pictures_in(folder: Path) -> Path:
    """Writes the pictures below `folder`, which is returned."""
    rng = np.random.default_rng(0)
    (folder / "val").mkdir(parents=True)
    for number in range(70):
        pixels = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
        pixels.resize((90 + number, 70), Image.Resampling.BICUBIC).save(folder / "val" / f"{number:02}.png")
    return folder


def files_of(folder: Path) -> dict[str, Path]:
    """Name -> file of the pictures."""
    return {f"val/{path.name}": path for path in sorted((folder / "val").iterdir())}


def retrieval_in(folder: Path, images: int, captions_of: Callable[[int], Sequence[str]], suffix: str = " q") -> Path:
    """Writes `images` pictures of blocks of noise and `danger.json`, whose altered captions end with `suffix`."""
    rng, items = np.random.default_rng(0), []
    for name in ("images", "annotations"):
        (folder / name).mkdir()
    for number in range(images):
        pixels = rng.integers(0, 256, (6, 8, 3), np.uint8).repeat(6, 0).repeat(6, 1)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        texts = list(captions_of(number))
        items.append({"image": f"{number}.png", "caption": [*texts, *(text + suffix for text in texts)]})
    (folder / "annotations" / "danger.json").write_text(json.dumps(items))
    return folder
