"""Requests to save, or to save and stop, on which all processes of a run act after the same step.

Sources of requests: SIGTERM (preemption), Ctrl-C, a clock. A request is a key in JAX's coordination service. A thread
of every process waits for that key, and answers with the last step that its process has begun; all act after the
highest answer. So a request is known to all processes in milliseconds, and nothing is exchanged while nobody asks.
Where JAX's client cannot be had, flags are exchanged every few steps instead.
"""

import contextlib
import itertools
import os
import signal
import threading
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from rococo_jax.processes import coordination
from rococo_jax.training.hooks import INTERRUPT, SAVE, STOPS, TERMINATE, Hook, StepInfo
from rococo_jax.training.hooks.save import Save

# The last word in the service: a process has left its loop, and no request follows.
_END = "end"
_KINDS = (None, SAVE, TERMINATE, INTERRUPT)
# Steps between two exchanges where there is no service.
_ASK_EVERY = 10
_POLL_MILLISECONDS = 60_000

_runs = itertools.count()


class Requests:
    """The requests of one loop of steps. All processes make theirs in the same order.

    Args:
        first: steps done before the loop; the next one follows at once.
    """

    def __init__(self, first: int):
        self.wanted: str | None = None
        self.begun = first + 1
        self.changed = threading.Condition()
        self.answered, self.closing, self.closed = False, False, False
        self.agreed: tuple[str, int] | None = None
        self.service = coordination()
        if self.service is not None:
            self.prefix, self.round = f"rococo/requests/{next(_runs)}", 0
            self.thread = threading.Thread(target=self._listen, daemon=True, name="requests")
            self.thread.start()

    def ask(self, kind: str) -> None:
        """Asks all processes; takes effect in this one's next call of `due`. A stop is not taken back by a save."""
        if self.wanted not in STOPS:
            self.wanted = kind

    def due(self, done: int) -> str | None:
        """What to do now that step `done` was begun and no later one: a kind of request, or None to go on."""
        if jax.process_count() == 1:
            kind, self.wanted = self.wanted, None
            return kind
        if self.service is None:
            return self._exchange() if done % _ASK_EVERY == 0 else None
        with self.changed:
            # What is agreed already comes first; the round belongs to the request after it.
            asked, number = None if self.agreed else self.wanted, self.round
        if asked is not None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
                self.service.client.key_value_set(f"{self.prefix}/{number}/asked", asked)
        with self.changed:
            # Once this process has answered, and where it has asked, it waits for what all agree on.
            self.changed.wait_for(lambda: self.agreed or self.closed or not (self.answered or asked))
            if self.agreed is None or done < self.agreed[1]:
                self.begun = done + 1
                return None
            kind, self.agreed = self.agreed[0], None
            if kind == self.wanted:
                self.wanted = None
            self.begun = done + 1
            self.changed.notify_all()
            return kind

    def __enter__(self) -> "Requests":
        return self

    def __exit__(self, *_: object) -> None:
        if self.service is None:
            return
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self.service.client.key_value_set(f"{self.prefix}/{self.round}/asked", _END)
        self.thread.join(timeout=10)

    def _exchange(self) -> str | None:
        kinds = multihost_utils.process_allgather(np.asarray(_KINDS.index(self.wanted)))
        self.wanted = None
        return _KINDS[int(kinds.max())]

    def _listen(self) -> None:
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service has ended, and the run with it
            # A request that is under way is answered, since the others wait for it.
            while not self.closing and (kind := self._wait_for("asked")) != _END:
                with self.changed:
                    self.answered, begun = True, self.begun
                self._put(f"begun/{self.service.number}", str(begun))
                if self.service.number == 0:
                    answers = [int(self._wait_for(f"begun/{number}")) for number in range(self.service.count)]
                    self._put("agreed", str(max(answers)))
                step = int(self._wait_for("agreed"))
                with self.changed:
                    self.round += 1
                    self.answered, self.agreed = False, (kind, step)
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: self.agreed is None or self.closing)
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _put(self, key: str, value: str) -> None:
        self.service.client.key_value_set(f"{self.prefix}/{self.round}/{key}", value)

    def _wait_for(self, key: str) -> str:
        while True:
            try:
                return self.service.client.blocking_key_value_get(
                    f"{self.prefix}/{self.round}/{key}", _POLL_MILLISECONDS
                )
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise


class stop_signals:
    """Within the block SIGTERM and Ctrl-C ask to save and stop instead of ending the process; a second Ctrl-C ends."""

    def __init__(self, requests: Requests):
        self.requests, self.before, self.interrupted = requests, {}, False

    def __enter__(self) -> "stop_signals":
        for which, handler in ((signal.SIGTERM, self._terminate), (signal.SIGINT, self._interrupt)):
            # Not in the main thread, the caller handles signals.
            with contextlib.suppress(ValueError):
                self.before[which] = signal.signal(which, handler)
        return self

    def _terminate(self, *_: Any) -> None:
        self.requests.ask(TERMINATE)

    def _interrupt(self, *_: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        # `print` is not safe within a handler.
        os.write(2, b"rococo: Ctrl-C: saving after this step; once more stops without saving\n")
        self.requests.ask(INTERRUPT)

    def __exit__(self, *_: object) -> None:
        for which, handler in self.before.items():
            signal.signal(which, handler)


class Stop(Hook):
    """Takes requests of signals and of the clock, and says what to do after each step.

    Args:
        first: steps done before the loop.
        save: knows when the clock asks.
    """

    def __init__(self, first: int, save: Save):
        self.save, self._open = save, contextlib.ExitStack()
        self.requests = self._open.enter_context(Requests(first))
        self._open.enter_context(stop_signals(self.requests))

    def after(self, info: StepInfo) -> None:
        if self.save.overdue and jax.process_index() == 0:
            self.requests.ask(SAVE)
        info.request = self.requests.due(info.done)

    def of_this_process(self) -> str | None:
        """The stop that was asked for, where no other process must agree."""
        return self.requests.wanted if self.requests.wanted in STOPS and jax.process_count() == 1 else None

    def close(self) -> None:
        self._open.close()
