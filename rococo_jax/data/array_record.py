"""Image-text pairs in ArrayRecord shards: few large files, read by index from a disk or a bucket.

A record is an image file's bytes after a header, which is JSON after its length in four bytes, little-endian:

    length | {"image": "val2014/COCO_val2014_000000391895.jpg", "captions": ["A man with a red helmet ..."]} | bytes

`rococo pack` writes a folder of `pairs-00000-of-00016.array_record` and, after the last of them, `manifest.json`:

    {"format": "rococo_jax.pairs", "version": 1, "plan": hash, "data": hash, "images": 5000, "captions": 25010,
     "image_size": null, "shards": [{"file", "images", "captions", "sha256", "left_out": [broken images]}, ...]}

Shards hold consecutive pairs, evenly divided, so the number of shards does not change the order. Each appears by
rename; until all are there, `.packing.json` holds the plan and the finished shards, and an interrupted run resumes.
"""

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grain.python as grain
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from rococo_jax.data.images import Task, run_tasks
from rococo_jax.data.pair_source import PairSample, PairSource, content_hash
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import atomic_write, hash_file, hash_json, read_json, write_json

FORMAT, VERSION, MANIFEST = "rococo_jax.pairs", 1, "manifest.json"
SUFFIX = ".array_record"
_UNFINISHED = ".packing.json"
_LENGTH = 4
# One record a group, for reading by index; images are compressed already.
_WRITER_OPTIONS = "group_size:1,uncompressed"
_JPEG_QUALITY = 95
_AHEAD = 64


def encode_record(sample: PairSample, data: bytes) -> bytes:
    """The record of a sample whose image file has the bytes `data`."""
    header = json.dumps({"image": sample.name, "captions": sample.captions}, ensure_ascii=False).encode()
    return len(header).to_bytes(_LENGTH, "little") + header + data


def decode_record(record: bytes, source: object) -> PairSample:
    """The sample in a record. Raises InputError, which names `source`, where it is no pair."""
    end = _LENGTH + int.from_bytes(record[:_LENGTH], "little")
    try:
        header = json.loads(record[_LENGTH:end])
        return PairSample(record[end:], str(header["image"]), tuple(map(str, header["captions"])))
    except (ValueError, KeyError, TypeError):
        raise InputError(source, "record", "other bytes", "an image-text pair as `rococo pack` writes it") from None


class RecordPairs(PairSource):
    """The pairs of a shard (`.array_record`), or of all shards of a folder, in the order of their file names.

    Raises InputError: there are no shards, shards of the manifest are missing or hold other numbers of records, or the
    first record is no pair.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        files = sorted(self.path.glob(f"*{SUFFIX}")) if self.path.is_dir() else [self.path]
        if not files or not files[0].is_file():
            raise InputError(path, "shards", "nothing there", f"an {SUFFIX} file, or a folder of them")
        manifest = self.path / MANIFEST
        self.manifest = read_manifest(manifest) if self.path.is_dir() and manifest.is_file() else None
        if self.manifest is not None:
            _check_files(files, self.manifest, manifest)
        self.files = tuple(file.name for file in files)
        # Pairs of each, for reading shard by shard; known where there is a manifest.
        self.shards = tuple(shard["images"] for shard in self.manifest["shards"]) if self.manifest else ()
        try:
            self.records = grain.ArrayRecordDataSource([str(file) for file in files])
        except (RuntimeError, ValueError) as error:
            raise InputError(path, "shards", f"a damaged file ({error})", f"whole {SUFFIX} files") from None
        wanted = self.manifest["images"] if self.manifest else "at least 1"
        if len(self.records) == 0 or (self.manifest and len(self.records) != wanted):
            raise InputError(path, "records", len(self.records), f"{wanted}, and whole files")
        self[0]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> PairSample:
        source = f"record {index} of {self.path}"
        try:
            record = self.records[index]
        except (RuntimeError, ValueError) as error:
            raise InputError(source, "record", f"damaged ({error})", "a whole shard") from None
        return decode_record(record, source)

    def hash(self) -> str:
        """Hash of the shards' hashes where there is a manifest, otherwise of their names and the number of records."""
        shards = [shard["sha256"] for shard in self.manifest["shards"]] if self.manifest else list(self.files)
        return hash_json({"shards": shards, "records": len(self)})


def read_manifest(path: Path) -> dict[str, Any]:
    """A `manifest.json`. Raises InputError where it is not one."""
    manifest = read_json(path, "a manifest of packed pairs")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(path, "format", "another one", repr(FORMAT))
    if manifest.get("version") != VERSION:
        raise InputError(path, "version", repr(manifest.get("version")), str(VERSION))
    if not {"images", "captions", "shards"} <= manifest.keys():
        raise InputError(path, "keys", list(manifest), "images, captions and shards")
    shards = manifest["shards"] if isinstance(manifest["shards"], list) else [None]
    for number, shard in enumerate(shards):
        kinds = {"file": str, "images": int, "sha256": str}
        if not isinstance(shard, dict) or not all(isinstance(shard.get(key), kinds[key]) for key in kinds):
            raise InputError(path, f"shard {number}", repr(shard)[:80], "an object with file, images and sha256")
    return manifest


def _check_files(files: list[Path], manifest: dict[str, Any], source: Path) -> None:
    present, named = [file.name for file in files], sorted(shard["file"] for shard in manifest["shards"])
    if present != named:
        missing = sorted(set(named) - set(present))
        found = f"{missing[0]!r} is missing" if missing else f"{sorted(set(present) - set(named))[0]!r} besides"
        raise InputError(source.parent, "shards", found, f"the {len(named)} shards that {source.name} names")


@dataclasses.dataclass(frozen=True)
class Packed:
    """Images and captions in all shards, shards written now, and images left out as they cannot be decoded."""

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
    on_progress: Callable[[int], None] = lambda count: None,
) -> Packed:
    """Writes the shards and their manifest.

    Args:
        folder: where the shards go: new, empty, or left by an interrupted run of the same packing.
        image_size: larger images are resized to this many pixels of their shorter side and written as JPEG of quality
            95; None keeps the bytes of all files, and smaller images keep theirs.
        leave_out_broken: leave out images that cannot be decoded, instead of stopping at the first.
        on_progress: called with the number of images done since the last call.

    Raises:
        InputError: the folder holds something else, there are more shards than images, or an image cannot be decoded.
    """
    folder = Path(folder)
    if not 1 <= shards <= len(source):
        raise InputError("packing", "shards", shards, f"1 to {len(source)}, the number of images")
    if image_size is not None and image_size < 1:
        raise InputError("packing", "image_size", image_size, "pixels, 1 or more")
    plan = {"data": source.hash(), "image_size": image_size, "shards": shards, "leave_out_broken": leave_out_broken,
            "images": content_hash(source)}  # fmt: skip
    done = _shards_left(folder, hash_json(plan))
    written, state = 0, folder / _UNFINISHED
    if not done:  # before the first shard: a run killed just after it must know it as its own
        write_json(state, {"plan": hash_json(plan), "shards": {}})
    for number in range(shards):
        start, end = number * len(source) // shards, (number + 1) * len(source) // shards
        name = f"pairs-{number:05d}-of-{shards:05d}{SUFFIX}"
        if name not in done or not (folder / name).is_file():
            try:
                with atomic_write(folder / name) as temporary:
                    entry = _write_shard(
                        source, range(start, end), temporary, image_size, leave_out_broken, on_progress
                    )
            except InputError:
                if not done:
                    state.unlink(missing_ok=True)
                raise
            done[name] = entry
            write_json(state, {"plan": hash_json(plan), "shards": done})
            written += 1
        else:
            on_progress(end - start)
    return _finish(folder, plan, done, written)


def _shards_left(folder: Path, plan: str) -> dict[str, dict[str, Any]]:
    """The shards that an earlier run of the same plan has written: file name -> manifest entry."""
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
    on_progress: Callable[[int], None],
) -> dict[str, Any]:
    images, captions, left_out = 0, 0, []
    tasks = (Task(1, partial(_prepared, source[number], image_size)) for number in numbers)
    try:
        with contextlib.closing(ArrayRecordWriter(str(path), _WRITER_OPTIONS)) as writer:
            for sample, data in run_tasks(tasks, ahead=_AHEAD):
                if isinstance(data, InputError):
                    if not leave_out_broken:
                        raise data
                    left_out.append(sample.name)
                else:
                    writer.write(encode_record(sample, data))
                    images, captions = images + 1, captions + len(sample.captions)
                on_progress(1)
    except RuntimeError as error:  # for a full disk, and whatever else the system refuses
        raise InputError(path.parent, "shard", first_line(error), "a disk with room for it") from None
    return {"images": images, "captions": captions, "sha256": hash_file(path), "left_out": left_out}


def _prepared(sample: PairSample, image_size: int | None) -> list[tuple[PairSample, bytes | InputError]]:
    """A sample with the image file that goes into the shard, or with the error of an image that cannot be decoded."""
    try:
        image = sample.open()
        data = sample.read_bytes()
    except InputError as error:
        return [(sample, error)]
    keeps_size = image_size is None or min(image.size) <= image_size
    return [(sample, data if keeps_size else _resized(image, image_size))]


def _resized(image: Image.Image, shorter_side: int) -> bytes:
    scale = shorter_side / min(image.size)
    width, height = (max(shorter_side, round(side * scale)) for side in image.size)
    pixels = Preprocessing(exact_size=(height, width), resample="bicubic").resize(image)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()
