"""`rococo train` from config to model: what it writes, and that a run stopped in any way ends as if it had not been."""

import functools
import gc
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.model_directory import restore_parameters
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.cli.main import main
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config, read_config
from rococo_jax.training.hooks import Diverged
from rococo_jax.training.run import run_training
from tests.support.devices import all_devices_are
from tests.support.paths import CHECKOUT
from tests.support.tiny import tiny_encoder
from tests.support.tiny_runs import (
    CAPTIONS,
    FEATURES_ALONE,
    Stopped,
    changed,
    mesh_of,
    metrics_of,
    stop_after,
    trained_parameters,
    write_config_file,
)
from tests.support.world import noise, write_world

IMAGES, STEPS = 24, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions, a model to start from, and a config."""
    captions = [CAPTIONS[number % 3 :][:3] for number in range(IMAGES)]
    start = tiny_encoder(name="start")
    folder = write_world(tmp_path_factory.mktemp("data"), captions, picture=noise(40, 48), start=start)
    settings = {"steps": STEPS, "batch_size": 16, "losses__sc__weight": 1.0, "losses__vc__weight": 1.0}
    settings |= {"losses__sc__select": "random", "losses__vc__partner_group": 2}
    settings |= {"checkpoint__every": 1, "checkpoint__keep": 3}
    return write_config_file(folder, **settings)


def config_of(data: Path, *overrides: str):
    return read_config(data / "config.py", [f"config.{override}" for override in overrides])


@pytest.fixture(scope="module")
def whole_run(data, tmp_path_factory) -> Path:
    """An undisturbed run on one device."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    run_training(config_of(data), workdir, mesh=mesh_of(1))
    return workdir


assert_same = functools.partial(jax.tree.map, np.testing.assert_array_equal)


def assert_same_run(found: Path, expected: Path) -> None:
    """The same losses in all steps, and the same bits of the model."""
    assert [line["loss"] for line in metrics_of(found)] == [line["loss"] for line in metrics_of(expected)]
    assert_same(*(trained_parameters(run / "model") for run in (found, expected)))


def test_a_run_writes_its_metrics_and_a_model_that_evaluates(data, whole_run, tmp_path):
    written = metrics_of(whole_run)
    assert [line["step"] for line in written] == list(range(1, STEPS + 1))
    assert {"loss", "contrastive", "sc", "vc", "images_per_second", "learning_rate"} <= written[0].keys()
    assert all(np.isfinite(line["loss"]) and line["images_per_second"] > 0 for line in written)
    started, trained = trained_parameters(data / "start"), trained_parameters(whole_run / "model")
    assert trained.keys() == started.keys()
    assert all(np.abs(trained[path] - started[path]).max() > 0 for path in ("text.words", "vision.positions"))
    command = ["embed", str(whole_run / "model"), "--images", str(data / "images")]
    with all_devices_are(1):
        assert main([*command, "--captions", str(data / "captions.json"), "--out", str(tmp_path / "e.npz")]) == 0


def test_a_finished_run_returns_at_once_if_it_is_started_again(data, whole_run):
    before = (whole_run / "metrics.jsonl").read_bytes()
    again = run_training(config_of(data), whole_run, mesh=mesh_of(1))
    assert (again.step, again.model) == (STEPS, whole_run / "model")
    assert (whole_run / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.thorough)])
def test_an_interrupted_run_resumes_to_the_same_bits(devices, data, whole_run, tmp_path):
    expected = whole_run
    if devices > 1:
        expected = tmp_path / "undisturbed"
        run_training(config_of(data), expected, mesh=mesh_of(devices))
    for step in (2, 5):
        with pytest.raises(Stopped):
            run_training(config_of(data), tmp_path / "run", mesh=mesh_of(devices), on_step=stop_after(step))
    done = run_training(config_of(data), tmp_path / "run", mesh=mesh_of(devices))
    assert done.resumed_from >= 3
    assert_same_run(tmp_path / "run", expected)


def device_bytes(tree=None) -> int:
    """Bytes on all devices together: of the arrays of a tree, or of all that live.

    Buffers are counted once: what was saved has an array for each shard beside the whole, of the same memory.
    """
    gc.collect()
    arrays = jax.live_arrays() if tree is None else jax.tree.leaves(tree)
    shards = [shard.data for array in arrays for shard in array.addressable_shards]
    return sum({shard.unsafe_buffer_pointer(): shard.nbytes for shard in shards}.values())


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_devices_with_the_same_losses_and_one_state(
    data, whole_run, tmp_path, monkeypatch
):
    shutil.copytree(whole_run, tmp_path / "run")
    for later in ("model", "checkpoints/5", "checkpoints/6"):
        shutil.rmtree(tmp_path / "run" / later)
    monkeypatch.setattr("rococo_jax.models.fsdp.LEAST_SHARDED", 256)
    # The tests keep parameters that they have read, which would count.
    monkeypatch.setattr("rococo_jax.encoders.loading.restore_parameters", restore_parameters)
    before, beside, texts = device_bytes(), [], ["a red dog", "a cat"]

    def measure(done, state):
        measure.state = device_bytes(state)
        sharded = [not leaf.is_fully_replicated for leaf in state.parameters.values()]
        assert sum(sharded) > 8
        beside.append(device_bytes() - before)

    def evaluate(encoder):
        encoder.encode_image(np.zeros((4, 32, 32, 3), np.uint8))
        measure.vectors = encoder.encode_text(texts)
        beside.append(device_bytes() - before)
        return {"score": 1.0}

    # Nothing is saved while bytes are counted.
    config = config_of(data, "fsdp=2", "checkpoint.every=100")
    mesh = make_mesh(jax.devices()[:4], fsdp=2)
    done = run_training(config, tmp_path / "run", mesh=mesh, on_step=measure, evaluate=evaluate)
    best = load_model(f"{tmp_path / 'run'}@best", mesh=mesh_of(4))
    assert best.name == f"run@{STEPS}"
    np.testing.assert_array_equal(best.encode_text(texts), measure.vectors)
    # Beside the state there is a batch, and nothing of the model, during evaluation too.
    assert len(beside) == 3 and max(beside) < 1.1 * measure.state
    np.testing.assert_array_equal(measure.vectors, load_model(done.model, mesh=mesh_of(4)).encode_text(texts))
    found, expected = ([line["loss"] for line in metrics_of(run)] for run in (tmp_path / "run", whole_run))
    # Adam divides by the root of a second moment: rounding of 1e-7 in tiny gradients grows to 1e-4 in a few steps.
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.slow
def test_a_run_stopped_by_sigterm_or_ctrl_c_resumes_with_the_same_bits(data, whole_run, tmp_path, monkeypatch, capfd):
    config, workdir = config_of(data, "checkpoint.every=100"), tmp_path / "run"

    def terminate(done, state):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(InputError, match="run: lock: found in use by this process"):
                run_training(config, workdir, mesh=mesh_of(1))

    stopped = run_training(config, workdir, mesh=mesh_of(1), on_step=terminate)
    assert (stopped.step, stopped.model, stopped.stopped) == (3, None, "SIGTERM")

    def interrupt(done, state):
        if done == 5:
            os.kill(os.getpid(), signal.SIGINT)

    on_one_device = functools.partial(run_training, mesh=mesh_of(1), on_step=interrupt)
    monkeypatch.setattr("rococo_jax.training.run.run_training", on_one_device)
    command = ["train", "--config", str(data / "config.py"), "--workdir", str(workdir)]
    assert main([*command, "--config.checkpoint.every=100"]) == 130
    told = capfd.readouterr().err
    assert "Ctrl-C: saving after this step" in told and "stopped after step 5, which is saved" in told
    done = run_training(config, workdir, mesh=mesh_of(1))
    assert done.resumed_from == 5
    assert_same_run(tmp_path / "run", whole_run)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_command_killed_at_a_random_moment_resumes_with_the_same_bits(data, tmp_path):
    command = [sys.executable, "-m", "rococo_jax", "train", "--config", str(data / "config.py"), "--config.steps=40"]
    killed, least, deadline = tmp_path / "killed", random.Random().randrange(3, 20), time.monotonic() + 120
    killed.mkdir()
    (killed / "metrics.jsonl").touch()
    process = subprocess.Popen([*command, "--workdir", str(killed)], stderr=subprocess.PIPE)
    while process.poll() is None and len(metrics_of(killed)) < least and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert 3 <= len(metrics_of(killed)) < 40
    for workdir in (killed, tmp_path / "whole"):
        assert subprocess.run([*command, "--workdir", str(workdir)], capture_output=True).returncode == 0
    assert_same_run(killed, tmp_path / "whole")


def test_a_loss_that_is_not_finite_stops_the_run(data, tmp_path, monkeypatch, capsys):
    steep = "optimizer.learning_rate=1e30 optimizer.warmup_fraction=0.4 losses.sc.weight=0 losses.vc.weight=0"
    steep += " losses.vc.partner_group=8 train.vision=none train.text=none data.cached_features=True"
    steep = steep.split()
    config, workdir = config_of(data, *steep), tmp_path / "run"
    monkeypatch.setattr("rococo_jax.training.run.run_training", functools.partial(run_training, mesh=mesh_of(1)))
    words = ["train", "--config", str(data / "config.py"), "--workdir", str(workdir)]
    assert main([*words, *(f"--config.{each}" for each in steep)]) == 3
    told = capsys.readouterr().err
    assert re.search(r"step \d+: loss nan, gradient norm nan; the checkpoint of step \d+ is good\n", told)
    assert not (workdir / "model").exists()
    written = metrics_of(workdir)
    assert written and all(np.isfinite(line["loss"]) for line in written)
    # The checkpoint is of the last step whose loss is a number: the same comes again.
    with pytest.raises(Diverged, match="the checkpoint of step"):
        run_training(config, workdir, mesh=mesh_of(1))


@pytest.mark.slow
def test_features_of_frozen_towers_are_computed_once(data, tmp_path):
    pools = {"data__feature_pool__mixed": 2, "data__feature_pool__captions": 3}
    settings = {"init__residual_head_width": 16, "steps": 20, "checkpoint__every": 10, "losses__vc__partner_group": 8}
    cached = changed(config_of(data), **FEATURES_ALONE, **pools, **settings)
    run_training(cached, tmp_path / "cached", mesh=mesh_of(1))
    losses = [line["loss"] for line in metrics_of(tmp_path / "cached")]
    assert np.mean(losses[-8:]) < np.mean(losses[:8])  # a step's own batch may be a hard one
    started, trained = trained_parameters(data / "start"), trained_parameters(tmp_path / "cached" / "model")
    frozen = [path for path in started if path.startswith(("vision.", "text."))]
    assert_same(*({path: parameters[path] for path in frozen} for parameters in (trained, started)))
    assert np.abs(trained["vision_head.down.kernel"]).max() > 0
    # A checkpoint is a model too, its frozen towers those of the start.
    of_checkpoint = load_model(tmp_path / "cached" / "checkpoints" / "20")
    assert of_checkpoint.name == "cached@20"
    assert_same(parameters_of(of_checkpoint.model), trained)
    assert of_checkpoint.fingerprint() == load_model(tmp_path / "cached" / "model").fingerprint()
    with pytest.raises(InputError, match=r"found '7'; wanted one of latest, \d+, 20"):
        load_model(f"{tmp_path / 'cached'}@7")
    # More steps go on from there; fewer are refused.
    with pytest.raises(InputError, match=r"config\.steps: found 10; wanted 20, with which this folder was begun, or m"):
        run_training(changed(cached, steps=10), tmp_path / "cached", mesh=mesh_of(1))
    more = run_training(changed(cached, steps=22), tmp_path / "cached", mesh=mesh_of(1))
    assert (more.step, more.resumed_from) == (22, 20)
    before = trained_parameters(tmp_path / "cached" / "model-20")
    np.testing.assert_array_equal(before["vision_head.up.kernel"], trained["vision_head.up.kernel"])


def test_a_run_is_not_resumed_with_another_config_or_another_starting_model(data, whole_run, tmp_path, refusal):
    arguments = ("--config", str(data / "config.py"), "--workdir", str(whole_run))
    assert "config.seed" in refusal("train", *arguments, "--config.seed=5").splitlines()[-1]
    start = shutil.copytree(data / "start", tmp_path / "start")
    config = config_of(data, f"init.model={start}")
    with pytest.raises(Stopped):
        run_training(config, tmp_path / "run", mesh=mesh_of(1), on_step=stop_after(2))
    shutil.rmtree(start)
    save_model(start, tiny_encoder(seed=9, name="start"))
    with pytest.raises(InputError, match="which this run starts from"):
        run_training(config, tmp_path / "run", mesh=mesh_of(1))


@pytest.mark.slow
def test_a_checkpoint_is_refused_if_the_model_with_its_frozen_parameters_changed(data, tmp_path):
    start = shutil.copytree(data / "start", tmp_path / "start")
    config = changed(config_of(data, f"init.model={start}"), train__vision="none", train__text="none", steps=2)
    run_training(config, tmp_path / "run", mesh=mesh_of(1))
    names = (f"{tmp_path / 'run'}@latest", tmp_path / "run" / "checkpoints" / "2")
    for name in names:
        assert load_model(name).fingerprint() == load_model(tmp_path / "run" / "model").fingerprint()
    shutil.rmtree(start)
    save_model(start, tiny_encoder(seed=9, name="start"))
    for name in names:
        with pytest.raises(InputError, match=rf"^{start}: weights: found SHA-256 .*; wanted .*{tmp_path / 'run'} was"):
            load_model(name)


def test_a_step_too_large_for_the_device_is_refused_before_it_runs(data, tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.training.run.memory_of", lambda device: 10_000)
    takes = r"with which a step of texts of 24 tokens takes 0\.0\d GB of a device's 0\.00 GB"
    with pytest.raises(InputError, match=rf"micro_batches: found 1, {takes}; wanted more micro-batches"):
        run_training(config_of(data), tmp_path / "run", mesh=mesh_of(1))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.parametrize("path", sorted(CHECKOUT.glob("configs/*.py")), ids=lambda path: path.stem)
def test_every_config_of_the_project_is_valid(path):
    config = read_config(path)
    assert config.keys() == default_config().keys()
    assert config.patch_dropout == (0.5 if path.stem == "web_pretrain" else 0.0)
    if path.stem == "siglip_finetune":
        assert (config.losses.contrastive.kind, config.data.text_length) == ("sigmoid", 64)
