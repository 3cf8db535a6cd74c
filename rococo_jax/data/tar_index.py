"""The index of a set of tars in WebDataset's form: where every sample lies, and its captions.

Members whose names are the same up to the first dot of the file name, one after another, are a sample, as img2dataset,
DataComp and CC12M write them:

    000000012.jpg     the image: the first of jpg, png, jpeg, webp, gif, bmp that there is
    000000012.txt     the captions, one a line; without it "caption" or "captions" of
    000000012.json

Captions are kept as they are written, blanks included, as other forms keep them. Samples without an image or without
a caption that is not blank, or with a text that is none, are left out, counted, and the first is named. The
index is an Arrow file beside the tars, `rococo-index-HASH.arrow`, or in the cache folder where nothing can be written
there. It has a record batch a tar with the columns name, offset, size (of the image in the tar) and captions; about
150 bytes a sample. Every tar is read once: a part is kept for each until all are there, so that an interrupted run
goes on, and several processes share the work. A tar of another size than the index knows is read again.
"""

import contextlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from rococo_jax.cores import usable_cores
from rococo_jax.data.captions import caption_lines
from rococo_jax.data.image_files import is_hidden
from rococo_jax.data.remote import file_size, open_binary
from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import atomic_write, hash_json, is_url
from rococo_jax.texts import decode_text

FORMAT = "rococo_jax.tar_index 3"
IMAGES = ("jpg", "png", "jpeg", "webp", "gif", "bmp")
_SCHEMA = pa.schema(
    [("name", pa.string()), ("offset", pa.uint64()), ("size", pa.uint32()), ("captions", pa.list_(pa.string()))]
)
_SAMPLE = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")
_BLOCK = 512
_WANTED = "a whole, uncompressed tar of images and captions"
_UNREADABLE = (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError)
# Below, starting processes takes longer than reading.
_BYTES_WORTH_PROCESSES = 2 * 10**9


def open_index(tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None) -> Path:
    """The index of these tars, made where it is not there; `on_progress` is called with the number of tars read.

    Raises InputError: a tar is missing, cut short, compressed or damaged, or nothing can be written.
    """
    sizes = [file_size(tar, _WANTED) for tar in tars]
    index = _place_of(tars)
    if index.is_file() and _knows(index, tars, sizes):
        return index
    parts = index.with_name(f".{index.name}.parts")
    parts.mkdir(parents=True, exist_ok=True)
    named = [parts / f"{hash_json([_name(tar), size])[:16]}.arrow" for tar, size in zip(tars, sizes, strict=True)]
    _keep_parts(index, dict(zip(zip(map(_name, tars), sizes, strict=True), named, strict=True)))
    missing = [(tar, part) for tar, part in zip(tars, named, strict=True) if not part.is_file()]
    # Processes that share the work begin at different places.
    turn = os.getpid() % len(missing) if missing else 0
    parallel = sum(sizes) >= _BYTES_WORTH_PROCESSES and len(missing) > 1
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) if parallel else contextlib.nullcontext() as pool:
        for _ in (pool.map if parallel else map)(_make_part, missing[turn:] + missing[:turn]):
            on_progress(1)
    with contextlib.suppress(FileNotFoundError):  # another process has joined the parts
        _join(index, named, tars, sizes)
    shutil.rmtree(parts, ignore_errors=True)
    if not _knows(index, tars, sizes):
        raise InputError(index, "index", "of other tars", "none; remove it")
    return index


def _name(tar: str) -> str:
    return Path(tar).name


def _keep_parts(index: Path, parts: Mapping[tuple[str, int], Path]) -> None:
    """Makes the parts that an older index of these tars has."""
    with contextlib.suppress(*_UNREADABLE), pa.OSFile(str(index)) as file:
        reader = pa.ipc.open_file(file)
        for number, tar in enumerate(about_tars(reader)):
            part = parts.get((tar.pop("tar"), tar.pop("bytes")))
            if part is not None and not part.is_file():
                del tar["samples"]
                schema = _SCHEMA.with_metadata({"tar": json.dumps(tar)})
                with atomic_write(part) as temporary:
                    _write(temporary, schema, [reader.get_batch(number)])


def _make_part(of: tuple[str, Path]) -> None:
    tar, part = of
    if not part.is_file() and part.parent.is_dir():
        batch = read_tar(tar)
        with contextlib.suppress(FileNotFoundError), atomic_write(part) as temporary:  # joined meanwhile
            _write(temporary, batch.schema, [batch])


def _join(index: Path, parts: Sequence[Path], tars: Sequence[str], sizes: Sequence[int]) -> None:
    batches = [_first_batch(part) for part in parts]
    about = [
        {"tar": _name(tar), "bytes": size, "samples": batch.num_rows, **json.loads(batch.schema.metadata[b"tar"])}
        for tar, size, batch in zip(tars, sizes, batches, strict=True)
    ]
    schema = _SCHEMA.with_metadata({"tars": json.dumps(about)})
    with atomic_write(index) as temporary:
        _write(temporary, schema, batches)


def _first_batch(path: Path) -> pa.RecordBatch:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(0)


def _write(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def about_tars(index: pa.ipc.RecordBatchFileReader) -> list[dict[str, Any]]:
    """Name, bytes, samples, captions and hash of each tar, how many samples were left out (`no_image`, `no_caption`),
    and the first of them.
    """
    return json.loads(index.schema.metadata[b"tars"])


def _knows(index: Path, tars: Sequence[str], sizes: Sequence[int]) -> bool:
    try:
        with pa.OSFile(str(index)) as file:
            reader = pa.ipc.open_file(file)
            indexed = [(tar["tar"], tar["bytes"]) for tar in about_tars(reader)]
    except _UNREADABLE:
        return False
    return indexed == [(_name(tar), size) for tar, size in zip(tars, sizes, strict=True)]


def _place_of(tars: Sequence[str]) -> Path:
    """Beside the first tar, or in the cache folder; an index of another format has another name."""
    name = f"rococo-index-{hash_json([FORMAT, *map(_name, tars)])[:12]}.arrow"
    folder = Path(tars[0]).parent
    if not is_url(tars[0]) and (os.access(folder, os.W_OK) or (folder / name).is_file()):
        return folder / name
    from rococo_jax.runtime import cache_folder

    where = str(tars[0]) if is_url(tars[0]) else str(Path(tars[0]).absolute())
    return cache_folder() / "tar_indexes" / hash_json(where)[:12] / name


def read_tar(path: str) -> pa.RecordBatch:
    """Reads a tar's samples; the metadata of the schema holds the hash of names and captions, and what is left out.

    Raises InputError: not a tar, compressed, cut short or damaged, or a sample has two members of one kind.
    """
    names, offsets, sizes, captions = [], [], [], []
    left_out: dict[str, Any] = {"no_image": 0, "no_caption": 0, "first": None}
    with open_binary(path) as file:
        for key, members in _samples(file, path):
            suffix = next((suffix for suffix in IMAGES if suffix in members), None)
            texts = _captions(members)
            if suffix is None or not texts:
                left_out["no_image" if suffix is None else "no_caption"] += 1
                left_out["first"] = left_out["first"] or key
                continue
            names.append(f"{key}.{suffix}")
            offsets.append(members[suffix][0])
            sizes.append(members[suffix][1])
            captions.append(texts)
    about = {"hash": hash_json([names, captions]), "captions": sum(map(len, captions)), **left_out}
    columns = zip((names, offsets, sizes, captions), _SCHEMA.types, strict=True)
    columns = [pa.array(column, of_type) for column, of_type in columns]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA.with_metadata({"tar": json.dumps(about)}))


# Of a member: its offset, its size and, where it is a text, its bytes.
_Members = dict[str, tuple[int, int, bytes]]


def _samples(file: Any, path: str) -> Iterator[tuple[str, _Members]]:
    key, members = "", {}
    for member in _members(file, path):
        split = _SAMPLE.fullmatch(member.name)
        if split is None or is_hidden(member.name) or not member.isreg() or member.issparse():
            continue
        own, suffix = split[1], split[2].lower()
        if own != key and members:
            yield key, members
            members = {}
        if suffix in members:
            raise InputError(path, f"sample {own!r}", f"two members .{suffix}", "one of each kind")
        key, text = own, b""
        if suffix in ("txt", "json"):
            file.seek(member.offset_data)
            text = file.read(member.size)
        members[suffix] = member.offset_data, member.size, text
    if members:
        yield key, members


def _members(file: Any, path: str) -> Iterator[tarfile.TarInfo]:
    """All members; `tarfile` itself takes a tar that ends early for one that ends."""
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()
                count += 1
                yield member
            end = tar.offset
        file.seek(end)
        block = file.read(_BLOCK)
    except tarfile.TarError as error:
        found = f"cut short after {count} members" if count else _not_a_tar(file, error)
        raise InputError(path, "tar", found, _WANTED) from None
    if block != bytes(_BLOCK):
        found = "damaged" if len(block) == _BLOCK else "cut short"
        raise InputError(path, "tar", f"{found} after {count} members, at byte {end:,}", _WANTED)


def _not_a_tar(file: Any, error: Exception) -> str:
    file.seek(0)
    start = file.read(6)
    if not start:
        return "an empty file"
    packed = start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"))
    return "a compressed file" if packed else f"no tar ({first_line(error)})"


def _captions(members: _Members) -> list[str]:
    texts: Sequence[Any] = ()
    if "txt" in members:
        with contextlib.suppress(InputError):
            texts = caption_lines(decode_text(members["txt"][2], "", ""))
    else:
        value = {}
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(members["json"][2]) if "json" in members else {}
        written = (value.get("captions") or value.get("caption")) if isinstance(value, dict) else None
        texts = written if isinstance(written, list) else [written]
    return [text for text in texts if isinstance(text, str) and text.strip()]
