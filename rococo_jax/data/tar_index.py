"""The index of a set of tars in WebDataset's form: where every sample (`tar_samples`) lies, and its captions.

The index is an Arrow file with a record batch for each tar: name, offset and size of each image, its captions, and a
digest of the image by which `tar_pairs` knows at each read that the bytes are those that were indexed; about 170 bytes
a sample. It lies beside the tars, as `rococo-index-HASH.arrow`, or in the cache folder where nothing can be written
there, or in memory where that cannot be written either. The same tars have the same index, byte for byte.

An entry counts for a tar of the same contents, whatever its name, size and time of modification. Tars are read once,
whole: the hashes of their contents are kept in the cache folder (`content_hashes`) until a tar changes. A part is kept
for each tar until all are there, so that an interrupted run resumes, and several processes share the work.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rococo_jax.cores import usable_cores
from rococo_jax.data.content_hashes import KeptHashes
from rococo_jax.data.file_state import FileState, file_state, is_unchanged, local_state
from rococo_jax.data.tar_samples import SCHEMA, WANTED, read_tar
from rococo_jax.data.verified_files import append_digest, map_content, map_verified
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import atomic_write, hash_json, is_url

FORMAT = "rococo_jax.tar_index 4"
# What an index has of each tar, and what a part has beside it: when, and in which state, its tar was read.
_OF_INDEX = ("tar", "content", "hash", "samples", "captions", "no_image", "no_caption", "first")
_OF_PARTS = ("state", "settled", "read_at")
# Below, starting processes takes longer than reading.
_BYTES_WORTH_PROCESSES = 2 * 10**9


class _Source(NamedTuple):
    """A tar that is to be indexed.

    Attributes:
        path: of the tar, or its URL.
        name: in the index, relative to the folder of the first tar.
        state: of the file when it was opened.
        opened_at: when that was.
    """

    path: str
    name: str
    state: FileState
    opened_at: float


def open_index(tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None) -> Path | bytes:
    """Return the index of these tars, which is made where there is none, or a tar has changed.

    Args:
        on_progress: is called with the number of tars read since the last call.

    Returns:
        The file, or its content where it can be kept nowhere.

    Raises InputError: a tar is missing, cut short, compressed or damaged, or changes while it is read.
    """
    opened_at, names = time.time(), _names(tars)
    states = [file_state(tar, WANTED) for tar in tars]
    sources = [_Source(*each, opened_at) for each in zip(tars, names, states, strict=True)]
    kept = KeptHashes([tar if is_url(tar) else str(Path(tar).absolute()) for tar in tars], states)
    places = _places(tars, names)
    versions = {place: _version_of(place) for place in places}
    known: dict[int, pa.RecordBatch] = {}
    for place in places:
        known = max(known, _known_batches(place, sources, kept.contents), key=len)
        if len(known) == len(sources):
            return place
    index = next((place for place in places if _is_writable(place.parent)), None)
    batches = _read_missing(sources, known, index, versions.get(index), on_progress)
    for row, (source, batch) in enumerate(zip(sources, batches, strict=True)):
        if file_state(source.path, WANTED) != source.state:
            raise InputError(source.path, "tar", "changed while it was read", "a tar that nothing writes to")
        about = _about(batch)
        kept.put(row, about["content"], about["settled"])
    is_kept = kept.save()
    is_written = index is not None and _join(index, batches)
    if not (is_kept and is_written):
        say(
            f"{tars[0]}: {kept.file.parents[1]} cannot be written, so each start reads the tars whole; set "
            "ROCOCO_CACHE to a folder that can be written"
        )
    if index is not None and is_written:
        return index
    content = pa.BufferOutputStream()
    _write(content, batches)
    return content.getvalue().to_pybytes()


def _join(index: Path, batches: Sequence[pa.RecordBatch]) -> bool:
    """Write the index and remove its parts; return whether that was possible."""
    try:
        with atomic_write(index) as temporary:
            _write(temporary, batches)
            append_digest(temporary, index.name)
    except OSError:
        return False
    finally:
        shutil.rmtree(_parts_of(index), ignore_errors=True)
    return True


def open_batches(index: Path | bytes) -> pa.ipc.RecordBatchFileReader:
    """Return the record batches of an index, one for each tar."""
    return pa.ipc.open_file(pa.py_buffer(index if isinstance(index, bytes) else map_content(index)))


def about_tars(reader: pa.ipc.RecordBatchFileReader) -> list[dict[str, Any]]:
    """Name, content (`read_tar`), samples, captions and hash of each tar, how many samples were left out (`no_image`,
    `no_caption`), and the first of them.
    """
    return json.loads(reader.schema.metadata[b"tars"])


def _names(tars: Sequence[str]) -> list[str]:
    """Names relative to the folder of the first tar, so that an index stays valid where all are moved together."""
    folder = os.path.dirname(tars[0])  # noqa: PTH120 (a Path would break URLs)
    return [tar if is_url(tar) or is_url(tars[0]) else os.path.relpath(tar, folder or ".") for tar in tars]


def _places(tars: Sequence[str], names: Sequence[str]) -> list[Path]:
    """Where the index may lie, the preferred place first."""
    from rococo_jax.runtime import cache_folder

    name = f"rococo-index-{hash_json([FORMAT, *names])[:12]}.arrow"
    where = tars[0] if is_url(tars[0]) else str(Path(tars[0]).absolute())
    cached = cache_folder() / "tar_indexes" / hash_json(where)[:12] / name
    return [cached] if is_url(tars[0]) else [Path(tars[0]).parent / name, cached]


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _parts_of(index: Path) -> Path:
    return index.with_name(f".{index.name}.parts")


def _known_batches(
    index: Path, sources: Sequence[_Source], contents: Sequence[str | None]
) -> dict[int, pa.RecordBatch]:
    """The batches of an index that are of tars of these contents, by number of the tar."""
    return {
        row: _described(batch, about | {"settled": True})
        for row, (batch, about) in _entries(index, sources).items()
        if about["content"] == contents[row]
    }


def _entries(index: Path, sources: Sequence[_Source]) -> dict[int, tuple[pa.RecordBatch, dict[str, Any]]]:
    """The batches of an index, or of a part of one, under the names of these tars; by number of the tar."""
    content = map_verified(index)
    if content is None:
        return {}
    try:
        reader = pa.ipc.open_file(pa.py_buffer(content))
        entries = {about["tar"]: (reader.get_batch(place), about) for place, about in enumerate(about_tars(reader))}
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError):  # of another format
        return {}
    return {row: entries[source.name] for row, source in enumerate(sources) if source.name in entries}


def _read_missing(
    sources: Sequence[_Source],
    known: dict[int, pa.RecordBatch],
    index: Path | None,
    version: FileState | None,
    on_progress: Callable[[int], None],
) -> list[pa.RecordBatch]:
    """The batches of all tars, in order; those that are not known are read, or found in parts of other processes."""
    missing = [number for number in range(len(sources)) if number not in known]
    # Processes that share the work begin at different places.
    turn = os.getpid() % len(missing) if missing else 0
    missing = missing[turn:] + missing[:turn]
    if index is not None and missing:
        with contextlib.suppress(OSError):
            _parts_of(index).mkdir(exist_ok=True)
    parallel = sum(sources[number].state.size for number in missing) >= _BYTES_WORTH_PROCESSES and len(missing) > 1
    parts = [(sources[number], _part_of(sources[number], index)) for number in missing]
    with ProcessPoolExecutor(usable_cores(), get_context("spawn")) if parallel else contextlib.nullcontext() as pool:
        for number, batch in zip(missing, (pool.map if parallel else map)(_read_part, parts), strict=True):
            if batch is not None:
                known[number] = batch
            on_progress(1)
    if index is not None and len(known) < len(sources) and _version_of(index) != version:
        # Another process has joined the parts since this one began, and made sure that no tar had changed by then.
        for row, (batch, about) in _entries(index, sources).items():
            known.setdefault(row, _described(batch, about | {"settled": True}))
    return [known[number] if number in known else _read_now(source) for number, source in enumerate(sources)]


def _version_of(index: Path) -> FileState | None:
    return local_state(index) if index.is_file() else None


def _part_of(source: _Source, index: Path | None) -> Path | None:
    return index and _parts_of(index) / f"{hash_json([source.name, source.state.to_json()])[:16]}.arrow"


def _read_part(of: tuple[_Source, Path | None]) -> pa.RecordBatch | None:
    """The batch of a tar: a part that another process or an interrupted run has left, or read now.

    None where the folder of the parts is gone, because another process has joined them.
    """
    source, part = of
    if part is None:
        return _read_now(source)
    if not part.parent.is_dir():
        return None
    batch, about = _entries(part, [source]).get(0, (None, {}))
    if batch is None or not is_unchanged(
        about["state"], about["settled"], about["read_at"], source.state, source.opened_at
    ):
        batch = _read_now(source)
        if part.parent.is_dir():
            with contextlib.suppress(OSError), atomic_write(part) as temporary:  # without it, the batch is at hand
                _write(temporary, [batch], also=_OF_PARTS)
                append_digest(temporary, part.name)
        return batch
    return _described(batch, about)


def _read_now(source: _Source) -> pa.RecordBatch:
    source.state.wait_until_settled()
    read_at = time.time()
    batch = read_tar(source.path)
    of_part = {"state": source.state.to_json(), "settled": source.state.is_settled(read_at), "read_at": read_at}
    return _described(batch, {"tar": source.name, "samples": batch.num_rows, **_about(batch), **of_part})


def _about(batch: pa.RecordBatch) -> dict[str, Any]:
    return json.loads(batch.schema.metadata[b"tar"])


def _described(batch: pa.RecordBatch, about: dict[str, Any]) -> pa.RecordBatch:
    return batch.replace_schema_metadata({"tar": json.dumps(about)})


def _write(target: Path | pa.NativeFile, batches: Sequence[pa.RecordBatch], also: Sequence[str] = ()) -> None:
    names = {*_OF_INDEX, *also}
    about = [{name: value for name, value in _about(batch).items() if name in names} for batch in batches]
    schema = SCHEMA.with_metadata({"tars": json.dumps(about)})
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(str(target), "wb")) if isinstance(target, Path) else target
        writer = stack.enter_context(pa.ipc.new_file(file, schema))
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
