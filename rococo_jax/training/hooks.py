"""Hooks after the steps of a run, and the registry that calls them.

A hook is a function of a `StepInfo`, added with its period: `hooks.add(save, every=200)`. The registry alone decides
when a hook is due, so a hook does not count steps. When a run ends, every hook is called for the last step, due or not,
unless it was called for that step already, or a signal stops the run and the hook leaves its work to the resumed run.
What a hook adds to the log of the run, it returns.

Hooks are called in the order in which they were added.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax

from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.training.batch import COUNTS, decode_counts
from rococo_jax.training.log import RunLog

# Names of requests among counts begin with this, so that they are not logged.
REQUEST = "request:"


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
