"""Packs image-text pairs into ArrayRecord shards, shard by shard: what is written stays, an interrupted run goes on.

Shards hold consecutive pairs, as many each as can be, so that another number of shards changes no order. Each appears
by rename; beside them `.packing.json` says what is being packed and which shards are done, and `manifest.json` appears
when all of them are.
"""

import dataclasses
import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from rococo_jax.data.array_record import FORMAT, MANIFEST, SUFFIX, VERSION, encode_record
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, hash_file, hash_json, read_json, write_json

_UNFINISHED = ".packing.json"
# A record a group is what reading by number asks for; images are compressed already.
_WRITER_OPTIONS = "group_size:1,uncompressed"
_JPEG_QUALITY = 95
_AHEAD = 64


@dataclasses.dataclass(frozen=True)
class Packed:
    """What `pack_pairs` did.

    Attributes:
        images: in all shards.
        captions: of these images.
        written: shards written now; the others were there.
        left_out: images that cannot be decoded.
    """

    images: int
    captions: int
    written: int
    left_out: tuple[str, ...]


def pack_pairs(
    source: PairSource,
    folder: str | os.PathLike,
    *,
    shards: int,
    image_size: int | None = None,
    leave_out_broken: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> Packed:
    """Writes the shards and their manifest.

    Args:
        source: the pairs.
        folder: where the shards go: new, empty, or left by an interrupted run of the same packing.
        shards: how many.
        image_size: pixels of the shorter side that larger images are resized to, and written as JPEG of quality 95;
            None, and for smaller images, keeps the files' bytes.
        leave_out_broken: leave out images that cannot be decoded, instead of stopping at the first.
        advance: called with the number of images done.

    Raises:
        InputError: the folder holds something else, there are more shards than images, or an image cannot be decoded.
    """
    folder = Path(folder)
    if not 1 <= shards <= len(source):
        raise InputError("packing", "shards", shards, f"1 to {len(source)}, the number of images")
    if image_size is not None and image_size < 1:
        raise InputError("packing", "image_size", image_size, "pixels, 1 or more")
    plan = {"data": source.hash(), "image_size": image_size, "shards": shards, "leave_out_broken": leave_out_broken}
    done = _shards_left(folder, hash_json(plan))
    written = 0
    for number in range(shards):
        start, end = number * len(source) // shards, (number + 1) * len(source) // shards
        name = f"pairs-{number:05d}-of-{shards:05d}{SUFFIX}"
        if name not in done or not (folder / name).is_file():
            with atomic_write(folder / name) as temporary:
                done[name] = _write_shard(source, range(start, end), temporary, image_size, leave_out_broken, advance)
            write_json(folder / _UNFINISHED, {"plan": hash_json(plan), "shards": done})
            written += 1
        else:
            advance(end - start)
    return _finish(folder, plan, done, written)


def _shards_left(folder: Path, plan: str) -> dict[str, dict[str, Any]]:
    """What an earlier run of the same plan has written: file name -> its entry."""
    unfinished, manifest = folder / _UNFINISHED, folder / MANIFEST
    state = {}
    if unfinished.is_file():
        state = read_json(unfinished, "the state of a packing")
    elif manifest.is_file():
        state = read_json(manifest, "a manifest of packed pairs")
    if not isinstance(state, dict) or (state and state.get("plan") != plan):
        raise InputError(folder, "output folder", "shards of other pairs or settings", "a new or empty folder")
    if not state and folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir()):
        raise InputError(folder, "output folder", "something already there", "a new or empty folder")
    shards = state.get("shards", {})
    return shards if isinstance(shards, dict) else {shard["file"]: shard for shard in shards}


def _finish(folder: Path, plan: dict[str, Any], done: dict[str, dict[str, Any]], written: int) -> Packed:
    entries = [done[name] for name in sorted(done)]
    packed = Packed(
        images=sum(entry["images"] for entry in entries),
        captions=sum(entry["captions"] for entry in entries),
        written=written,
        left_out=tuple(name for entry in entries for name in entry["left_out"]),
    )
    if packed.images == 0:
        raise InputError("packing", "images", "none that can be decoded", "at least one")
    if written or not (folder / MANIFEST).is_file():
        head = {"format": FORMAT, "version": VERSION, "plan": hash_json(plan), "data": plan["data"]}
        counts = {"images": packed.images, "captions": packed.captions, "image_size": plan["image_size"]}
        named = [{"file": name, **done[name]} for name in sorted(done)]
        write_json(folder / MANIFEST, {**head, **counts, "shards": named})
    (folder / _UNFINISHED).unlink(missing_ok=True)
    return packed


def _write_shard(
    source: PairSource,
    numbers: range,
    path: Path,
    image_size: int | None,
    leave_out_broken: bool,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    images, captions, left_out = 0, 0, []
    writer = ArrayRecordWriter(str(path), _WRITER_OPTIONS)
    try:
        for sample, data in _in_order(source, numbers, image_size):
            if isinstance(data, InputError):
                if not leave_out_broken:
                    raise data
                left_out.append(sample.name)
            else:
                writer.write(encode_record(sample, data))
                images, captions = images + 1, captions + len(sample.captions)
            advance(1)
    finally:
        writer.close()
    return {"images": images, "captions": captions, "sha256": hash_file(path), "left_out": left_out}


def _in_order(
    source: PairSource, numbers: range, image_size: int | None
) -> Iterator[tuple[PairSample, bytes | InputError]]:
    """Samples with their checked, perhaps resized image files, made in threads, a bounded number ahead."""
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="packing") as pool:
        waiting: deque = deque()
        try:
            for number in numbers:
                sample = source[number]
                waiting.append((sample, pool.submit(_image_file, sample, image_size)))
                if len(waiting) == _AHEAD:
                    sample, future = waiting.popleft()
                    yield sample, future.result()
            while waiting:
                sample, future = waiting.popleft()
                yield sample, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _image_file(sample: PairSample, image_size: int | None) -> bytes | InputError:
    """The bytes of the image file that goes into the shard, or what is wrong with it."""
    try:
        image = sample.open()
        data = sample.image if isinstance(sample.image, bytes) else sample.image.read_bytes()
    except InputError as error:
        return error
    return data if image_size is None or min(image.size) <= image_size else _resized(image, image_size)


def _resized(image: Image.Image, shorter_side: int) -> bytes:
    scale = shorter_side / min(image.size)
    width, height = (max(shorter_side, round(side * scale)) for side in image.size)
    pixels = Preprocessing(exact_size=(height, width), resample="bicubic").resize(image)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()
