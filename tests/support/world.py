"""Small worlds that tests write for themselves: pictures, their captions, altered captions and a model in a folder."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.encoders import Encoder

Picture = Callable[[int, np.random.Generator], Image.Image]


def noise(height: int = 32, width: int = 32, times: int = 1) -> Picture:
    """Random pixels, each `times` times as high and wide: blocks, by which a model of random weights tells images."""

    def picture(number: int, random: np.random.Generator) -> Image.Image:
        pixels = random.integers(0, 256, (height, width, 3), np.uint8)
        return Image.fromarray(pixels.repeat(times, 0).repeat(times, 1))

    return picture


def drawing(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with some noise, so that resizing has both edges and gradients to get wrong."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(generator.uniform(2, 30) * rows + generator.uniform(2, 30) * columns) for _ in range(channels)]
    noisy = 127 + 100 * np.stack(waves, -1) + generator.normal(0, 20, (height, width, channels))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def write_pictures(folder: Path, names: Iterable[str], picture: Picture | None = None) -> list[Path]:
    """Write pictures below `folder`; returns their paths."""
    random, picture, paths = np.random.default_rng(0), picture or noise(), [folder / name for name in names]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, random).save(path)
    return paths


def seventy_pictures(folder: Path) -> dict[str, Path]:
    """Write pictures of different widths, more than a batch of the published mixing; returns name -> file."""

    def picture(number: int, random: np.random.Generator) -> Image.Image:
        return noise(5, 7)(number, random).resize((90 + number, 70), Image.Resampling.BICUBIC)

    names = [f"val/{number:02}.png" for number in range(70)]
    return dict(zip(names, write_pictures(folder, names, picture), strict=True))


def write_world(
    folder: Path,
    captions: Sequence[Sequence[str]],
    *,
    name: str = "{:02}.png",
    picture: Picture | None = None,
    altered: Mapping[str, Callable[[str], str]] | None = None,
    start: Encoder | None = None,
) -> Path:
    """Write what commands read; returns the folder.

    Args:
        captions: of each image.
        name: of an image below `images`, with its number.
        picture: draws an image.
        altered: variant -> what makes one of its captions from one of an image's first five. `annotations` then has
            the published form of each, and of the clean captions, which `captions.json` has in any case.
        start: a model, saved as `start`.
    """
    names = [name.format(number) for number in range(len(captions))]
    write_pictures(folder / "images", names, picture)
    files = {"captions.json": captions}
    if altered is not None:
        (folder / "annotations").mkdir()
        files["annotations/coco_karpathy_test.json"] = captions
    for variant, change in (altered or {}).items():
        files[f"annotations/{variant}.json"] = [[*texts, *map(change, texts[:5])] for texts in captions]
    for file, texts_by_image in files.items():
        items = [{"image": each, "caption": list(texts)} for each, texts in zip(names, texts_by_image, strict=True)]
        (folder / file).write_text(json.dumps(items))
    if start is not None:
        save_model(folder / "start", start)
    return folder
