"""Evaluate a state every so many steps and at the end; save it by steps or minutes, on request, and with its score."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all
from ml_collections import ConfigDict

from rococo_jax.training.hooks import STOPS, Hook, StepInfo
from rococo_jax.training.hooks.log import EVALUATIONS, Log
from rococo_jax.training.state import TrainingCheckpoints, TrainState


class Evaluate(Hook):
    """Calls `function` with the state every so many steps, 0 for the end alone; its figures go to the log."""

    def __init__(self, function: Callable[[TrainState], Mapping[str, float]], every: int, log: Log):
        self.function, self.every, self.log = function, every, log

    def after(self, info: StepInfo) -> None:
        due = info.last or (self.every and info.done % self.every == 0)
        if not due or info.request in STOPS:
            return
        self.log.settle()
        with self.log.meter.paused("evaluating"):
            info.figures = dict(self.function(info.state))
            self.log.file.write(EVALUATIONS, info.done, info.figures)


class Save(Hook):
    """Writes checkpoints, of losses that are known to be finite alone.

    Args:
        config: `checkpoint` of the run's config.
        input_state: gives what a checkpoint keeps of the input.
    """

    def __init__(
        self, config: ConfigDict, checkpoints: TrainingCheckpoints, input_state: Callable[[], dict[str, Any]], log: Log
    ):
        self.config, self.checkpoints, self.input_state, self.log = config, checkpoints, input_state, log
        self.saved_at = time.monotonic()

    def after(self, info: StepInfo) -> None:
        every = [steps for steps in (self.config.every, self.config.keep_every) if steps]
        due = info.last or info.request is not None or info.figures is not None
        if due or any(info.done % steps == 0 for steps in every) or self._late(info.done):
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
        """Starts writing the state after a step, once its loss is known to be finite."""
        self.log.settle()
        score = None if info.figures is None else info.figures.get("score")
        with self.log.meter.paused("saving"):
            self.checkpoints.save(info.done, info.state, self.input_state(), score)
        self.saved_at = time.monotonic()
