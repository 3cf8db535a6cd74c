"""Check that processes with different rows run the same programs in the same order."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rococo_jax.encoders import device_steps
from rococo_jax.encoders.device_steps import StepBatch, synchronised_batches


def rows(first: int, count: int, length: int, unit: int = 4) -> StepBatch:
    return StepBatch(np.arange(first, first + count), (np.full((count, length), first),), unit, length)


@pytest.fixture
def two_processes(monkeypatch):
    """Run a function as each of two processes, whose `gather` is an exchange between two threads."""
    meeting, values, thread_data = threading.Barrier(2, timeout=20), [None, None], threading.local()

    def gather(title, compute):
        values[thread_data.number] = compute()
        meeting.wait()
        both = list(values)
        meeting.wait()
        return both

    def run(function):
        def alone(number):
            thread_data.number = number
            return function(number)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(alone, range(2)))

    monkeypatch.setattr(device_steps, "gather", gather)
    return run


BATCHES = (
    [rows(0, 8, 16), rows(8, 5, 16), rows(13, 2, 48)],
    [rows(100, 3, 24), rows(103, 4, 48, unit=2), rows(107, 1, 48)],
)


@pytest.mark.parametrize("batches", [BATCHES, BATCHES[::-1], (BATCHES[0], []), ([], [])])
def test_all_processes_take_the_same_shapes_in_the_same_order_and_their_rows_once(two_processes, batches):
    steps_of_processes = two_processes(lambda process: list(synchronised_batches("model", iter(batches[process]))))
    first, second = (
        [(each.unit, each.tokens, each.arrays[0].shape[1:]) for each in steps] for steps in steps_of_processes
    )
    assert first == second and len(first) <= sum(map(len, batches))
    for process_batches, steps in zip(batches, steps_of_processes, strict=True):
        assert [each for each in steps if len(each.index)] == process_batches
        for each in steps:
            assert len(each.index) == len(each.arrays[0])
    # A step that both have is one step.
    if batches is BATCHES:
        assert len(first) == len({each.shape for each in BATCHES[0] + BATCHES[1]}) + 1
