"""What happens around the steps of a run, besides stopping: hooks of one protocol, which the loop calls in order.

Metrics of a step are fetched while the next one runs. Nothing is saved or evaluated before they are known to be finite,
and a checkpoint is saved before it is evaluated: an evaluation that is interrupted or fails costs no step. A run that
resumes from a checkpoint first makes the evaluation that was due there and is missing.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from ml_collections import ConfigDict

from rococo_jax.encoders.loading import EVALUATIONS
from rococo_jax.processes import broadcast_from_process_0, sum_over_processes
from rococo_jax.progress import progress
from rococo_jax.training.log import METRICS, Meter, RunLog
from rococo_jax.training.state import TrainingCheckpoints, TrainState


@dataclasses.dataclass
class StepInfo:
    """A step that was begun; its results may not be there yet.

    Attributes:
        done: steps of the run so far, with this one.
        last: whether it is the run's last.
        state: `TrainState` after the step.
        metrics: of the step, on the devices.
        counts: those of the input on this process.
        waited: seconds that the host waited for the batch.
        idle: seconds of these in which the device had no step to work on.
        request: the signal that asks to save and stop; `Stop` sets it.
    """

    done: int
    last: bool
    state: Any
    metrics: Mapping[str, Any]
    counts: Mapping[str, int]
    waited: float
    idle: float = 0.0
    request: str | None = None


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


PROFILE = "profile"


class Profile(Hook):
    """Traces the steps of a range on this process, into `folder/profile`.

    Args:
        folder: the working folder, None for no trace (other processes).
        steps: those to trace; of a run that resumes inside the range, the rest.
    """

    def __init__(self, folder: Path | None, steps: range):
        self.folder, self.steps, self.running = folder, range(0) if folder is None else steps, False

    def before(self, step: int, state: Any) -> None:
        """Starts where `step` is in the range; `state` is waited for, so that no earlier step is in the trace."""
        if not self.running and step in self.steps:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder / PROFILE))
            self.running = True

    def after(self, info: StepInfo) -> None:
        """Stops after the last step of the range, once the device has done it."""
        if self.running and info.done >= self.steps.stop:
            jax.block_until_ready(info.state)
            self.close()

    def close(self) -> None:
        """Writes the trace, if one is open."""
        if self.running:
            self.running = False
            jax.profiler.stop_trace()


class Diverged(RuntimeError):
    """The loss or its gradient is not finite."""


class Log(Hook):
    """Shows progress, and logs each step once it is done; stops the run where its loss is not finite.

    Args:
        file: the run's log.
        every: steps between two lines.
        steps: of the whole run.
        meter: counts the steps for their figures.
        checkpoints: one of them is good where the run stops.

    Attributes:
        loss: that of the last settled step, in words, with the share of the chip's peak where that is known.
    """

    def __init__(self, file: RunLog, every: int, steps: range, meter: Meter, checkpoints: TrainingCheckpoints):
        self.file, self.every, self.steps, self.meter = file, every, steps, meter
        self.checkpoints, self.pending = checkpoints, None
        self.loss, self._share = "", ""
        self._shown = contextlib.ExitStack()
        self._advance = self._shown.enter_context(progress("training", steps.stop, "steps"))
        self._advance(steps.start)

    def after(self, info: StepInfo) -> None:
        self.meter.count(info.waited, info.idle)
        self.settle()
        self.pending = info
        self._advance(1, self.loss)

    def settle(self) -> None:
        """Fetches the metrics of the step that was begun last, once.

        Raises Diverged: not finite.
        """
        if self.pending is None:
            return
        info, self.pending = self.pending, None
        values = {name: float(value) for name, value in jax.device_get(dict(info.metrics)).items()}
        self.loss = f"loss {values['loss']:.4f}{self._share}"
        finite = math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"])
        if not finite:
            self.checkpoints.wait()
            found = f"loss {values['loss']}, gradient norm {values['gradient_norm']}"
            raise Diverged(f"step {info.done}: {found}; {self.checkpoints.last_good()}")
        if info.done % self.every == 0 or info.done == 1 or info.last:
            figures = self.meter.read()
            self._share = f", MFU {figures['mfu']:.1%}" if "mfu" in figures else ""
            self.file.write(METRICS, info.done, {**values, **figures, **sum_over_processes(info.counts)})

    def close(self) -> None:
        self._shown.close()


class Save(Hook):
    """Saves checkpoints once the loss is known to be finite.

    Args:
        config: `checkpoint` of the run's config.
        input_state: gives what a checkpoint keeps of the input. All processes call it.
        evaluations: need a checkpoint of the states that they evaluate.
    """

    def __init__(
        self,
        config: ConfigDict,
        checkpoints: TrainingCheckpoints,
        input_state: Callable[[], dict[str, Any]],
        log: Log,
        evaluations: Sequence["Evaluate"] = (),
    ):
        self.config, self.checkpoints, self.input_state, self.log = config, checkpoints, input_state, log
        self.evaluations, self.saved_at = evaluations, time.monotonic()

    def after(self, info: StepInfo) -> None:
        every = [steps for steps in (self.config.every, self.config.keep_every) if steps]
        is_due = info.last or info.request is not None or any(info.done % steps == 0 for steps in every)
        is_evaluated = any(evaluation.is_due(info.done) for evaluation in self.evaluations)
        if is_due or is_evaluated or self._late(info.done):
            self.save(info)

    def stopped(self, info: StepInfo) -> None:
        self.save(info)

    def _late(self, done: int) -> bool:
        """Whether nothing was saved for as many minutes as the config allows. Process 0 says so, at log lines."""
        if not self.config.minutes or done % self.log.every:
            return False
        late = time.monotonic() - self.saved_at > 60 * self.config.minutes
        return bool(broadcast_one_to_all(np.asarray(late)))

    def save(self, info: StepInfo) -> None:
        """Start writing the state after a step, once its loss is known to be finite."""
        self.log.settle()
        with self.log.meter.paused("saving"):
            self.checkpoints.save(info.done, info.state, self.input_state())
        self.saved_at = time.monotonic()


class Evaluate(Hook):
    """Evaluates saved states, and logs the results. It comes after `Save`.

    Args:
        function: of the state; all processes call it.
        every: steps between two evaluations; 0 for the end alone.
        steps: of the whole run.
        log: of the run.
        scores: by step; the best checkpoint is chosen by them. Of the evaluations that the log has at first.
    """

    def __init__(
        self,
        function: Callable[[TrainState], Mapping[str, float]],
        every: int,
        steps: int,
        log: Log,
        scores: dict[int, float],
    ):
        self.function, self.every, self.steps, self.log, self.scores = function, every, steps, log, scores

    def is_due(self, step: int) -> bool:
        """Whether the state after so many steps is to be evaluated."""
        return step > 0 and (step == self.steps or (self.every > 0 and step % self.every == 0))

    def catch_up(self, step: int, state: TrainState) -> None:
        """Evaluate the state that the run resumes from, where that is due and the log has no evaluation of it."""
        if not self.is_due(step):
            return
        if not broadcast_from_process_0("evaluations", lambda: self.log.file.has(EVALUATIONS, step)):
            self.evaluate(step, state)

    def after(self, info: StepInfo) -> None:
        # A stop does not wait for an evaluation, which the resumed run makes first; only that of the last step is made.
        if self.is_due(info.done) and (info.last or info.request is None):
            self.log.settle()
            self.evaluate(info.done, info.state)

    def evaluate(self, step: int, state: TrainState) -> None:
        """Evaluate a saved state and log the results."""
        with self.log.meter.paused("saving"):
            # A kill from here on costs no step, and what is written holds no copy of the state beside the evaluation.
            self.log.checkpoints.wait()
        with self.log.meter.paused("evaluating"):
            results = dict(self.function(state))
            self.log.file.write(EVALUATIONS, step, results)
        if math.isfinite(score := results.get("score", math.nan)):
            self.scores[step] = score
