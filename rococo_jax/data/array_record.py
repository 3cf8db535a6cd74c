"""Image-text pairs in ArrayRecord shards: few large files that are read by number, from a disk or a bucket.

A record is an image file's bytes behind a header, which is JSON behind its length in four bytes, little-endian:

    length | {"image": "val2014/COCO_val2014_000000391895.jpg", "captions": ["A man with a red helmet ..."]} | bytes

`rococo pack` writes a folder of `pairs-00000-of-00016.array_record` and, when all of them are there, `manifest.json`:

    {"format": "rococo_jax.pairs", "version": 1, "plan": hash, "data": hash, "images": 5000, "captions": 25010,
     "image_size": null, "shards": [{"file", "images", "captions", "sha256", "left_out": [broken images]}, ...]}
"""

import json
import os
from pathlib import Path
from typing import Any

import grain.python as grain

from rococo_jax.data.pair_source import PairSample
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json, read_json

FORMAT, VERSION, MANIFEST = "rococo_jax.pairs", 1, "manifest.json"
SUFFIX = ".array_record"
_LENGTH = 4


def encode_record(sample: PairSample, data: bytes) -> bytes:
    """A record of a sample whose image file has the bytes `data`."""
    header = json.dumps({"image": sample.name, "captions": sample.captions}, ensure_ascii=False).encode()
    return len(header).to_bytes(_LENGTH, "little") + header + data


def decode_record(record: bytes, source: object) -> PairSample:
    """The sample in a record.

    Raises:
        InputError: it is none of ours; `source` names it.
    """
    end = _LENGTH + int.from_bytes(record[:_LENGTH], "little")
    try:
        header = json.loads(record[_LENGTH:end])
        return PairSample(record[end:], str(header["image"]), tuple(map(str, header["captions"])))
    except (ValueError, KeyError, TypeError):
        raise InputError(source, "record", "other bytes", "an image-text pair as `rococo pack` writes it") from None


class RecordPairs:
    """The pairs in a shard, or in all shards of a folder, in the order of their file names.

    Args:
        path: an `.array_record` file, or a folder of them.

    Raises:
        InputError: there are no shards, shards of the manifest are missing or hold other numbers of records, or the
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
        """Of the shards' bytes where a manifest has their hashes, otherwise of their names and how many records."""
        shards = [shard["sha256"] for shard in self.manifest["shards"]] if self.manifest else list(self.files)
        return hash_json({"shards": shards, "records": len(self)})


def read_manifest(path: Path) -> dict[str, Any]:
    """A checked `manifest.json`.

    Raises:
        InputError: it is not one.
    """
    manifest = read_json(path, "a manifest of packed pairs")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(path, "format", "another one", repr(FORMAT))
    if manifest.get("version") != VERSION:
        raise InputError(path, "version", repr(manifest.get("version")), str(VERSION))
    if not {"images", "captions", "shards"} <= manifest.keys():
        raise InputError(path, "keys", sorted(manifest), "images, captions and shards")
    return manifest


def _check_files(files: list[Path], manifest: dict[str, Any], source: Path) -> None:
    present, named = [file.name for file in files], sorted(shard["file"] for shard in manifest["shards"])
    if present != named:
        missing = sorted(set(named) - set(present))
        found = f"{missing[0]!r} is missing" if missing else f"{sorted(set(present) - set(named))[0]!r} besides"
        raise InputError(source.parent, "shards", found, f"the {len(named)} shards that {source.name} names")
