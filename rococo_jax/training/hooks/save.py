"""Saves a state: every so many steps or minutes, at the end, on request, and where it was evaluated."""

import time
from typing import Any, Protocol, runtime_checkable

from ml_collections import ConfigDict

from rococo_jax.training.hooks import Hook, StepInfo
from rococo_jax.training.hooks.log import Log
from rococo_jax.training.state import TrainingCheckpoints


@runtime_checkable
class InputState(Protocol):
    """What a checkpoint keeps of the input."""

    def get_state(self) -> dict[str, Any]: ...


class Save(Hook):
    """Writes checkpoints, of losses that are known to be finite alone; `config` is `checkpoint` of the run's."""

    def __init__(self, config: ConfigDict, checkpoints: TrainingCheckpoints, batches: InputState, log: Log):
        self.config, self.checkpoints, self.batches, self.log = config, checkpoints, batches, log
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
            self.checkpoints.save(info.done, info.state, self.batches.get_state(), self.log.skipped_updates, score)
        self.saved_at = time.monotonic()
