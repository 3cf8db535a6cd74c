"""Hooks after the steps of a run, and the registry that calls them.

A hook is a function of a `StepInfo`, added with its period: `hooks.add(save, every=200)`. The registry alone decides
when a hook is due, so a hook does not count steps. When a run ends, every hook is called for the last step, due or not,
unless it was called for that step already, or a signal stops the run and the hook leaves its work to the resumed run.
What a hook adds to the log of the run, it returns.

Hooks are called in the order in which they were added.

Two hooks remember earlier steps: the profile, and the log of metrics. The metrics of a step are fetched while the next
step runs, so `Log.flush` is called before a state is saved or evaluated: its loss is then known to be finite.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax

from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.progress import progress
from rococo_jax.training.batch import COUNTS, decode_counts
from rococo_jax.training.log import METRICS, Meter, RunLog
from rococo_jax.training.state import TrainingCheckpoints

# Names of requests among counts begin with this, so that they are not logged.
REQUEST = "request:"
PROFILE = "profile"


@dataclasses.dataclass(frozen=True)
class StepInfo:
    """A step that was dispatched; the device may still be computing it.

    Attributes:
        step: number of steps of the run so far, including this one.
        state: `TrainState` after the step.
        is_last: whether it is the last step of the run.
        stop_signal: name of the signal that stops the run after this step, None if there is none.
        metrics: metrics of the step, on the devices.
        counts: counts and requests (`Hooks.requests`) of this process, which it sent with the step.
        requested: the requests that came with the step before, from all processes.
        seconds_waiting: seconds that the host waited for the batch.
        seconds_idle: seconds of these in which the device had no step to compute.
        finished: the time (`time.perf_counter`) at which the device has computed the step.
    """

    step: int
    state: Any
    is_last: bool = False
    stop_signal: str | None = None
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    requested: frozenset[str] = frozenset()
    seconds_waiting: float = 0.0
    seconds_idle: float = 0.0
    finished: Future[float] | None = None

    def total_counts(self) -> dict[str, int]:
        """Return the sums of the counts over all processes. It waits until the device has computed the step."""
        if COUNTS not in self.metrics:
            return dict(self.counts)
        return decode_counts(self.counts, jax.device_get(self.metrics[COUNTS]))


# It runs after a step for which it is due, and returns values for the log, or None.
Hook = Callable[[StepInfo], Mapping[str, float] | None]


@dataclasses.dataclass
class _Entry:
    hook: Hook
    periods: tuple[int, ...]
    also_when: Callable[[], bool] | None
    on_signal: bool
    log_file: str | None
    last_step: int = 0

    @property
    def request(self) -> str:
        """Name of the request to run the hook."""
        return REQUEST + self.hook.__name__

    def is_due(self, info: StepInfo) -> bool:
        if self.last_step == info.step:
            return False
        if info.stop_signal is not None:
            return self.on_signal
        if info.is_last or any(info.step % period == 0 for period in self.periods):
            return True
        return self.request in info.requested


class Hooks:
    """The hooks of a run with their periods.

    Args:
        log: file of the run to which returned values are written.
    """

    def __init__(self, log: RunLog):
        self.log = log
        self._entries: list[_Entry] = []

    def add(
        self,
        hook: Hook,
        every: int | Sequence[int],
        *,
        also_when: Callable[[], bool] | None = None,
        on_signal: bool = True,
        log_file: str | None = None,
    ) -> None:
        """Add a hook that is due every `every` steps and at the end of the run.

        Args:
            every: one period or several; a period of 0 is ignored.
            also_when: a further condition, which process 0 checks before each step. If it holds, the hook runs after
                the next step.
            on_signal: whether the hook is due when a signal stops the run; if not, it runs first when the run resumes.
            log_file: name of the file of the run's log to which the returned values are written.
        """
        periods = (every,) if isinstance(every, int) else tuple(every)
        periods = tuple(period for period in periods if period)
        self._entries.append(_Entry(hook, periods, also_when, on_signal, log_file))

    def requests(self) -> dict[str, int]:
        """Return 1 for each hook whose further condition holds on process 0; all processes return the same names."""
        conditions = {entry.request: entry.also_when for entry in self._entries if entry.also_when is not None}
        return {name: int(jax.process_index() == 0 and condition()) for name, condition in conditions.items()}

    def after_step(self, info: StepInfo) -> None:
        """Call the hooks that are due after a step, each at most once per step."""
        for entry in self._entries:
            if entry.is_due(info):
                self._call(entry, info)

    def run_missing(self, info: StepInfo) -> None:
        """Call the hooks that were due at the step from which a run resumes, but have no line of it in the log.

        All processes must call it.
        """
        for entry in self._entries:
            if entry.log_file is None or not info.step or not entry.is_due(info):
                continue
            if not broadcast_from_process_0("the log", lambda entry=entry: self.log.has(entry.log_file, info.step)):
                self._call(entry, info)

    def _call(self, entry: _Entry, info: StepInfo) -> None:
        entry.last_step = info.step
        values = entry.hook(info)
        if values and entry.log_file is not None:
            self.log.write(entry.log_file, info.step, values)


class Diverged(RuntimeError):
    """The loss or its gradient is not finite."""


class Profile:
    """Write a trace of a range of steps on this process to `folder/profile`.

    Args:
        folder: the working directory; None for no trace (other processes).
        steps: the steps to trace, counted from 0. A run that resumes inside the range traces the rest of it.
    """

    def __init__(self, folder: Path | None, steps: range):
        self.folder = folder
        self.steps = range(0) if folder is None else steps
        self.is_running = False

    def before_step(self, step: int, state: Any) -> None:
        """Start the trace before the first step of the range, after all earlier steps have been computed."""
        if not self.is_running and step in self.steps:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder / PROFILE))
            self.is_running = True

    def after_step(self, info: StepInfo) -> None:
        """Stop the trace after the last step of the range, once the device has computed it."""
        if self.is_running and info.step >= self.steps.stop:
            jax.block_until_ready(info.state)
            self.close()

    def close(self) -> None:
        """Write the trace if one is running."""
        if self.is_running:
            self.is_running = False
            jax.profiler.stop_trace()


class Log:
    """Show progress, log the metrics of steps, and stop the run if the loss is not finite. It is due after every step.

    Args:
        file: the log of the run.
        every: steps between two lines of `metrics.jsonl`.
        steps: the steps of this call, from the one it starts at to the end of the run.
        meter: measures speed.
        checkpoints: named in the error when the loss diverges.

    Attributes:
        loss: the latest loss as text, with the share of the chip's peak (MFU) if it is known.
    """

    def __init__(self, file: RunLog, every: int, steps: range, meter: Meter, checkpoints: TrainingCheckpoints):
        self.file, self.every, self.steps, self.meter = file, every, steps, meter
        self.checkpoints = checkpoints
        self.loss, self._mfu = "", ""
        self._pending: StepInfo | None = None
        self._progress_bar = contextlib.ExitStack()
        self._advance = self._progress_bar.enter_context(progress("training", steps.stop, "steps"))
        self._advance(steps.start)

    def after_step(self, info: StepInfo) -> None:
        """Log the step before this one, whose metrics are ready by now."""
        # The step before is read first: its interval ends when the device has computed it, and contains no later step.
        self.flush()
        self.meter.count(info.seconds_waiting, info.seconds_idle)
        self._pending = info
        self._advance(1, self.loss)

    def flush(self) -> None:
        """Fetch and log the metrics of the previous step, unless that was done already.

        Raises Diverged: they are not finite.
        """
        if self._pending is None:
            return
        info, self._pending = self._pending, None
        metrics = {name: value for name, value in info.metrics.items() if name != COUNTS}
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        self.loss = f"loss {values['loss']:.4f}{self._mfu}"
        is_finite = math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])
        if not is_finite:
            self.checkpoints.wait()
            problem = f"loss {values['loss']}, gradient norm {values['gradient_norm']}"
            raise Diverged(f"step {info.step}: {problem}; {self.checkpoints.describe_latest()}")
        if self.is_logged(info):
            speed = self.meter.read(None if info.finished is None else info.finished.result())
            self._mfu = f", MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
            counts = {name: count for name, count in info.total_counts().items() if not name.startswith(REQUEST)}
            self.file.write(METRICS, info.step, {**values, **speed, **counts})

    def is_logged(self, info: StepInfo) -> bool:
        """Return whether a step gets a line in `metrics.jsonl`: the first, the last, and every `every` steps."""
        return info.step % self.every == 0 or info.step == 1 or info.is_last

    def close(self) -> None:
        """Remove the progress bar."""
        self._progress_bar.close()
