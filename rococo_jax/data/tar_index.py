"""The index of a set of tars in WebDataset's form: where every sample (`tar_samples`) lies, and its captions.

The index is an Arrow file with a record batch for each tar: name, offset and size of each image, its captions, and a
digest of the image by which `tar_pairs` knows at each read that the bytes are those that were indexed; about 170 bytes
a sample. It lies beside the tars, as `rococo-index-HASH.arrow`, or in the cache folder where nothing can be written
there, or in memory where that cannot be written either.

Every tar is read once, whole. It is read again as soon as its state (`file_state`) is not the one that the index has
of it, so an index never gives the captions of another tar, whatever its name, size and time of modification. A part is
kept for each tar until all are there, so that an interrupted run resumes, and several processes share the work.
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
from rococo_jax.data.file_state import FileState, file_state, is_unchanged
from rococo_jax.data.tar_samples import SCHEMA, WANTED, read_tar
from rococo_jax.data.verified_files import append_digest, map_content, map_verified
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import atomic_write, hash_json, is_url

FORMAT = "rococo_jax.tar_index 4"
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

    def is_described_by(self, about: dict[str, Any]) -> bool:
        """Return whether an entry of an index is of this tar as it is now."""
        recorded, settled, read_at = about["state"], about["settled"], about["read_at"]
        return about["tar"] == self.name and is_unchanged(recorded, settled, read_at, self.state, self.opened_at)


def open_index(tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None) -> Path | bytes:
    """Return the index of these tars, which is made where there is none, or a tar has changed.

    Args:
        on_progress: is called with the number of tars read since the last call.

    Returns:
        The file, or its content where it can be kept nowhere.

    Raises InputError: a tar is missing, cut short, compressed or damaged, or changes while it is read.
    """
    opened_at, names = time.time(), _names(tars)
    sources = [_Source(tar, name, file_state(tar, WANTED), opened_at) for tar, name in zip(tars, names, strict=True)]
    places = _places(tars, names)
    known: dict[int, pa.RecordBatch] = {}
    for place in places:
        known = max(known, _known_batches(place, sources), key=len)
        if len(known) == len(sources):
            return place
    writable = (place for place in places if _is_writable(place.parent))
    index = next(writable, None)
    batches = _read_missing(sources, known, index, on_progress)
    if index is not None:
        with contextlib.suppress(OSError):
            with atomic_write(index) as temporary:
                _write(temporary, batches)
                append_digest(temporary, index.name)
            shutil.rmtree(_parts_of(index), ignore_errors=True)
            return index
    say(
        f"{tars[0]}: the index of these tars cannot be kept beside them or in {places[-1].parent}, so each start reads "
        "them again; set ROCOCO_CACHE to a folder that can be written"
    )
    content = pa.BufferOutputStream()
    _write(content, batches)
    return content.getvalue().to_pybytes()


def open_batches(index: Path | bytes) -> pa.ipc.RecordBatchFileReader:
    """Return the record batches of an index, one for each tar."""
    return pa.ipc.open_file(pa.py_buffer(index if isinstance(index, bytes) else map_content(index)))


def about_tars(reader: pa.ipc.RecordBatchFileReader) -> list[dict[str, Any]]:
    """Name, samples, captions and hash of each tar, how many samples were left out (`no_image`, `no_caption`), the
    first of them, and the state of the file that was read.
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


def _known_batches(index: Path, sources: Sequence[_Source]) -> dict[int, pa.RecordBatch]:
    """The batches of an index, or of a part of one, that are of these tars as they are now; by number of the tar."""
    content = map_verified(index)
    if content is None:
        return {}
    try:
        reader = pa.ipc.open_file(pa.py_buffer(content))
        entries = {about["tar"]: (number, about) for number, about in enumerate(about_tars(reader))}
        known = {}
        for number, source in enumerate(sources):
            place, about = entries.get(source.name, (0, None))
            if about is not None and source.is_described_by(about):
                known[number] = _described(reader.get_batch(place), about)
        return known
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError):  # of another format
        return {}


def _read_missing(
    sources: Sequence[_Source],
    known: dict[int, pa.RecordBatch],
    index: Path | None,
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
    if index is not None and len(known) < len(sources):  # another process has joined the parts
        known |= _known_batches(index, sources)
    return [known[number] if number in known else _read_now(source) for number, source in enumerate(sources)]


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
    batch = _known_batches(part, [source]).get(0)
    if batch is None:
        batch = _read_now(source)
        if part.parent.is_dir():
            with contextlib.suppress(OSError), atomic_write(part) as temporary:  # without it, the batch is at hand
                _write(temporary, [batch])
                append_digest(temporary, part.name)
    return batch


def _read_now(source: _Source) -> pa.RecordBatch:
    source.state.wait_until_settled()
    read_at = time.time()
    batch = read_tar(source.path)
    if file_state(source.path, WANTED).to_json() != source.state.to_json():
        raise InputError(source.path, "tar", "changed while it was read", "a tar that nothing writes to")
    about = {
        "tar": source.name,
        "state": source.state.to_json(),
        "settled": source.state.is_settled(read_at),
        "read_at": read_at,
        "samples": batch.num_rows,
        **json.loads(batch.schema.metadata[b"tar"]),
    }
    return _described(batch, about)


def _described(batch: pa.RecordBatch, about: dict[str, Any]) -> pa.RecordBatch:
    return batch.replace_schema_metadata({"tar": json.dumps(about)})


def _write(target: Path | pa.NativeFile, batches: Sequence[pa.RecordBatch]) -> None:
    about = [json.loads(batch.schema.metadata[b"tar"]) for batch in batches]
    schema = SCHEMA.with_metadata({"tars": json.dumps(about)})
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(str(target), "wb")) if isinstance(target, Path) else target
        writer = stack.enter_context(pa.ipc.new_file(file, schema))
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
