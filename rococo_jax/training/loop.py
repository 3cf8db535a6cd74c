"""The training loop: read a batch, run the step, call the hooks.

SIGTERM (preemption) and Ctrl-C stop the run after the current step; everything is saved, and the same command resumes
it. Around the compiled step, implicit transfers between host and device are forbidden by `jax.transfer_guard`.
"""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh

from rococo_jax.processes import signals_handled_by
from rococo_jax.training.batch import Batch, encode_counts, place_batch
from rococo_jax.training.hooks import REQUEST, Hooks, StepInfo
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import Metrics

TERMINATE, INTERRUPT = "SIGTERM", "SIGINT"
# The compiled step, from a state and a batch on the devices to the next state and metrics.
CompiledStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


@runtime_checkable
class Batches(Protocol):
    """Batches in order.

    Attributes:
        counts: images and texts lost so far on this process; their sum over processes is that of the run since step 0.
    """

    counts: Mapping[str, int]

    def __next__(self) -> Batch: ...

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint stores of the input. All processes must call it."""
        ...


class Outcome(NamedTuple):
    """The last state, and the signal that stopped the run before its end, or None."""

    state: TrainState
    stop_signal: str | None


class StopOnSignal:
    """Stop training after the current step on SIGTERM (preemption) or Ctrl-C, from `handle` to `close`.

    With several processes, the request to stop travels with the next batch, so that all stop after the same step,
    whichever of them received the signal. A second Ctrl-C exits at once, without a checkpoint.
    """

    request = f"{REQUEST}stop"

    def __init__(self):
        self.received: str | None = None
        self.is_single_process = jax.process_count() == 1
        self._handlers = contextlib.ExitStack()

    def handle(self) -> None:
        """Begin to handle signals. Before the first step there is nothing to save, and they end the process."""
        self._handlers.enter_context(signals_handled_by(self._on_signal))

    def requests(self) -> dict[str, int]:
        """Return 1 if this process received a signal, by the name of the request."""
        return {self.request: int(self.received is not None)}

    def signal_after(self, info: StepInfo) -> str | None:
        """Return the signal that stops the run after a step, or None; the same on all processes."""
        if self.is_single_process:
            return self.received
        return (self.received or TERMINATE) if self.request in info.requested else None

    def close(self) -> None:
        """Restore the previous signal handlers."""
        self._handlers.close()

    def _on_signal(self, number: int, *_: Any) -> None:
        if number == signal.SIGTERM:
            self.received = TERMINATE
            return
        if self.received == INTERRUPT:
            raise KeyboardInterrupt
        # `print` is not safe in a signal handler.
        os.write(2, b"rococo: Ctrl-C: saving after this step; press Ctrl-C again to stop without saving\n")
        self.received = INTERRUPT


class DeviceClock:
    """Measure when the device finished a step, with a thread that waits for the results of the step."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device clock")
        self._finished: Future[float] | None = None

    def begin(self, results: Any) -> Future[float]:
        """Watch a dispatched step, and return the time at which its results are ready: the device has computed it."""
        self._finished = self._thread.submit(_wait_for, results)
        return self._finished

    def idle_since(self, start: float) -> float:
        """Return the seconds since `start` in which the device had nothing to compute."""
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
    batches: Batches,
    mesh: Mesh,
    compile_step: Callable[[TrainState, Batch], CompiledStep],
    hooks: Hooks,
    stop: StopOnSignal,
    on_step: Callable[[int, TrainState], None],
) -> Outcome:
    """Train from the step of `state` to `steps`.

    Args:
        compile_step: compiles the step for the first batch; all batches have its shapes.
        on_step: called after every step with the number of steps and the state, before the hooks.

    Raises:
        Diverged: the loss or its gradient is not finite; the last checkpoint is good.
    """
    info: StepInfo | None = None
    stop_signal: str | None = None
    compiled_step: CompiledStep | None = None
    with contextlib.closing(DeviceClock()) as device_clock:
        for number in range(int(state.step), steps):
            wait_start = time.perf_counter()
            try:
                batch = next(batches)
            except Exception:
                # Ctrl-C in a terminal also ends the processes that decode images, and with them the input. Several
                # processes have to agree on a signal first.
                stop_signal = stop.received if stop.is_single_process else None
                if info is None or stop_signal is None:
                    raise
                break
            seconds_waiting = time.perf_counter() - wait_start
            seconds_idle = device_clock.idle_since(wait_start)
            counts = {**stop.requests(), **hooks.requests(), **batches.counts}
            encoded_counts = encode_counts(counts, len(mesh.local_devices))
            device_batch = place_batch(dataclasses.replace(batch, counts=encoded_counts), mesh)
            if compiled_step is None:
                compiled_step = compile_step(state, device_batch)
                stop.handle()
            with jax.profiler.StepTraceAnnotation("train", step_num=number), jax.transfer_guard("disallow"):
                state, metrics = compiled_step(state, device_batch)
            finished = device_clock.begin(metrics)
            step = number + 1
            is_last = step == steps
            on_step(step, state)
            waits = {"seconds_waiting": seconds_waiting, "seconds_idle": seconds_idle}
            requested = frozenset() if info is None else _requests_of(info)
            info = StepInfo(step, state, is_last, None, metrics, counts, requested, **waits, finished=finished)
            # The last step is the end of the run: a signal does not change what happens there.
            stop_signal = None if is_last else stop.signal_after(info)
            if is_last or stop_signal is not None:
                break
            hooks.after_step(info)
        if info is not None:
            hooks.after_step(dataclasses.replace(info, stop_signal=stop_signal))
    return Outcome(state, stop_signal)


def _requests_of(info: StepInfo) -> frozenset[str]:
    """Return the names of the requests that came with a step."""
    return frozenset(name for name, count in info.total_counts().items() if count and name.startswith(REQUEST))
