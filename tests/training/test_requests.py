"""Requests to save and to stop reach all processes, which act on them after the same step."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import pytest

from rococo_jax.training.hooks import SAVE, STOPS, TERMINATE
from rococo_jax.training.hooks import stop as requests
from rococo_jax.training.hooks.stop import Requests

PROCESSES, STEPS = 3, 60


class Service:
    """The calls of JAX's coordination client that are made, for threads of one process."""

    def __init__(self):
        self.keys, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self.changed:
            if key in self.keys:
                raise jax.errors.JaxRuntimeError("ALREADY_EXISTS")
            self.keys[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.keys, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self.keys[key]


class Steps:
    """Steps that no process can end before all have begun them, as collectives make it."""

    def __init__(self):
        self.barriers = [threading.Barrier(PROCESSES, timeout=20) for _ in range(STEPS + 1)]

    def run(self, number: int, asks: dict[int, str], seed: int) -> list[tuple[int, str]]:
        """Acts of a process that asks after some steps: (step, kind)."""
        chance, acts = random.Random(seed), []
        with Requests(0) as asked:
            for done in range(1, STEPS + 1):
                # Dispatched, and the metrics of the step before fetched: a host is one step ahead of its device.
                if done > 1:
                    self.barriers[done - 1].wait()
                time.sleep(chance.random() * 2e-3)
                if done in asks:
                    asked.ask(asks[done])
                kind = asked.due(done)
                if kind is not None:
                    acts.append((done, kind))
                if kind in STOPS:
                    break
        return acts


@pytest.mark.parametrize("seed", range(4))
def test_all_processes_act_after_the_same_step_and_soon(seed, monkeypatch):
    service, numbers, steps = Service(), threading.local(), Steps()
    monkeypatch.setattr(jax, "process_count", lambda: PROCESSES)
    monkeypatch.setattr(
        requests, "coordination", lambda: SimpleNamespace(client=service, number=numbers.value, count=PROCESSES)
    )
    monkeypatch.setattr(requests, "_runs", [0] * PROCESSES)
    monkeypatch.setattr(requests, "next", lambda runs: runs[0], raising=False)
    # Two ask at once, and a stop follows a save closely.
    asks = {0: {5: SAVE, 21: SAVE}, 1: {21: SAVE, 40: TERMINATE}, 2: {39: SAVE}}

    def process(number: int) -> list[tuple[int, str]]:
        numbers.value = number
        return steps.run(number, asks[number], seed * PROCESSES + number)

    with ThreadPoolExecutor(PROCESSES) as pool:
        acts = list(pool.map(process, range(PROCESSES)))
    assert acts[0] == acts[1] == acts[2]
    kinds = [kind for _, kind in acts[0]]
    assert kinds[-1] == TERMINATE and set(kinds[:-1]) == {SAVE} and 3 <= len(kinds) <= 6
    assert acts[0][0][0] in (5, 6, 7) and 40 <= acts[0][-1][0] <= 46


def test_an_agreed_request_that_no_step_takes_does_not_delay_the_end(monkeypatch):
    service = Service()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(requests, "coordination", lambda: SimpleNamespace(client=service, number=0, count=1))
    with Requests(0) as asked:
        service.key_value_set(f"{asked.prefix}/0/asked", SAVE)
        with asked.changed:
            assert asked.changed.wait_for(lambda: asked.agreed, 20) == (SAVE, 1)
    assert not asked.thread.is_alive()


def test_a_process_alone_acts_at_once_and_no_save_takes_back_a_stop():
    with Requests(0) as asked:
        assert asked.due(1) is None
        asked.ask(SAVE)
        assert asked.due(2) == SAVE and asked.due(3) is None
        asked.ask(TERMINATE)
        asked.ask(SAVE)
        assert asked.due(4) == TERMINATE


def test_processes_without_the_service_exchange_their_wishes_every_few_steps(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    exchanged = []

    def gather(wish):
        exchanged.append(int(wish))
        return jax.numpy.stack([wish, jax.numpy.zeros_like(wish)])

    monkeypatch.setattr(requests.multihost_utils, "process_allgather", gather)
    asked = Requests(0)
    asked.ask(TERMINATE)
    assert [asked.due(done) for done in range(1, 21)] == [None] * 9 + [TERMINATE] + [None] * 10
    assert exchanged == [2, 0]
