"""The training input: batches of NumPy arrays that are a pure function of (data, settings, seed, step).

    global number  g = step * batch_size + row
    image          order(g): a different permutation in every epoch
    sample         decode, resize, draw a caption, alter it: random by (seed, g)
    process        reads its rows of a batch: those of its devices
    chunks         64 to 256 of these rows, if there are as many; workers or threads make them in turn

Random draws depend on global numbers, not on processes or workers. The global batch of a step is therefore the same for
any number of either, also after resuming: the state of a run is its step. Worker processes use no accelerator. They
transfer chunks in shared memory (`chunk_memory.SharedBuffers`), which holds `prefetch` batches of a process twice (in
the queues of the workers and in Grain's read-ahead), and three chunks per worker, or less if it has no space. A thread
joins the chunks of the next batch while a batch is used.
"""

import copy
import dataclasses
import functools
import itertools
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import grain.python as grain
import numpy as np
from absl import flags

from rococo_jax.cores import usable_cores
from rococo_jax.data.chunk_memory import Buffers, SharedBufferReader, SharedRows, use_shared_buffers
from rococo_jax.data.sample_order import derive_seed
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_samples import TEXT_FIELDS, Batch, Chunk, DrawSample, MakeChunk
from rococo_jax.errors import InputError

# Grain's datasets have a length; no run draws as many samples as this.
_SAMPLES = 2**53
_SOURCE = "training input"
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 64, 256
_SHARED_MEMORY = "/dev/shm"
# The share of the free shared memory that one process may use; other processes of the machine need the rest.
_MAX_SHARE = 0.5
# Chunks per worker in flight besides the queue: being made, in transit, being copied.
_CHUNKS_IN_FLIGHT = 3
# Chunks wait in the queue of the worker, and as many again in Grain's read-ahead in the training process.
_QUEUES = 2


@runtime_checkable
class ChunkReader(Protocol):
    """Function that makes the chunks of a process's `rows`; `per_batch` chunks are its rows of one batch."""

    @property
    def rows(self) -> Sized: ...

    @property
    def per_batch(self) -> int: ...

    def __call__(self, number: int) -> Chunk: ...


@dataclasses.dataclass(frozen=True)
class ReadChunk:
    """Make the chunks of a process's `rows`, numbered from step 0; `per_batch` chunks are its rows of one batch."""

    samples: grain.MapDataset
    make: MakeChunk
    batch_size: int
    rows: tuple[int, ...]
    per_batch: int

    def __call__(self, number: int) -> Chunk:
        """Return chunk `number`."""
        step, chunk_of_batch = divmod(number, self.per_batch)
        first = chunk_of_batch * len(self.rows) // self.per_batch
        end = (chunk_of_batch + 1) * len(self.rows) // self.per_batch
        positions = (step * self.batch_size + row for row in self.rows[first:end])
        return self.make((self.samples[position] for position in positions), end - first)


def chunks_per_batch(rows: int, workers: int) -> int:
    """Return the number of chunks into which the rows of a batch are divided for this many workers or threads."""
    chunks = max(1, -(-rows // _MAX_CHUNK_ROWS), min(workers, rows // _MIN_CHUNK_ROWS))
    if chunks <= workers:
        return chunks
    # A multiple of the workers, so that a worker makes the same rows of every batch, which may be adjacent in a file.
    return -(-chunks // workers) * workers


def join_chunks(chunks: Iterator[Chunk], rows: int, count: int, reader: SharedBufferReader, buffers: Buffers) -> Batch:
    """Join the next `count` chunks to a batch, copying each once; a single chunk of this process is not copied."""
    first = next(chunks)
    if count == 1 and not any(isinstance(view, SharedRows) for view in first.views.values()):
        return first.arrays | first.views
    joined: Batch = {}
    start = 0
    for number in range(count):
        chunk = next(chunks) if number else first
        end = start + len(chunk.arrays["sample_index"])
        for name, values in (*chunk.arrays.items(), *chunk.views.items()):
            if not values.shape:  # counts are summed
                joined[name] = joined[name] + values if number else values
                continue
            # Copied in a function of its own, whose end deletes the array: an error in `next(chunks)` holds this frame,
            # and memory cannot be unmapped while an array of it exists.
            joined[name] = _copy_rows(values, joined.get(name), rows, slice(start, end), reader, buffers)
        start = end
    return joined


def _copy_rows(
    values: np.ndarray | SharedRows,
    joined: np.ndarray | None,
    rows: int,
    place: slice,
    reader: SharedBufferReader,
    buffers: Buffers,
) -> np.ndarray:
    """Copy the values of a chunk to their place among `rows`, and return these; new ones for None."""
    with reader.rows(values) if isinstance(values, SharedRows) else nullcontext(values) as array:
        if joined is None:
            joined = buffers.take((rows, *array.shape[1:]), array.dtype)
        joined[place] = array
    return joined


class BatchesAhead:
    """Join the chunks of one batch in a thread while the previous batch is used."""

    def __init__(self, chunks: grain.DatasetIterator, rows: int, count: int, buffers: Buffers):
        self._chunks, self._reader, self._closing = chunks, SharedBufferReader(), threading.Event()
        until_closed = itertools.takewhile(lambda _: not self._closing.is_set(), chunks)
        self._join = functools.partial(join_chunks, until_closed, rows, count, self._reader, buffers)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next = self._thread.submit(self._join)

    def __next__(self) -> Batch:
        batch = self._next.result()
        self._next = self._thread.submit(self._join)
        return batch

    def close(self) -> None:
        """End the thread, after the chunk that it waits for, and the worker processes."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)
        self._chunks.close()
        self._reader.close()


class TrainingInput(Iterator[Batch]):
    """Endless batches from `start_step` on, created by `make_training_input`.

    Reading and worker processes start with the first batch; `close`, or leaving a `with` block, ends them. `identity`
    is everything that determines the order of the data; a state with another identity is refused.
    """

    def __init__(
        self,
        read_chunk: ChunkReader,
        identity: Mapping[str, Any],
        *,
        workers: int = 0,
        prefetch: int = 2,
        start_step: int = 0,
        chunk_bytes: int = 0,
    ):
        self.identity = dict(identity)
        self.next_step = start_step
        self._read_chunk, self._workers, self._prefetch = read_chunk, workers, prefetch
        self._chunk_bytes, self._buffers = chunk_bytes, Buffers()
        self._ahead: BatchesAhead | None = None

    def __next__(self) -> Batch:
        """Return the batch of `next_step`. Raises InputError: an image is broken and `on_decode_error` is `raise`."""
        if self._ahead is None:
            rows, chunks = len(self._read_chunk.rows), self._read_chunk.per_batch
            self._ahead = BatchesAhead(iter(self._from(self.next_step)), rows, chunks, self._buffers)
        batch = next(self._ahead)
        self.next_step += 1
        return batch

    def _from(self, step: int) -> grain.IterDataset:
        ahead = self._prefetch * self._read_chunk.per_batch
        chunks = grain.MapDataset.range(_SAMPLES)[step * self._read_chunk.per_batch :].map(self._read_chunk)
        if not self._workers:
            return chunks.to_iter_dataset(grain.ReadOptions(min(ahead, usable_cores()), ahead))
        if not flags.FLAGS.is_parsed():  # Grain reads absl's flags, which must be parsed
            flags.FLAGS.mark_as_parsed()
        queue = queue_length(self._workers, ahead, self._chunk_bytes)
        options = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=queue)
        return chunks.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(options, worker_init_fn=_start_worker)

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON values: `next_step` and the identity of the order of the data."""
        return {"next_step": self.next_step, **copy.deepcopy(self.identity)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume from `get_state`, on any number of processes and workers.

        Raises InputError: the state belongs to another order of the data.
        """
        refuse_other_order(self.identity, state)
        self.close()
        self.next_step = int(state["next_step"])

    def close(self) -> None:
        """End the worker processes. The next batch starts them again."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self) -> "TrainingInput":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_training_input(
    draw: DrawSample,
    tokenizer: Tokenizer,
    *,
    text_length: int | None = None,
    text_fields: Mapping[str, str] = TEXT_FIELDS,
    extra_text: Sequence[grain.MapTransform | grain.RandomMapTransform] = (),
    rows: Sequence[int] | None = None,
    start_step: int = 0,
    workers: int = 0,
    prefetch: int = 2,
) -> TrainingInput:
    """Create the training input of one process; `training_samples` describes a batch.

    Args:
        draw: makes the samples; its order has the size of the global batch, over all processes, and the seed.
        text_length: number of tokens of every text; the tokenizer's context length by default.
        text_fields: maps the key of further texts in a sample to the name of their arrays in the batch.
        extra_text: transforms that add texts to a sample: `altered_captions` and `altered_valid`, `hard_positive`,
            `hard_negatives`, or others.
        rows: the rows of each global batch that this process reads; all by default.
        workers: number of processes that make batches; with 0, threads of this process make them.
        prefetch: number of batches made ahead, by all workers together.

    Raises:
        InputError: the text length does not fit the tokenizer.
    """
    order, seed = draw.order, draw.order.seed
    samples = grain.MapDataset.range(_SAMPLES).random_map(draw, seed=derive_seed(seed, "samples"))
    for number, transform in enumerate(extra_text):
        if isinstance(transform, grain.RandomMapTransform):
            samples = samples.random_map(transform, seed=derive_seed(seed, "extra text", number))
        else:
            samples = samples.map(transform)
    length = _check_text_length(text_length, tokenizer)
    rows = tuple(range(order.batch_size) if rows is None else map(int, rows))
    per_batch = chunks_per_batch(len(rows), workers or usable_cores())
    read_chunk = ReadChunk(samples, MakeChunk(tokenizer, length, text_fields), order.batch_size, rows, per_batch)
    texts = 1 + len(extra_text)  # at least; texts are small beside pixels
    chunk_bytes = -(-len(rows) // per_batch) * (draw.bytes_of_views + texts * length * 5)
    return TrainingInput(
        read_chunk, draw.identity, workers=workers, prefetch=prefetch, start_step=start_step, chunk_bytes=chunk_bytes
    )


def queue_length(workers: int, ahead: int, chunk_bytes: int) -> int:
    """Return the length of each worker's queue: `ahead` chunks in all queues, or fewer if shared memory is short.

    Raises InputError: the shared memory has no space for one chunk per queue.
    """
    length = max(1, -(-ahead // workers))
    if not Path(_SHARED_MEMORY).is_dir():
        return length
    free = _MAX_SHARE * shutil.disk_usage(_SHARED_MEMORY).free
    max_length = (int(free / max(workers * chunk_bytes, 1)) - _CHUNKS_IN_FLIGHT) // _QUEUES
    if max_length < 1:
        required = workers * (_QUEUES + _CHUNKS_IN_FLIGHT) * chunk_bytes
        problem = f"{workers}, which hold {required / 1e9:.2f} GB of shared memory"
        expected = f"fewer: half of what {_SHARED_MEMORY} has free is {free / 1e9:.2f} GB"
        raise InputError(_SOURCE, "workers", problem, expected)
    return min(length, max_length)


def refuse_other_order(identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raise InputError if a saved state belongs to another order of the data than `identity`."""
    for name, value in identity.items():
        if state.get(name) != value:
            raise InputError(_SOURCE, name, value, f"{state.get(name)}, with which the run began")


def _check_text_length(length: int | None, tokenizer: Tokenizer) -> int:
    spec = tokenizer.spec
    max_length = spec.fixed_length or spec.context_length
    min_length = spec.fixed_length or 2
    if length is None:
        return max_length
    if not min_length <= length <= max_length:
        expected = f"{min_length} to {max_length}, the tower's context"
        if min_length == max_length:
            expected = f"{max_length}, the tower's fixed length"
        raise InputError(_SOURCE, "text_length", length, expected)
    return length


def _end_with_parent() -> None:
    """End this worker when the process that started it has ended, for whatever reason."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_worker(worker: int, count: int) -> None:
    """Prepare a worker process: no accelerators, one thread for tokenising, and shared buffers."""
    threading.Thread(target=_end_with_parent, daemon=True, name="parent").start()
    import jax

    jax.config.update("jax_platforms", "cpu")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    use_shared_buffers()
