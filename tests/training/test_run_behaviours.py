"""Test the work around the steps of a run: evaluations, checkpoints by time, profiles, curves and the last line."""

import importlib.machinery
import importlib.util
import re
import signal
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.errors import InputError
from rococo_jax.sweep.train import train
from rococo_jax.training import program, run
from rococo_jax.training.config import read_config
from tests.support.tiny import random_captions, tiny_encoder, tiny_spec
from tests.support.tiny_runs import metrics_of, with_a_broken_image, write_config_file
from tests.support.world import write_world

IMAGES, BATCH, STEPS = 8, 8, 6
pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions, a model to start from, and a config of few, quick steps, which train the heads alone."""
    captions = [random_captions(5, seed=number, longest=6) for number in range(IMAGES)]
    start = tiny_encoder(spec=tiny_spec(16), name="start")
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=start)
    return write_config_file(folder, steps=STEPS, batch_size=BATCH, train__vision="none", train__text="none")


def checkpointed(workdir: Path) -> set[int]:
    """The steps whose checkpoints are there."""
    return {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()}


@pytest.mark.slow
def test_the_best_and_the_last_checkpoint_are_kept(data, tmp_path):
    scores, seen = {2: 0.9, 4: 0.3, 6: 0.5}, []
    config = read_config(data / "config.py", ["config.checkpoint.keep=1", "config.checkpoint.every=1"])
    config.eval.every, config.eval.data = 2, "read by nobody"  # the callback below needs no folders

    def evaluate(encoder: Encoder) -> dict[str, float]:
        step = encoder.provenance["trained"]["step"]
        seen.append((step, float(encoder.model.logit_scale[...])))
        return {"score": scores[step]}

    done = run.run_training(config, tmp_path / "run", evaluate=evaluate)
    assert [step for step, _ in seen] == [2, 4, 6] and len({scale for _, scale in seen}) == 3
    assert checkpointed(tmp_path / "run") == {2, 6}
    # The model at the end is the last, not the best.
    assert float(load_model(done.model).model.logit_scale[...]) == seen[-1][1]


def test_a_run_stops_at_a_signal_without_waiting_for_an_evaluation(data, tmp_path):
    config = read_config(data / "config.py", ["config.checkpoint.every=100"])
    config.eval.every, config.eval.data, scored = 2, "read by nobody", []

    def on_step(done, state):
        if done == 2:
            signal.raise_signal(signal.SIGTERM)

    def evaluate(encoder: Encoder) -> dict[str, float]:
        scored.append(encoder.provenance["trained"]["step"])
        return {"score": 0.5}

    assert run.run_training(config, tmp_path / "run", evaluate=evaluate, on_step=on_step).stopped and scored == []
    assert checkpointed(tmp_path / "run") == {2}


def test_a_broken_image_stops_the_run_if_configured(data, tmp_path):
    images = with_a_broken_image(data / "images", tmp_path / "images")
    overrides = [f"config.data.images={images}", "config.data.on_decode_error=raise"]
    with pytest.raises(InputError, match=r"07\.png"):
        run.run_training(read_config(data / "config.py", overrides), tmp_path / "run")


@pytest.mark.slow
def test_minutes_between_checkpoints_count_from_the_latest_checkpoint(data, tmp_path, monkeypatch):
    overrides = "steps=10 checkpoint.minutes=1 checkpoint.every=100 checkpoint.keep=9".split()
    clock = types.SimpleNamespace(seconds=0.0, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.seconds
    monkeypatch.setattr("rococo_jax.training.run.time", clock)

    def on_step(done, state):
        clock.seconds += 40

    config = read_config(data / "config.py", [f"config.{each}" for each in overrides])
    run.run_training(config, tmp_path / "run", on_step=on_step)
    # A minute has passed before steps 3 and 7. The request travels with their batches, and is met one step later.
    assert checkpointed(tmp_path / "run") == {4, 8, 10}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_train_raises_a_signal_again_after_it_stopped_the_run(name, data, tmp_path, monkeypatch):
    """A script that trains several models does not go on with the next one; the command returns."""
    monkeypatch.setattr(run, "run_training", lambda *_, **__: run.Run(3, None, 0, name))
    received = []
    monkeypatch.setattr(signal, "raise_signal", received.append)
    config = read_config(data / "config.py")
    train(config, tmp_path / "run", raise_signal=False)
    assert received == []
    train(config, tmp_path / "run")
    assert received == [signal.Signals[name]]


def test_steps_are_profiled_and_logged_to_wandb(data, tmp_path, monkeypatch):
    begun, finished, traced, curves = [], [], [], tmp_path / "run" / "tensorboard"
    for name in ("wandb", "tensorboard"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)

    def init(**given):
        # It reads the curves of writers that are made after this call.
        begun.append({**given, "files": len(list(curves.glob("*")))})
        return types.SimpleNamespace(id="abc", finish=lambda: finished.append(len(list(curves.glob("*")))))

    sys.modules["wandb"].init = init
    for name in ("start_trace", "stop_trace"):
        original = getattr(jax.profiler, name)
        monkeypatch.setattr(jax.profiler, name, lambda *a, name=name, do=original: (traced.append(name), do(*a)))
    steps_done = []
    overrides = "profile.steps=2:4 log.wandb=robust log.tensorboard=true checkpoint.every=2".split()
    config = read_config(data / "config.py", [f"config.{each}" for each in overrides])

    def on_step(done, state):
        traced.append(done)
        if done == 5 and not steps_done:
            steps_done.append(done)
            signal.raise_signal(signal.SIGTERM)

    assert run.run_training(config, tmp_path / "run", on_step=on_step).stopped
    # Steps 2 and 3, counted from 0, lie between the two calls: the third and the fourth to be done.
    assert traced == [1, 2, "start_trace", 3, 4, "stop_trace", 5]
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    run.run_training(config, tmp_path / "run", on_step=on_step)
    assert traced.count("start_trace") == 1, "a run that resumes after the range traces nothing"
    assert [each["id"] for each in begun] == [None, "abc"]
    assert (begun[0]["project"], begun[0]["name"]) == ("robust", "run")
    assert all(each["sync_tensorboard"] for each in begun) and begun[0]["files"] == 0
    assert len(finished) == 2 and finished[0] == 1
    lines = {line["step"]: line for line in metrics_of(tmp_path / "run")}
    assert 0 <= lines[1]["seconds_waiting_for_data"] <= lines[1]["seconds_per_step"]


@pytest.mark.parametrize("steps", ["3:2", "2:2", "4:7", "x", "1:"])
def test_a_profile_range_outside_the_run_is_refused(data, steps):
    with pytest.raises(InputError, match=rf"config.profile.steps: found '{steps}'; wanted '' or FIRST:END.*END <= 6"):
        read_config(data / "config.py", [f"config.profile.steps={steps}"])


def test_missing_wandb_is_refused_before_a_folder_is_created(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"config\.log\.wandb: found no wandb and tensorboard installed; wanted pip install"
    ):
        overrides = ["config.log.wandb=robust", "config.log.tensorboard=true"]
        run.run_training(read_config(data / "config.py", overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_last_printed_line_of_a_run_has_its_loss_mfu_and_use_of_time(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(program.PEAK_TFLOPS, "cpu", 1e-3)
    run.run_training(read_config(data / "config.py", ["config.log.every=1"]), tmp_path / "run")
    (line,) = re.findall(r"step (\d+ of \d+: loss [\d.]+, MFU [\d.]+%; .*)\n", capsys.readouterr().err)
    figures = metrics_of(tmp_path / "run")[-2]
    assert f", MFU {figures['mfu']:.1%}; " in line and 0 <= figures["goodput"] <= 1
    assert "s in steps, " in line and "compiling" in line and "saving" in line


@pytest.mark.slow
@pytest.mark.thorough
def test_a_checkpoint_contains_frozen_positions_that_were_resampled_for_another_image_size(data, tmp_path):
    overrides = ["config.train.vision=none", "config.init.image_size=56", "config.checkpoint.every=100"]
    done = run.run_training(read_config(data / "config.py", overrides), tmp_path / "run")
    last, model = (parameters_of(load_model(at).model) for at in (f"{tmp_path / 'run'}@latest", done.model))
    np.testing.assert_array_equal(last["vision.positions"], model["vision.positions"])
    assert last["vision.positions"].shape[0] == 50
