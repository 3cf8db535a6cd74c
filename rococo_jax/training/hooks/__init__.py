"""What happens around the steps of a run: hooks of one protocol, a file each, that the loop calls in order."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Requests to save and stop.
TERMINATE, INTERRUPT = "SIGTERM", "SIGINT"
STOPS = (TERMINATE, INTERRUPT)


@dataclasses.dataclass
class StepInfo:
    """A step that was begun; its results may not be there yet.

    Attributes:
        done: steps of the run so far, with this one.
        last: whether it is the run's last.
        state: `TrainState` after the step.
        metrics: of the step, on the devices.
        counts: those of the input.
        waited: seconds that the host waited for the batch.
        request: to save and stop; `Stop` sets it.
        figures: of an evaluation of this state; `Evaluate` sets them.
    """

    done: int
    last: bool
    state: Any
    metrics: Mapping[str, Any]
    counts: Mapping[str, int]
    waited: float
    request: str | None = None
    figures: Mapping[str, float] | None = None


class Hook:
    """Does something around every step. A hook overrides what it needs."""

    def before(self, step: int, state: Any) -> None:
        """Called when the program of a step, counted from 0, is about to start."""

    def after(self, info: StepInfo) -> None:
        """Called when the step was begun."""

    def stopped(self, info: StepInfo) -> None:
        """Called after the last step that was begun, where a request ended the run by ending its input."""

    def close(self) -> None:
        """Called at the end of the loop, however it ended."""


class OnStep(Hook):
    """Calls a function with the steps done and the state, for tests and launchers."""

    def __init__(self, function):
        self.function = function

    def after(self, info: StepInfo) -> None:
        self.function(info.done, info.state)
