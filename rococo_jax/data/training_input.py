"""The training input: batches of NumPy arrays that are a pure function of (data, settings, seed, step).

    global number  g = step * batch_size + place         range
    image          order(g): another permutation in every epoch
    sample         decode, resize, draw a caption, alter it: random by (seed, g)
    process        its rows of a batch: those of its devices
    chunks         of these rows, 64 to 256 each where there are as many; workers or threads make them in turn

Random draws depend on global numbers and not on processes or workers, so the global batch of a step is the same for any
number of either, from the start and resumed: the state of a run is its step. Worker processes use no accelerator.
They hand chunks over in shared memory (`chunk_memory.SharedBuffers`), which holds twice `prefetch` batches of a process
(in the workers' queues and in the buffers they are read into) and three chunks a worker, or less where it has no room.
A thread joins the chunks of the next batch while a batch is used.
"""

import copy
import dataclasses
import functools
import itertools
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grain.python as grain
from absl import flags

from rococo_jax.cores import usable_cores
from rococo_jax.data.chunk_memory import Buffers, SharedBufferReader, SharedRows, use_shared_buffers
from rococo_jax.data.sample_order import derive_seed
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_samples import TEXT_FIELDS, Batch, Chunk, DrawSample, MakeChunk
from rococo_jax.errors import InputError

# More samples than any run draws; Grain's datasets have a length.
_SAMPLES = 2**53
_SOURCE = "training input"
_LEAST_IN_CHUNK, _MOST_IN_CHUNK = 64, 256
_SHARED_MEMORY = "/dev/shm"
# Of the shared memory that is free; other processes of the machine have their own input.
_MOST_OF_SHARED_MEMORY = 0.5
# Chunks of a worker beside those that wait: one in work, one on its way between two buffers, one that is copied out. As
# many as wait in the worker's queue wait once more in the training process, where Grain reads ahead.
_BESIDE_QUEUE, _QUEUES = 3, 2


@dataclasses.dataclass(frozen=True)
class ReadChunk:
    """Makes chunks of a process's `rows`, numbered from step 0 on; `per_batch` of them are its rows of one batch."""

    samples: grain.MapDataset
    make: MakeChunk
    batch_size: int
    rows: tuple[int, ...]
    per_batch: int

    def __call__(self, number: int) -> Chunk:
        """The chunk of a number."""
        step, part = divmod(number, self.per_batch)
        first, end = (each * len(self.rows) // self.per_batch for each in (part, part + 1))
        positions = (step * self.batch_size + row for row in self.rows[first:end])
        return self.make((self.samples[position] for position in positions), end - first)


def chunks_in(rows: int, makers: int) -> int:
    """How many chunks the rows of a batch are made in, for so many workers or threads."""
    chunks = max(1, -(-rows // _MOST_IN_CHUNK), min(makers, rows // _LEAST_IN_CHUNK))
    # A multiple, so that a worker makes the same rows of every batch, which may lie one after the other in a file.
    return -(-chunks // makers) * makers if chunks > makers else chunks


def join_chunks(chunks: Iterator[Chunk], rows: int, count: int, opened: SharedBufferReader, buffers: Buffers) -> Batch:
    """The batch of the next `count` chunks, each copied once; a single one of this process is handed on as it is."""
    first = next(chunks)
    if count == 1 and not any(isinstance(view, SharedRows) for view in first.views.values()):
        return first.arrays | first.views
    joined: Batch = {}
    start = 0
    for number in range(count):
        chunk = next(chunks) if number else first
        end = start + len(chunk.arrays["sample_index"])
        for name, values in (*chunk.arrays.items(), *chunk.views.items()):
            if not values.shape:  # counts have no rows; they are summed
                joined[name] = joined[name] + values if number else values
                continue
            with opened.rows(values) if isinstance(values, SharedRows) else nullcontext(values) as array:
                if not number:
                    joined[name] = buffers.take((rows, *array.shape[1:]), array.dtype)
                joined[name][start:end] = array
        start = end
    return joined


class BatchesAhead:
    """Joins the chunks of one batch in a thread while the batch before it is used."""

    def __init__(self, chunks: grain.DatasetIterator, rows: int, count: int, buffers: Buffers):
        self._chunks, self._opened, self._closing = chunks, SharedBufferReader(), threading.Event()
        until_closed = itertools.takewhile(lambda _: not self._closing.is_set(), chunks)
        self._join = functools.partial(join_chunks, until_closed, rows, count, self._opened, buffers)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next = self._thread.submit(self._join)

    def __next__(self) -> Batch:
        batch = self._next.result()
        self._next = self._thread.submit(self._join)
        return batch

    def close(self) -> None:
        """Ends the thread, after the chunk that it waits for, and the worker processes."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)
        self._chunks.close()
        self._opened.close()


class TrainingInput(Iterator[Batch]):
    """Endless batches from `start_step` on. Made by `make_training_input`.

    Reading and worker processes start with the first batch; `close`, or leaving a `with` block, ends them. `identity`
    decides the order of the data; a state with another identity is refused.
    """

    def __init__(
        self,
        read_chunk: ReadChunk,
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
        """The batch of `next_step`. Raises InputError where an image is broken and `on_decode_error` is `raise`."""
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
        """The state as JSON values: `next_step` and the identity of the order of the data."""
        return {"next_step": self.next_step, **copy.deepcopy(self.identity)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from `get_state`, on any number of processes and workers; InputError where the data's order is
        another.
        """
        refuse_other_order(self.identity, state)
        self.close()
        self.next_step = int(state["next_step"])

    def close(self) -> None:
        """Ends the worker processes. The next batch starts them again."""
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
    """The training input of one process; `training_samples` describes a batch.

    Args:
        draw: makes the samples; its order has the size of the global batch, over all processes, and the seed.
        text_length: tokens of every text; the tokenizer's context length by default.
        text_fields: key of further texts in a sample: name of their arrays in the batch.
        extra_text: transforms that add texts to a sample: `altered_captions` and `altered_valid`, `hard_positive`,
            `hard_negatives`, or others.
        rows: of each global batch, which this process reads; all by default.
        workers: processes that make batches; 0 makes them in threads of this one.
        prefetch: batches made ahead, by all workers together.

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
    per_batch = chunks_in(len(rows), workers or usable_cores())
    read_chunk = ReadChunk(samples, MakeChunk(tokenizer, length, text_fields), order.batch_size, rows, per_batch)
    texts = 1 + len(extra_text)  # at least; texts are small beside pixels
    chunk_bytes = -(-len(rows) // per_batch) * (draw.bytes_of_views + texts * length * 5)
    return TrainingInput(
        read_chunk, draw.identity, workers=workers, prefetch=prefetch, start_step=start_step, chunk_bytes=chunk_bytes
    )


def queue_length(workers: int, ahead: int, chunk_bytes: int) -> int:
    """Chunks that wait in the queue of each worker: `ahead` together, fewer where shared memory has no room.

    Raises InputError where it has no room for a chunk in each queue.
    """
    wanted = max(1, -(-ahead // workers))
    if not Path(_SHARED_MEMORY).is_dir():
        return wanted
    free = _MOST_OF_SHARED_MEMORY * shutil.disk_usage(_SHARED_MEMORY).free
    fits = (int(free / max(workers * chunk_bytes, 1)) - _BESIDE_QUEUE) // _QUEUES
    if fits < 1:
        least = workers * (_QUEUES + _BESIDE_QUEUE) * chunk_bytes
        found = f"{workers}, which hold {least / 1e9:.2f} GB of shared memory"
        raise InputError(
            _SOURCE, "workers", found, f"fewer: half of what {_SHARED_MEMORY} has free is {free / 1e9:.2f} GB"
        )
    return min(wanted, fits)


def refuse_other_order(identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises InputError where a saved state belongs to another order of the data than `identity`."""
    for name, value in identity.items():
        if state.get(name) != value:
            raise InputError(_SOURCE, name, value, f"{state.get(name)}, with which the run began")


def _check_text_length(length: int | None, tokenizer: Tokenizer) -> int:
    spec = tokenizer.spec
    most = spec.fixed_length or spec.context_length
    least = spec.fixed_length or 2
    if length is None:
        return most
    if not least <= length <= most:
        wanted = f"{most}, the tower's fixed length" if least == most else f"{least} to {most}, the tower's context"
        raise InputError(_SOURCE, "text_length", length, wanted)
    return length


def _end_with_parent() -> None:
    """Ends this worker when the process that started it has gone, however that ended."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_worker(worker: int, count: int) -> None:
    """Keeps a worker process off accelerators, and from tokenising in as many threads as there are cores."""
    threading.Thread(target=_end_with_parent, daemon=True, name="parent").start()
    import jax

    jax.config.update("jax_platforms", "cpu")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    use_shared_buffers()
