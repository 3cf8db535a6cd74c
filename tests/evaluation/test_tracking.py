"""Results in an experiment tracker. That real wandb and trackio take these calls was tried by hand, offline."""

import importlib.machinery
import json
import sys
import types

import pytest

from rococo_jax.evaluation.tracking import TRACKERS, log_results, read_tracker
from tests.support.made_runs import make_run
from tests.support.refusals import refused


@pytest.fixture
def runs(monkeypatch):
    """What stand-ins of the trackers are called with, call by call."""
    calls = []
    for name in TRACKERS:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)

        def init(tracker=name, **options):
            calls.append({"tracker": tracker, **options})
            return types.SimpleNamespace(log=calls[-1].update, finish=lambda: None)

        module.init = init
        monkeypatch.setitem(sys.modules, name, module)
    return calls


@pytest.mark.parametrize("name", TRACKERS)
def test_a_model_is_tracked_as_one_run_with_every_number_and_interval(name, runs, tmp_path):
    results = json.loads((make_run(tmp_path, "a", 1.2) / "results.json").read_text(encoding="utf-8"))
    for _ in range(2):
        log_results(read_tracker(f"{name}:robust"), results)
    assert runs[0] == runs[1] and runs[0]["project"] == "robust" and runs[0]["resume"] == "allow"
    for task, variants in results["tasks"].items():
        for variant, metrics in variants.items():
            for metric, value in metrics.items():
                key, interval = f"{task}/{variant}/{metric}", results["intervals"][task][variant].get(metric)
                assert runs[0].get(key) == value
                assert [runs[0].get(f"{key}_low"), runs[0].get(f"{key}_high")] == (interval or [None, None])
    changed = results | {"fingerprint": {**results["fingerprint"], "model": {"weights": "others"}}}
    log_results(read_tracker(f"{name}:robust"), changed)
    identity = "id" if name == "wandb" else "name"
    assert runs[2][identity] != runs[0][identity] and "a" in runs[0]["name"]


def test_unknown_and_missing_trackers_are_refused(monkeypatch, expect_refusal, tmp_path):
    refused(
        "log: tracker: found 'tensorboard:x'; wanted wandb:PROJECT or trackio:PROJECT", read_tracker, "tensorboard:x"
    )
    refused("found 'wandb'; wanted wandb:PROJECT", read_tracker, "wandb")
    monkeypatch.setitem(sys.modules, "trackio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expect_refusal(
        f"evaluate demo:plain --data {tmp_path} --out {tmp_path / 'out'} --log trackio:x", "--log", "trackio"
    )
    assert not (tmp_path / "out").exists()
