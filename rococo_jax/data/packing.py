"""Packs image-text pairs into tars in WebDataset's form (`tar_pairs`): few large files, read by index.

A folder of `pairs-00000-of-00016.tar` holds the samples `00000000.jpg` with `00000000.txt`, a caption a line, numbered
through all tars; captions with line breaks stand in `00000000.json` instead, as `{"captions": [...]}`. Tars hold
consecutive pairs, evenly divided, so the number of tars does not change the order. Each appears by rename, and
`packing.json` says of which pairs and settings they are, so an interrupted run resumes. The index that training reads
lies beside them.
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
from rococo_jax.data.pictures import as_rgb, image_format
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tar_index import open_index
from rococo_jax.data.tar_pairs import TarPairs
from rococo_jax.data.tar_samples import IMAGES
from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, read_json, write_json

_PLAN = "packing.json"
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg"}
_JPEG_QUALITY = 95
_AHEAD = 64


class Packed(NamedTuple):
    """The pairs of all tars, how many tars were written now, and the images that were left out of these."""

    pairs: TarPairs
    written: int
    left_out: list[str]


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
        folder: where the tars go: new, empty, or left by an interrupted run of the same packing.
        shards: number of tars.
        image_size: larger images are resized to this many pixels of their shorter side and written as JPEG of quality
            95; None keeps the bytes of all files, and smaller images keep theirs. Of forms that WebDataset's readers do
            not know, such as TIFF, the pixels are written as PNG.
        leave_out_broken: leave out images that cannot be decoded, instead of stopping at the first.
        on_progress: called with the number of images done since the last call.

    Raises:
        InputError: the folder holds something else, there are more shards than images, an image cannot be decoded, or
            none can.
    """
    folder = Path(folder)
    if not 1 <= shards <= len(source):
        raise InputError("packing", "shards", shards, f"1 to {len(source)}, the number of images")
    if image_size is not None and image_size < 1:
        raise InputError("packing", "image_size", image_size, "pixels, 1 or more")
    _begin(folder, {"data": source.hash(), "image_size": image_size, "shards": shards,
                    "leave_out_broken": leave_out_broken})  # fmt: skip
    tars = [folder / f"pairs-{number:05d}-of-{shards:05d}.tar" for number in range(shards)]
    written, left_out = 0, []
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
                        left_out.append(source[row].name)
                    else:
                        for name, data in members.items():
                            member = tarfile.TarInfo(name)
                            member.size = len(data)
                            tar.addfile(member, io.BytesIO(data))
                    on_progress(1)
        except InputError:
            if not any(each.is_file() for each in tars):
                (folder / _PLAN).unlink()
            raise
        written += 1
    names = list(map(str, tars))
    pairs = TarPairs(names, open_index(names))
    if not len(pairs):
        raise InputError("packing", "images", "none that can be decoded", "at least one")
    return Packed(pairs, written, left_out)


def _begin(folder: Path, plan: dict[str, Any]) -> None:
    """Note what is packed. Raises InputError where the folder holds something else."""
    path = folder / _PLAN
    if path.is_file():
        if read_json(path, "the plan of a packing") != plan:
            raise InputError(folder, "output folder", "shards of other pairs or settings", "a new or empty folder")
        return
    if folder.is_dir() and any(each.name[0] != "." for each in folder.iterdir()):
        raise InputError(folder, "output folder", "something already there", "a new or empty folder")
    write_json(path, plan)


def _members(source: PairSource, row: int, image_size: int | None) -> list[dict[str, bytes] | InputError]:
    """The members of a sample, or the error of an image that cannot be decoded."""
    sample = source[row]
    try:
        image, data = sample.open(), sample.read_bytes()
    except InputError as error:
        return [error]
    text = "\n".join(sample.captions)
    whole = caption_lines(text) == sample.captions
    kind = image_format(data, sample.name)
    suffix = _SUFFIXES.get(kind, kind.lower())
    if image_size is not None and min(image.size) > image_size:
        suffix, data = "jpg", _resized(image, image_size)
    elif suffix not in IMAGES:
        suffix, data = "png", _encoded(as_rgb(image), "PNG")
    about = ("txt", text) if whole else ("json", json.dumps({"captions": sample.captions}, ensure_ascii=False))
    return [{f"{row:08d}.{suffix}": data, f"{row:08d}.{about[0]}": about[1].encode()}]


def _resized(image: Image.Image, shorter_side: int) -> bytes:
    scale = shorter_side / min(image.size)
    width, height = (max(shorter_side, round(side * scale)) for side in image.size)
    pixels = Preprocessing(exact_size=(height, width), resample="bicubic").resize(image)
    return _encoded(Image.fromarray(pixels), "JPEG", quality=_JPEG_QUALITY)


def _encoded(image: Image.Image, form: str, **choices: int) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **choices)
    return file.getvalue()
