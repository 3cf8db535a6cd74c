"""Hooks of a training run that remember earlier steps: the profile, and the log of metrics.

The metrics of a step are fetched while the next step runs, so `Log.flush` is called before a state is saved or
evaluated: its loss is then known to be finite.
"""

import contextlib
import math
from pathlib import Path
from typing import Any

import jax

from rococo_jax.progress import progress
from rococo_jax.training.batch import COUNTS
from rococo_jax.training.hooks import REQUEST, StepInfo
from rococo_jax.training.log import METRICS, Meter, RunLog
from rococo_jax.training.state import TrainingCheckpoints

PROFILE = "profile"


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
