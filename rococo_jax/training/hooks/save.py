"""Saves a state: every so many steps or minutes, at the end, on request, and where it was evaluated."""

import time
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from rococo_jax.training.hooks import Hook, StepInfo
from rococo_jax.training.hooks.log import Log
from rococo_jax.training.state import TrainingCheckpoints


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

    @property
    def overdue(self) -> bool:
        """Whether nothing was saved for as many minutes as the config allows."""
        return 0 < 60 * self.config.minutes < time.monotonic() - self.saved_at

    def after(self, info: StepInfo) -> None:
        every = [steps for steps in (self.config.every, self.config.keep_every) if steps]
        asked = info.last or info.request is not None or info.figures is not None
        if asked or any(info.done % steps == 0 for steps in every):
            self.stopped(info)

    def stopped(self, info: StepInfo) -> None:
        self.log.settle()
        score = None if info.figures is None else info.figures.get("score")
        with self.log.meter.paused("saving"):
            self.checkpoints.save(info.done, info.state, self.input_state(), self.log.skipped_updates, score)
        self.saved_at = time.monotonic()
