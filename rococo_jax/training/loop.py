"""The loop: feed, step, and what hooks do around it.

`transfer_guard` forbids implicit transfers between host and device. SIGTERM (preemption) and Ctrl-C end the run after
the current step, with everything saved; the same command resumes it. Several processes stop after the same step,
whichever of them was told: JAX's preemption service, which `distributed_run(preemptible=True)` starts, takes SIGTERM to
one of them to all, a second or two later.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point
from jax.sharding import Mesh

from rococo_jax.training.batch import Batch, place_batch
from rococo_jax.training.hooks import Hook, StepInfo
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import Metrics

# Requests to save and stop.
TERMINATE, INTERRUPT = "SIGTERM", "SIGINT"
# The compiled step: of a state and a batch on the devices.
Program = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


@runtime_checkable
class Input(Protocol):
    """Batches in order.

    Attributes:
        counts: of what was lost so far, this process's share; their sum over processes is the run's since step 0.
    """

    counts: Mapping[str, int]

    def __next__(self) -> Batch: ...

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the input. All processes must call it."""
        ...


class Outcome(NamedTuple):
    """The last state, and the signal that stopped the run before its end, or None."""

    state: TrainState
    stopped: str | None


class Stop(Hook):
    """Handles the signals until it is closed, and puts a stop into the step after which the run ends.

    A second Ctrl-C ends the process without saving.
    """

    def __init__(self):
        self.wanted: str | None = None
        self.alone = jax.process_count() == 1
        self.replaced: dict[int, Any] = {}
        handlers = {signal.SIGINT: self._interrupt} | ({signal.SIGTERM: self._terminate} if self.alone else {})
        for which, handler in handlers.items():
            # Not in the main thread, the caller handles signals.
            with contextlib.suppress(ValueError):
                self.replaced[which] = signal.signal(which, handler)

    def after(self, info: StepInfo) -> None:
        if self.alone:
            info.request = self.wanted
        elif reached_preemption_sync_point(info.done):
            info.request = self.wanted or TERMINATE

    def of_this_process(self) -> str | None:
        """The stop that was asked for, where no other process must agree."""
        return self.wanted if self.alone else None

    def close(self) -> None:
        for which, handler in self.replaced.items():
            signal.signal(which, handler)

    def _terminate(self, *_: Any) -> None:
        self.wanted = TERMINATE

    def _interrupt(self, *_: Any) -> None:
        if self.wanted == INTERRUPT:
            raise KeyboardInterrupt
        # `print` is not safe within a handler.
        os.write(2, b"rococo: Ctrl-C: saving after this step; once more stops without saving\n")
        self.wanted = INTERRUPT
        if not self.alone:
            os.kill(os.getpid(), signal.SIGTERM)  # to JAX's service


class DeviceClock:
    """Tells when the device finished a step, by a thread that waits for the step's results."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device clock")
        self._finished: Future[float] | None = None

    def begin(self, results: Any) -> None:
        """Watch a step that was dispatched; its results are there when the device has done it."""
        self._finished = self._thread.submit(_wait_for, results)

    def idle_since(self, start: float) -> float:
        """Seconds since `start` in which the device had finished the last step that was begun."""
        if self._finished is None or not self._finished.done() or self._finished.exception() is not None:
            return 0.0
        return time.perf_counter() - max(start, self._finished.result())

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)


def _wait_for(results: Any) -> float:
    jax.block_until_ready(results)
    return time.perf_counter()


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
    with contextlib.closing(DeviceClock()) as device_clock:
        for number in range(int(state.step), steps):
            wait_start = time.perf_counter()
            try:
                batch = next(batches)
            except Exception:
                # Ctrl-C in a terminal ends the processes that decode images, too.
                if info is None or (request := stop.of_this_process()) is None:
                    raise
                for hook in hooks:
                    hook.stopped(info)
                return Outcome(state, request)
            waited, idle = time.perf_counter() - wait_start, device_clock.idle_since(wait_start)
            placed = place_batch(batch, mesh)
            program = program or compile_for(state, placed)
            for hook in hooks:
                hook.before(number, state)
            with jax.transfer_guard("disallow"):
                state, metrics = program(state, placed)
            device_clock.begin(metrics)
            info = StepInfo(number + 1, number + 1 == steps, state, metrics, batches.counts, waited, idle)
            for hook in hooks:
                hook.after(info)
            if info.request is not None and not info.last:
                return Outcome(state, info.request)
    return Outcome(state, None)
