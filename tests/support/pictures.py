"""Seventy small pictures of different sizes: more than a batch of the published mixing."""

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
