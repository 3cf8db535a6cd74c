"""The index of a tar in the WebDataset format: where each sample (`tar_samples`) lies, and its captions.

An index is an Arrow file with one record batch: name, offset and size of each image, its captions, its SHA-256, and a
checksum by which `tar_pairs` verifies at each read that the bytes are those that were indexed; about 200 bytes per
sample. It lies beside its tar as `.NAME.tar.index.arrow`, or in the cache folder if the tar's folder is not writable,
or in memory if neither is. An index of captions that the user chooses has their key in its name.

An index is valid for the contents of its tar. It records the state of the tar when it was read (`file_state`); a tar in
another state is read again, unless the cache folder knows its contents in that state (`content_hashes`). Indexes are
written one by one, so an interrupted run resumes, and several processes can share the work.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.cores import usable_cores
from rococo_jax.data.content_hashes import HashTable
from rococo_jax.data.file_state import FileState, file_state, is_unchanged
from rococo_jax.data.tar_samples import EXPECTED, SCHEMA, read_tar
from rococo_jax.data.verified_files import append_digest, map_content, map_verified
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_json, is_url, remove_old, temporary_files

FORMAT = "rococo_jax.tar_index 6"
# Starting processes takes longer than reading fewer bytes.
_BYTES_WORTH_PROCESSES = 2 * 10**9
# The file of an index, or its content if it can be stored nowhere.
Index = Path | bytes


class _Tar(NamedTuple):
    """A tar that needs an index.

    Attributes:
        path: of the tar, or its URL.
        state: of the file when it was opened.
        opened_at: the time of that.
        caption: key of the captions (`tar_samples.read_tar`).
    """

    path: str
    state: FileState
    opened_at: float
    caption: str


def open_indexes(
    tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None, caption: str = ""
) -> tuple[Index, ...]:
    """Return the index of each tar; tars without a valid one are read.

    Args:
        on_progress: called with the number of tars that are done since the last call.
        caption: key of the captions (`tar_samples.read_tar`).

    Raises InputError: a tar is missing, truncated, compressed or damaged, or changes while it is read.
    """
    opened_at = time.time()
    opened = [_Tar(tar, file_state(tar, EXPECTED), opened_at, caption) for tar in tars]
    indexes = {row: index for row, tar in enumerate(opened) if (index := _find_index(tar)) is not None}
    on_progress(len(indexes))
    missing = [row for row in range(len(opened)) if row not in indexes]
    # Processes that share the work begin at different tars.
    turn = os.getpid() % len(missing) if missing else 0
    missing = missing[turn:] + missing[:turn]
    is_large = sum(opened[row].state.size for row in missing) >= _BYTES_WORTH_PROCESSES and len(missing) > 1
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) if is_large else contextlib.nullcontext() as pool:
        results = (pool.map if is_large else map)(_make_index, [opened[row] for row in missing])
        for row, index in zip(missing, results, strict=True):
            indexes[row] = index
            on_progress(1)
    for row in missing:
        if file_state(opened[row].path, EXPECTED) != opened[row].state:
            raise InputError(opened[row].path, "tar", "changed while it was read", "a tar that nothing writes to")
    if any(isinstance(index, bytes) for index in indexes.values()):
        say(
            f"{tars[0]}: neither its folder nor {cache_folder()} is writable, so each start reads the tars again; "
            "set ROCOCO_CACHE to a folder that can be written"
        )
    return tuple(indexes[row] for row in range(len(opened)))


def columns_of(index: Index) -> dict[str, pa.Array]:
    """Return the columns of an index, with a row for each sample, by their names in `tar_samples.SCHEMA`."""
    batch = _open(index if isinstance(index, bytes) else map_content(index)).get_batch(0)
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def read_summary(index: Index) -> dict[str, Any]:
    """Return what an index says of its tar as a whole.

    These are the number of `samples` and `captions`, their `hash`, the `content` hash of the tar (`read_tar`), the
    numbers of samples that were skipped (`no_image`, `no_caption`), and the name of the `first` of these.
    """
    return _summary_of(_open(index if isinstance(index, bytes) else map_content(index)))


def _open(content: bytes | memoryview) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.py_buffer(content))


def _summary_of(reader: pa.ipc.RecordBatchFileReader) -> dict[str, Any]:
    return json.loads(reader.schema.metadata[b"tar"])


def _verified_summary(place: Path) -> dict[str, Any] | None:
    """Return the summary of an index file, or None if there is none, it is damaged, or it has another format."""
    content = map_verified(place)
    if content is None:
        return None
    try:
        summary = _summary_of(_open(content))
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError):
        return None
    return summary if summary.get("format") == FORMAT else None


def _places(tar: _Tar) -> list[Path]:
    """Return where the index of a tar may lie, the preferred place first."""
    location = tar.path if is_url(tar.path) else str(Path(tar.path).absolute())
    key = f".{hash_json(tar.caption)[:8]}" if tar.caption else ""
    name = f".{location.rpartition('/')[2]}{key}.index.arrow"
    in_cache = cache_folder() / "tar_indexes" / hash_json(location)[:16] / name
    return [in_cache] if is_url(tar.path) else [Path(tar.path).parent / name, in_cache]


def _hash_table(tar: _Tar) -> HashTable:
    location = tar.path if is_url(tar.path) else str(Path(tar.path).absolute())
    return HashTable([f"{location}?caption={tar.caption}" if tar.caption else location])


def _find_index(tar: _Tar) -> Path | None:
    """Return the index of a tar that is valid for its contents, or None if the tar has to be read."""
    known_content = None
    for place in _places(tar):
        summary = _verified_summary(place)
        if summary is None:
            continue
        if is_unchanged(summary["state"], summary["settled"], summary["read_at"], tar.state, tar.opened_at):
            return place
        if known_content is None:
            table = _hash_table(tar)
            table.load()
            (known_content,) = table.lookup([tar.state])
        if summary["content"] == known_content:
            return place
    return None


def _make_index(tar: _Tar) -> Index:
    """Read a tar and write its index, unless another process has done so meanwhile."""
    index = _find_index(tar)
    if index is not None:
        return index
    tar.state.wait_until_settled()
    read_at = time.time()
    is_settled = tar.state.is_settled(read_at)
    batch = read_tar(tar.path, tar.caption)
    summary = {"format": FORMAT, "samples": batch.num_rows, **json.loads(batch.schema.metadata[b"tar"])}
    table = _hash_table(tar)
    if is_settled:
        table.put(0, tar.state, summary["content"])
        if table.save():
            # An index of the same contents stays as it is: another machine may have recorded another state.
            for place in _places(tar):
                existing = _verified_summary(place)
                if existing is not None and existing["content"] == summary["content"]:
                    return place
    summary |= {"state": tar.state.to_json(), "settled": is_settled, "read_at": 0.0 if is_settled else read_at}
    return _write(tar, batch, summary)


def _write(tar: _Tar, batch: pa.RecordBatch, summary: dict[str, Any]) -> Index:
    """Write an index to the first writable place; return the place, or the content if there is none."""
    schema = SCHEMA.with_metadata({"tar": json.dumps(summary)})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_file(stream, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    content = stream.getvalue().to_pybytes()
    for place in _places(tar):
        if _is_writable(place.parent):
            remove_old(temporary_files(place))
            with contextlib.suppress(OSError):
                with atomic_write(place) as temporary:
                    temporary.write_bytes(content)
                    append_digest(temporary, place.name)
                return place
    return content


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
