"""The index of a tar in the WebDataset format: where each sample lies, and its captions.

An index is an Arrow file with one record batch: name, offset and size of each image, its captions, its SHA-256, and a
checksum by which `tar_pairs` verifies at each read that the bytes are those that were indexed; about 200 bytes per
sample. It is remembered (`remember`) beside its tar as `.NAME.tar.index.arrow`, or in the cache folder if the tar's
folder is not writable, or in memory if neither is. An index of captions that the user chooses has their key in its
name.

Indexes are written one by one, so an interrupted run resumes, and several processes can share the work.

Consecutive members whose names agree up to the first dot of the file name are one sample, as img2dataset, DataComp and
CC12M write them:

    000000012.jpg     the image: the first member of jpg, png, jpeg, webp, gif, bmp
    000000012.txt     the captions, one per line; without this member, "caption" or "captions" of
    000000012.json

The user may choose another key of NAME.json, such as that of new captions beside the old ones, or NAME.txt (`txt`).

Captions keep their white space. A sample is skipped if it has no image, no caption that is not blank, or a text that
cannot be decoded; skipped samples are counted, and the first one is reported.
"""

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BufferedIOBase
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.cores import usable_cores
from rococo_jax.data.captions import caption_lines
from rococo_jax.data.image_files import is_hidden
from rococo_jax.data.remember import Kind, find_remembered, map_content, remembered
from rococo_jax.data.remote import FileState, file_state, open_binary
from rococo_jax.errors import InputError, first_line
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_json
from rococo_jax.texts import decode_text

IMAGES = ("jpg", "png", "jpeg", "webp", "gif", "bmp")
SCHEMA = pa.schema([
    ("name", pa.string()), ("offset", pa.uint64()), ("size", pa.uint64()), ("captions", pa.list_(pa.string())),
    ("check", pa.binary(16)), ("sha256", pa.binary(32)),
])  # fmt: skip
EXPECTED = "a complete, uncompressed tar of images and captions"
HEADER = 512
# The member's name in a tar header.
_NAME, _PREFIX = slice(0, 100), slice(345, 500)
_SAMPLE = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")
_INDEX = Kind("tar_indexes", ".index.arrow", 7, is_beside=True)
# Starting processes takes longer than reading fewer bytes.
_BYTES_WORTH_PROCESSES = 2 * 10**9
# The file of an index, or its content if it can be stored nowhere.
Index = Path | bytes


def read_tar(path: str, caption: str = "") -> pa.RecordBatch:
    """Read the samples of a tar.

    Args:
        caption: key of the captions in NAME.json, or `txt` for NAME.txt; by default NAME.txt, else the usual keys.

    The metadata of the schema holds `hash`, of names, captions and images; the numbers of samples, captions and skipped
    samples; and `content`, the hash of everything that is read here, including the offsets of the members.

    Raises InputError: the file is not a tar, is compressed, truncated or damaged, or a sample has two members of one
    kind.
    """
    names, offsets, sizes, captions, checks, digests = [], [], [], [], [], []
    skipped: dict[str, Any] = {"no_image": 0, "no_caption": 0, "first": None}
    with open_binary(path) as file:
        for key, members in _samples(file, path):
            suffix = next((suffix for suffix in IMAGES if suffix in members), None)
            texts = _captions(members, caption)
            if suffix is None or not texts:
                skipped["no_image" if suffix is None else "no_caption"] += 1
                skipped["first"] = skipped["first"] or key
                continue
            image = members[suffix]
            names.append(f"{key}.{suffix}")
            offsets.append(image.offset)
            sizes.append(image.size)
            captions.append(texts)
            digest = hashlib.sha256(image.content).digest()
            digests.append(digest)
            checks.append(checksum(image.header, digest))
    images = [digest.hex() for digest in digests]
    about = {"hash": hash_json([names, captions, images]), "samples": len(names), "captions": sum(map(len, captions))}
    about |= skipped
    about["content"] = hash_json([about, offsets, sizes, [check.hex() for check in checks]])
    columns = zip((names, offsets, sizes, captions, checks, digests), SCHEMA.types, strict=True)
    arrays = [pa.array(column, column_type) for column, column_type in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.with_metadata({"tar": json.dumps(about)}))


def checksum(header: bytes, digest: bytes) -> bytes:
    """Return 128 bits of the SHA-256 of a member's name, as in its header, and of the SHA-256 of its content."""
    return hashlib.sha256(header[_NAME] + header[_PREFIX] + digest).digest()[:16]


class _SampleFile(NamedTuple):
    """A file of a sample; only images and texts have their header and content."""

    offset: int
    size: int
    header: bytes = b""
    content: bytes = b""


def _samples(file: Any, path: str) -> Iterator[tuple[str, dict[str, _SampleFile]]]:
    key, members = "", {}
    for member in _members(file, path):
        split = _SAMPLE.fullmatch(member.name)
        if split is None or is_hidden(member.name) or not member.isreg() or member.issparse():
            continue
        name, suffix = split[1], split[2].lower()
        if name != key and members:
            yield key, members
            members = {}
        if suffix in members:
            raise InputError(path, f"sample {name!r}", f"two members .{suffix}", "one of each kind")
        key, data = name, b""
        if suffix in (*IMAGES, "txt", "json"):
            file.seek(member.offset_data - HEADER)
            data = file.read(HEADER + member.size)
        members[suffix] = _SampleFile(member.offset_data, member.size, data[:HEADER], data[HEADER:])
    if members:
        yield key, members


def _members(file: Any, path: str) -> Iterator[tarfile.TarInfo]:
    """Yield all members, and refuse a truncated tar, which `tarfile` itself accepts."""
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()
                count += 1
                yield member
            end = tar.offset
        file.seek(end)
        block = file.read(HEADER)
    except tarfile.TarError as error:
        problem = f"cut short after {count} members" if count else _describe_other_file(file, error)
        raise InputError(path, "tar", problem, EXPECTED) from None
    if block != bytes(HEADER):
        problem = "damaged" if len(block) == HEADER else "cut short"
        raise InputError(path, "tar", f"{problem} after {count} members, at byte {end:,}", EXPECTED)


def _describe_other_file(file: Any, error: Exception) -> str:
    file.seek(0)
    start = file.read(6)
    if not start:
        return "an empty file"
    is_compressed = start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
    return "a compressed file" if is_compressed else f"no tar ({first_line(error)})"


def _captions(members: dict[str, _SampleFile], key: str) -> list[str]:
    texts: Sequence[Any] = ()
    if key == "txt" or (not key and "txt" in members):
        with contextlib.suppress(InputError):
            texts = caption_lines(decode_text(members["txt"].content, "", "")) if "txt" in members else ()
    else:
        value = {}
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(members["json"].content) if "json" in members else {}
        value = value if isinstance(value, dict) else {}
        captions = value.get(key) if key else value.get("captions") or value.get("caption")
        texts = captions if isinstance(captions, list) else [captions]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def open_indexes(
    tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None, caption: str = ""
) -> tuple[Index, ...]:
    """Return the index of each tar; tars without a valid one are read.

    Args:
        on_progress: called with the number of tars that are done since the last call.
        caption: key of the captions (`read_tar`).

    Raises InputError: a tar is missing, truncated, compressed or damaged, or changes while it is read.
    """
    states = {tar: _states_of(tar) for tar in tars}
    indexes: dict[str, Index] = {
        tar: index
        for tar in states
        if (index := find_remembered(_INDEX, tar, caption, lambda tar=tar: states[tar])) is not None
    }
    on_progress(len(indexes))
    missing = [tar for tar in states if tar not in indexes]
    # Processes that share the work begin at different tars.
    turn = os.getpid() % len(missing) if missing else 0
    missing = missing[turn:] + missing[:turn]
    is_large = sum(states[tar][0].size for tar in missing) >= _BYTES_WORTH_PROCESSES and len(missing) > 1
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) if is_large else contextlib.nullcontext() as pool:
        results = (pool.map if is_large else map)(partial(_open_index, caption=caption), missing)
        for tar, index in zip(missing, results, strict=True):
            indexes[tar] = index
            on_progress(1)
    if any(isinstance(index, bytes) for index in indexes.values()):
        say(
            f"{tars[0]}: neither its folder nor {cache_folder()} is writable, so each start reads the tars again; "
            "set ROCOCO_CACHE to a folder that can be written"
        )
    return tuple(indexes[tar] for tar in tars)


def _states_of(tar: str) -> list[FileState]:
    return [file_state(tar, EXPECTED)]


def _open_index(tar: str, caption: str) -> Index:
    def write(file: BufferedIOBase, earlier: memoryview | None) -> None:
        del earlier
        batch = read_tar(tar, caption)
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    return remembered(_INDEX, tar, caption, write, lambda: _states_of(tar))


def columns_of(index: Index) -> dict[str, pa.Array]:
    """Return the columns of an index, with a row for each sample, by their names in `SCHEMA`."""
    batch = _open(index).get_batch(0)
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def read_summary(index: Index) -> dict[str, Any]:
    """Return what an index says of its tar as a whole.

    These are the number of `samples` and `captions`, their `hash`, the `content` hash of the tar (`read_tar`), the
    numbers of samples that were skipped (`no_image`, `no_caption`), and the name of the `first` of these.
    """
    return json.loads(_open(index).schema.metadata[b"tar"])


def _open(index: Index) -> pa.RecordBatchFileReader:
    return pa.ipc.open_file(pa.py_buffer(map_content(index)))
