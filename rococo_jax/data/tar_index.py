"""The index of a tar in the WebDataset format: where each sample (`tar_samples`) lies, and its captions.

An index is an Arrow file with one record batch: name, offset and size of each image, its captions, its SHA-256, and a
checksum by which `tar_pairs` verifies at each read that the bytes are those that were indexed; about 200 bytes per
sample. It is remembered (`remember`) beside its tar as `.NAME.tar.index.arrow`, or in the cache folder if the tar's
folder is not writable, or in memory if neither is. An index of captions that the user chooses has their key in its
name.

Indexes are written one by one, so an interrupted run resumes, and several processes can share the work.
"""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from io import BufferedIOBase
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from rococo_jax.cores import usable_cores
from rococo_jax.data.file_state import FileState, file_state
from rococo_jax.data.remember import Kind, find_remembered, map_content, remembered
from rococo_jax.data.tar_samples import EXPECTED, read_tar
from rococo_jax.progress import say
from rococo_jax.runtime import cache_folder

_INDEX = Kind("tar_indexes", ".index.arrow", 7, is_beside=True)
# Starting processes takes longer than reading fewer bytes.
_BYTES_WORTH_PROCESSES = 2 * 10**9
# The file of an index, or its content if it can be stored nowhere.
Index = Path | bytes


def open_indexes(
    tars: Sequence[str], on_progress: Callable[[int], None] = lambda count: None, caption: str = ""
) -> tuple[Index, ...]:
    """Return the index of each tar; tars without a valid one are read.

    Args:
        on_progress: called with the number of tars that are done since the last call.
        caption: key of the captions (`tar_samples.read_tar`).

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
    """Return the columns of an index, with a row for each sample, by their names in `tar_samples.SCHEMA`."""
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
