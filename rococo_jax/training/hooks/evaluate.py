"""Evaluates the model every so many steps and at the end; its figures go to the log, its `score` to the checkpoint."""

from collections.abc import Callable, Mapping

from rococo_jax.training.hooks import Hook, StepInfo
from rococo_jax.training.hooks.log import EVALUATIONS, Log
from rococo_jax.training.hooks.stop import STOPS
from rococo_jax.training.state import TrainState


class Evaluate(Hook):
    """Calls `function` with the state; `every` is in steps, 0 for the end alone."""

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
