"""A profile of some steps of a run, for TensorBoard's profiler or Perfetto: `--config.profile.steps=10:13`."""

import re
from pathlib import Path
from typing import Any

import jax

from rococo_jax.training.hooks import Hook, StepInfo

PROFILE = "profile"
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})")


def profiled_steps(text: str) -> range | None:
    """Steps as Python counts a slice: `"10:13"` is the 11th to the 13th step, `""` none. None: this is no range."""
    if not text:
        return range(0)
    found = _RANGE.fullmatch(text)
    return range(int(found[1]), int(found[2])) if found else None


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
