"""The registry of hooks owns their periods: which hooks run after which steps, in which order, however a run ends."""

import json

import pytest

from rococo_jax.training.hooks import Hook, Hooks, StepInfo
from rococo_jax.training.log import EVALUATIONS, RunLog


def record(name: str, calls: list, values=None) -> Hook:
    """Return a hook that records the steps after which it was called."""

    def hook(info: StepInfo):
        calls.append((name, info.step))
        return values

    hook.__name__ = name
    return hook


@pytest.fixture
def log(tmp_path):
    run_log = RunLog(tmp_path, 0, tensorboard=False)
    yield run_log
    run_log.close()


def run_steps(hooks: Hooks, steps: int, end: int, signal: str | None = None) -> None:
    """Steps 1 to `end` of a run of `steps`, as the loop calls hooks; the last of them ends the run."""
    for step in range(1, end + 1):
        stop_signal = signal if step == end else None
        hooks.after_step(StepInfo(step, None, is_last=step == steps, stop_signal=stop_signal))


def test_a_hook_runs_at_multiples_of_its_periods_and_at_the_end(log):
    calls: list = []
    hooks = Hooks(log)
    hooks.add(record("save", calls), every=(3, 0, 4))
    run_steps(hooks, steps=7, end=7)
    assert calls == [("save", 3), ("save", 4), ("save", 6), ("save", 7)]


def test_a_hook_with_period_zero_runs_only_at_the_end(log):
    calls: list = []
    hooks = Hooks(log)
    hooks.add(record("evaluate", calls), every=0)
    run_steps(hooks, steps=5, end=5)
    assert calls == [("evaluate", 5)]


def test_hooks_run_in_the_order_of_their_registration(log):
    calls: list = []
    hooks = Hooks(log)
    for name in ("save", "evaluate"):
        hooks.add(record(name, calls), every=2)
    run_steps(hooks, steps=2, end=2)
    assert calls == [("save", 2), ("evaluate", 2)]


@pytest.mark.parametrize("end", [3, 4])
def test_a_signal_saves_a_checkpoint_and_the_resumed_run_evaluates_it(log, end):
    calls: list = []
    hooks = Hooks(log)
    hooks.add(record("save", calls), every=10)
    hooks.add(record("evaluate", calls), every=4, on_signal=False)
    run_steps(hooks, steps=10, end=end, signal="SIGTERM")
    assert calls == [("save", end)]


def test_a_hook_that_is_due_at_the_last_step_runs_only_once(log):
    """Ctrl-C may end the input after the hooks of the last step have run."""
    calls: list = []
    hooks = Hooks(log)
    hooks.add(record("log", calls), every=1)
    hooks.add(record("save", calls), every=10)
    hooks.after_step(StepInfo(1, None))
    hooks.after_step(StepInfo(1, None, stop_signal="SIGINT"))
    assert calls == [("log", 1), ("save", 1)]


def test_a_hook_runs_after_the_next_step_if_its_condition_is_true(log):
    """The request travels to the other processes with the batch of a step."""
    calls: list = []
    conditions = iter([False, True, False, False])
    hooks = Hooks(log)
    hooks.add(record("save", calls), every=10, also_when=lambda: next(conditions))
    requested: frozenset[str] = frozenset()
    for step in range(1, 5):
        requests = hooks.requests()
        hooks.after_step(StepInfo(step, None, requested=requested))
        requested = frozenset(name for name, count in requests.items() if count)
    assert calls == [("save", 3)]


def test_results_of_a_hook_are_logged_and_a_resumed_run_adds_missing_lines(log, tmp_path):
    calls: list = []
    hooks = Hooks(log)
    hooks.add(record("evaluate", calls, {"score": 0.5}), every=2, log_file=EVALUATIONS)
    hooks.run_missing(StepInfo(2, None))
    hooks.run_missing(StepInfo(2, None))
    Hooks(log).run_missing(StepInfo(2, None))
    assert calls == [("evaluate", 2)]
    again = Hooks(log)
    again.add(record("evaluate", calls, {"score": 0.5}), every=2, log_file=EVALUATIONS)
    for step in (0, 2, 3):
        again.run_missing(StepInfo(step, None))
    assert calls == [("evaluate", 2)], "step 2 has a line, and nothing is due at steps 0 and 3"
    lines = (tmp_path / EVALUATIONS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 2, "score": 0.5}]
