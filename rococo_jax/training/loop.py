"""The loop: feed, step, and what hooks do around it.

`transfer_guard` forbids implicit transfers between host and device. SIGTERM and Ctrl-C end the run after the current
step, with everything saved; the same command resumes it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh

from rococo_jax.training.batch import Batch, place_batch
from rococo_jax.training.hooks import STOPS, Hook, StepInfo
from rococo_jax.training.hooks.stop import Stop
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import Metrics

# The compiled step: of a state and a batch on the devices.
Program = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


@runtime_checkable
class Input(Protocol):
    """Batches in order, and counts of what was lost so far."""

    counts: Mapping[str, int]

    def __next__(self) -> Batch: ...
    def get_state(self) -> dict[str, Any]: ...


class Outcome(NamedTuple):
    """The last state, and the signal that stopped the run before its end, or None."""

    state: TrainState
    stopped: str | None


def run_loop(
    steps: int,
    state: TrainState,
    batches: Input,
    mesh: Mesh,
    compile_for: Callable[[TrainState, Batch], Program],
    hooks: Sequence[Hook],
    stop: Stop,
) -> Outcome:
    """Trains from the step of `state` to `steps`.

    Args:
        compile_for: makes the program when the first batch is there; all batches have its shapes.
        hooks: called in this order around every step; `stop` is one of them.

    Raises:
        Diverged: the loss or its gradient is not finite; the last checkpoint is good.
    """
    info, program = None, None
    for number in range(int(state.step), steps):
        asked_at = time.perf_counter()
        try:
            batch = next(batches)
        except Exception:
            # Ctrl-C in a terminal ends the processes that decode images, too.
            if info is None or (request := stop.of_this_process()) is None:
                raise
            for hook in hooks:
                hook.stopped(info)
            return Outcome(state, request)
        waited = time.perf_counter() - asked_at
        placed = place_batch(batch, mesh)
        program = program or compile_for(state, placed)
        for hook in hooks:
            hook.before(number, state)
        with jax.transfer_guard("disallow"):
            state, metrics = program(state, placed)
        info = StepInfo(number + 1, number + 1 == steps, state, metrics, batches.counts, waited)
        for hook in hooks:
            hook.after(info)
        if info.request in STOPS and not info.last:
            return Outcome(state, info.request)
    return Outcome(state, None)
