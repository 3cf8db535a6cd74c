"""Pack image-text pairs into tars in the WebDataset format (`tar_pairs`): few large files, read by index.

A folder of `pairs-00000-of-00016.tar` contains the samples `00000000.jpg` with `00000000.txt`, one caption per line,
numbered through all tars. Captions with line breaks are in `00000000.json` instead, as `{"captions": [...]}`. Each tar
has consecutive pairs, and all have about the same number, so the number of tars does not change the order. A tar gets
its name when it is complete, and `packing.json` records the pairs and settings, so an interrupted run resumes. The
indexes that training reads lie beside the tars.
"""

import io
import json
import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from rococo_jax.data.captions import caption_lines
from rococo_jax.data.images import Task, run_tasks
from rococo_jax.data.pair_source import PairSource
from rococo_jax.data.pictures import as_rgb, image_bytes, image_format
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tar_index import IMAGES, open_indexes
from rococo_jax.data.tar_pairs import TarPairs
from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, read_json, write_json

_SETTINGS = "packing.json"
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg"}
_JPEG_QUALITY = 95
_AHEAD = 64


class Packed(NamedTuple):
    """The result of packing.

    Attributes:
        pairs: of all tars.
        new_tars: number of tars that this call wrote.
        skipped: names of the images that were left out of these tars.
    """

    pairs: TarPairs
    new_tars: int
    skipped: list[str]


def pack_pairs(
    source: PairSource,
    folder: str | os.PathLike,
    *,
    shards: int,
    image_size: int | None = None,
    leave_out_broken: bool = False,
    on_progress: Callable[[int], None] = lambda count: None,
) -> Packed:
    """Write the tars and their index.

    Args:
        folder: of the tars: new, empty, or left by an interrupted run of the same packing.
        shards: number of tars.
        image_size: shorter side in pixels to which larger images are resized; they are written as JPEG of quality 95.
            Smaller images, and all images by default, keep the bytes of their files, except that formats unknown to
            WebDataset's readers, such as TIFF, are written as PNG.
        leave_out_broken: skip images that cannot be decoded, instead of stopping at the first.
        on_progress: called with the number of images that are done since the last call.

    Raises:
        InputError: the folder contains something else, there are more shards than images, an image cannot be decoded,
            or none can.
    """
    folder = Path(folder)
    if not 1 <= shards <= len(source):
        raise InputError("packing", "shards", shards, f"1 to {len(source)}, the number of images")
    if image_size is not None and image_size < 1:
        raise InputError("packing", "image_size", image_size, "pixels, 1 or more")
    _begin(folder, {"data": source.hash(), "image_size": image_size, "shards": shards,
                    "leave_out_broken": leave_out_broken})  # fmt: skip
    tars = [folder / f"pairs-{number:05d}-of-{shards:05d}.tar" for number in range(shards)]
    new_tars, skipped = 0, []
    for number, path in enumerate(tars):
        rows = range(number * len(source) // shards, (number + 1) * len(source) // shards)
        if path.is_file():
            on_progress(len(rows))
            continue
        tasks = (Task(1, partial(_members, source, row, image_size)) for row in rows)
        try:
            with atomic_write(path) as temporary, tarfile.open(temporary, "w") as tar:
                for row, members in zip(rows, run_tasks(tasks, ahead=_AHEAD), strict=True):
                    if isinstance(members, InputError):
                        if not leave_out_broken:
                            raise members
                        skipped.append(source[row].name)
                    else:
                        for name, data in members.items():
                            member = tarfile.TarInfo(name)
                            member.size = len(data)
                            tar.addfile(member, io.BytesIO(data))
                    on_progress(1)
        except InputError:
            if not any(each.is_file() for each in tars):
                (folder / _SETTINGS).unlink()
            raise
        new_tars += 1
    names = list(map(str, tars))
    pairs = TarPairs(names, open_indexes(names))
    if not len(pairs):
        raise InputError("packing", "images", "none that can be decoded", "at least one")
    return Packed(pairs, new_tars, skipped)


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Record the pairs and settings of the packing. Raises InputError: the folder contains something else."""
    path = folder / _SETTINGS
    if path.is_file():
        if read_json(path, "the settings of a packing") != settings:
            raise InputError(folder, "output folder", "shards of other pairs or settings", "a new or empty folder")
        return
    if folder.is_dir() and any(each.name[0] != "." for each in folder.iterdir()):
        raise InputError(folder, "output folder", "something already there", "a new or empty folder")
    write_json(path, settings)


def _members(source: PairSource, row: int, image_size: int | None) -> list[dict[str, bytes] | InputError]:
    """Return the members of a sample, or the error if its image cannot be decoded."""
    sample = source[row]
    try:
        image, data = sample.open(), sample.read_bytes()
    except InputError as error:
        return [error]
    text = "\n".join(sample.captions)
    fits_into_lines = caption_lines(text) == sample.captions
    format_name = image_format(data, sample.name)
    suffix = _SUFFIXES.get(format_name, format_name.lower())
    if image_size is not None and min(image.size) > image_size:
        suffix, data = "jpg", _resize(image, image_size)
    elif suffix not in IMAGES:
        suffix, data = "png", image_bytes(as_rgb(image), "PNG")
    text_suffix = "txt"
    if not fits_into_lines:
        text_suffix, text = "json", json.dumps({"captions": sample.captions}, ensure_ascii=False)
    return [{f"{row:08d}.{suffix}": data, f"{row:08d}.{text_suffix}": text.encode()}]


def _resize(image: Image.Image, shorter_side: int) -> bytes:
    scale = shorter_side / min(image.size)
    width, height = (max(shorter_side, round(side * scale)) for side in image.size)
    pixels = Preprocessing(exact_size=(height, width), resample="bicubic").resize(image)
    return image_bytes(pixels, "JPEG", quality=_JPEG_QUALITY)
