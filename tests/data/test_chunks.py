"""Batches are joined from chunks in memory that is used again, shared with worker processes within a bound."""

import gc
import itertools
import pickle
import threading
import types
from multiprocessing.shared_memory import SharedMemory

import grain.python as grain
import jax
import numpy as np
import pytest

from rococo_jax.data import training_input
from rococo_jax.data.augmentation import Augmentation
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.chunk_memory import Buffers, SharedBufferReader, SharedBuffers
from tests.support.refusals import refused
from tests.support.training_pairs import assert_same_batches, take, texts_to_alter, tiny_input, write_pairs


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_pairs(*write_pairs(tmp_path_factory.mktemp("pairs"), 30))


@pytest.mark.slow
def test_worker_processes_give_the_same_batches_and_release_their_memory(source):
    workers, prefetch = 2, 2
    choices = {"extra_text": [texts_to_alter()], "augmentation": Augmentation(crop_scale=(0.5, 1.0)), "start_step": 3}
    alone = take(tiny_input(source, **choices), 9)
    with tiny_input(source, workers=workers, prefetch=prefetch, **choices) as made:
        assert_same_batches([next(made) for _ in range(9)], alone)
        buffers = list(made._ahead._reader._buffers)
    # Used again: in a worker's queue and in the buffer it is read into, one in work, one on its way, one being copied.
    assert 1 <= len(buffers) <= workers * (2 * (prefetch // workers) + 3)
    for buffer in buffers:
        with pytest.raises(FileNotFoundError):
            SharedMemory(buffer)


def test_slots_of_shared_memory_keep_their_contents_until_they_are_copied():
    buffers, opened = SharedBuffers(), SharedBufferReader()
    taken = [buffers.take((rows, 2, 3)) for rows in (4, 3, 4)]
    for number, (array, _) in enumerate(taken):
        array[:] = number
    for number, (_, sent) in enumerate(taken):
        with opened.rows(pickle.loads(pickle.dumps(sent))) as array:
            assert array.shape == sent.shape and (array == number).all()
    names = {sent.buffer for _, sent in taken}
    again = [buffers.take((4, 2, 3))[1].buffer for _ in range(4)]
    assert len(names) == 3 and names < set(again) and len(set(again)) == 4
    del array, taken
    opened.close()
    assert buffers.take((2**22,))[1].buffer not in again  # too large for any


def test_closing_an_input_within_a_batch_unmaps_the_memory_of_earlier_chunks():
    """The error that ends the batch holds the frame that was joining it."""
    memory = SharedBuffers()
    pixels, sent = memory.take((2, 3))
    pixels[:] = 1
    first = types.SimpleNamespace(arrays={"sample_index": np.arange(2)}, views={"pixels": sent})
    chunks = grain.MapDataset.source([first]).to_iter_dataset(grain.ReadOptions(0, 0))
    ahead = training_input.BatchesAhead(iter(chunks), 4, 2, Buffers())
    with pytest.raises(StopIteration):
        next(ahead)
    del pixels
    ahead.close()


def test_the_memory_of_a_batch_is_reused_when_nobody_reads_it():
    """JAX's arrays on CPUs lie in the memory of a batch, and keep it; so does any view of any view."""
    buffers = Buffers()
    rows = buffers.take((8, 64), np.uint8)
    rows[:] = np.arange(8, dtype=np.uint8)[:, None]
    place, expected = rows.ctypes.data, rows[4:].copy()
    on_device = jax.device_put(rows[4:])
    assert on_device.unsafe_buffer_pointer() == place + 4 * 64  # else this would prove nothing
    held = [rows.reshape(4, 2, 64)[2:].reshape(4, 64), on_device]
    del rows, on_device
    while held:
        other = buffers.take((8, 64), np.uint8)
        assert other.ctypes.data != place
        other[:] = 99
        for each in held:
            np.testing.assert_array_equal(each, expected)
        del other, each
        held.pop(0)
    gc.collect()
    assert place in {each.ctypes.data for each in [buffers.take((8, 64), np.uint8) for _ in range(4)]}


def test_batches_are_joined_outside_of_the_main_thread_in_reused_memory(source, monkeypatch):
    join, threads, memories = training_input.join_chunks, set(), []

    def recorded(*given):
        batch = join(*given)
        threads.add(threading.current_thread())
        memories.append(batch["pixels"].base.base.obj)  # the memory below the array, which does not keep the array
        return batch

    monkeypatch.setattr(training_input, "join_chunks", recorded)
    monkeypatch.setattr(training_input, "_MAX_CHUNK_ROWS", 3)
    made = tiny_input(source, batch_size=14)
    for _ in range(12):
        next(made)
    assert threading.main_thread() not in threads
    # One in use, one being filled.
    assert len(memories) >= 12 and len(set(map(id, memories))) <= 2


@pytest.mark.parametrize("prefetch", [0, 2])
def test_chunks_are_joined_to_the_same_batches(source, prefetch, monkeypatch):
    choices = {"extra_text": [texts_to_alter()], "batch_size": 14, "rows": range(7, 14)}
    whole = take(tiny_input(source, **choices), 3)
    monkeypatch.setattr(training_input, "_MAX_CHUNK_ROWS", 3)  # seven rows in chunks of two and three
    cut = tiny_input(source, prefetch=prefetch, **choices)
    assert cut._read_chunk.per_batch >= 3
    assert_same_batches(take(cut, 3), whole)


def test_chunks_have_64_to_256_rows_if_the_batch_has_enough():
    for rows, makers in itertools.product((1, 63, 64, 200, 509, 4096, 32768), (1, 2, 16, 200)):
        chunks = training_input.chunks_per_batch(rows, makers)
        assert rows / chunks <= 256 and (rows / chunks >= 64 or chunks == 1)
        assert chunks >= min(makers, rows // 64) and (chunks <= makers or chunks % makers == 0)


def test_the_size_of_shared_memory_limits_what_workers_prepare(monkeypatch):
    monkeypatch.setattr(training_input.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=2 * 10**9))
    monkeypatch.setattr(training_input.Path, "is_dir", lambda path: True)
    # Half of 2 GB, for 4 workers: 12 chunks each where a chunk is 20 MB, of which 3 wait nowhere and the others twice.
    lengths = [
        training_input.queue_length(4, *each) for each in ((100, 20_000_000), (10, 20_000_000), (10, 50_000_000))
    ]
    assert lengths == [4, 3, 1]
    too_large = "workers: found 4, which hold 2.00 GB of shared memory; wanted fewer: half"
    refused(too_large, training_input.queue_length, 4, 10, 100_000_000)
