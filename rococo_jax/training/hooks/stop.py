"""SIGTERM (preemption) and Ctrl-C stop a run after a step, which is saved.

Several processes stop after the same step, whichever of them was told: JAX's preemption service, which
`distributed_run(preemptible=True)` starts, takes SIGTERM to one of them to all, a second or two later.
"""

import contextlib
import os
import signal
from typing import Any

import jax
from jax.experimental.multihost_utils import reached_preemption_sync_point

from rococo_jax.training.hooks import INTERRUPT, TERMINATE, Hook, StepInfo


class Stop(Hook):
    """Handles the signals until it is closed, and puts a stop into the step after which the run ends.

    A second Ctrl-C ends the process without saving.
    """

    def __init__(self):
        self.wanted: str | None = None
        self.alone = jax.process_count() == 1
        self.replaced: dict[int, Any] = {}
        handlers = {signal.SIGINT: self._interrupt} | ({signal.SIGTERM: self._terminate} if self.alone else {})
        for which, handler in handlers.items():
            # Not in the main thread, the caller handles signals.
            with contextlib.suppress(ValueError):
                self.replaced[which] = signal.signal(which, handler)

    def after(self, info: StepInfo) -> None:
        if self.alone:
            info.request = self.wanted
        elif reached_preemption_sync_point(info.done):
            info.request = self.wanted or TERMINATE

    def of_this_process(self) -> str | None:
        """The stop that was asked for, where no other process must agree."""
        return self.wanted if self.alone else None

    def close(self) -> None:
        for which, handler in self.replaced.items():
            signal.signal(which, handler)

    def _terminate(self, *_: Any) -> None:
        self.wanted = TERMINATE

    def _interrupt(self, *_: Any) -> None:
        if self.wanted == INTERRUPT:
            raise KeyboardInterrupt
        # `print` is not safe within a handler.
        os.write(2, b"rococo: Ctrl-C: saving after this step; once more stops without saving\n")
        self.wanted = INTERRUPT
        if not self.alone:
            os.kill(os.getpid(), signal.SIGTERM)  # to JAX's service
