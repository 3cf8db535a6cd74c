"""Several real processes on one machine through `jax.distributed` train as one process with as many devices does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import load_model
from tests.support.paths import CHECKOUT
from tests.support.processes import run_lines
from tests.support.tiny import random_captions, tiny_encoder

STEPS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "images").mkdir()
    rng = np.random.default_rng(1)
    items = []
    for number in range(20):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "images" / f"{number:02}.png")
        items.append({"image": f"{number:02}.png", "caption": random_captions(3, seed=number)})
    (folder / "captions.json").write_text(json.dumps(items))
    save_model(folder / "start", tiny_encoder(name="start"))
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def start(data: Path, workdir: Path, devices: int, processes: int = 1, number: int = 0, port: int = 0, *more: str):
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    if processes > 1:
        environment |= {
            "ROCOCO_COORDINATOR": f"localhost:{port}",
            "ROCOCO_PROCESSES": str(processes),
            "ROCOCO_PROCESS": str(number),
            "ROCOCO_TIMEOUT": "60",
        }
    overrides = {
        "init.model": data / "start",
        "data.images": data / "images",
        "data.captions": data / "captions.json",
        "steps": STEPS,
        "batch_size": 8,
        "losses.sc.weight": 1,
        "losses.sc.select": "lowest",
        "losses.vc.weight": 1,
        "losses.vc.partner_group": 2,
        "log.every": 1,
        "log.tensorboard": False,
        "checkpoint.every": 2,
        "ema": 0.5,
    }
    config = CHECKOUT / "configs" / "coco_lit.py"
    command = [sys.executable, "-m", "rococo_jax", "train", "--config", str(config), "--workdir", str(workdir)]
    command += ["--config.train.vision=all", "--config.train.text=all", "--config.data.cached_features=false"]
    command += ["--config.data.feature_noise=0", "--config.init.residual_head_width=0"]
    command += [*(f"--config.{key}={value}" for key, value in overrides.items()), *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes: subprocess.Popen) -> None:
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)


def losses(workdir: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (workdir / "metrics.jsonl").read_text().splitlines()]


SHARDED = """
import types

import numpy as np
from rococo_jax import storage
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh
from rococo_jax.models import fsdp
from rococo_jax.training.config import default_config
from rococo_jax.training.run import train
import jax

fsdp.LEAST_SHARDED = 256
folder = {folder!r}
config = default_config()
config.init.model, config.data.images = folder + "/start", folder + "/images"
config.data.captions, config.log.tensorboard = folder + "/captions.json", False
# Frozen towers, so that little is compiled; both parts of the parameters are sharded.
config.train.vision = config.train.text = "none"
config.steps, config.batch_size, config.fsdp, config.log.every = 9, 8, 2, 1
scores, states = [], []

def evaluate(encoder):
    scores.append(encoder.encode_text(["a red dog"]))
    return {{"score": 1.0}}

def on_step(done, state):
    states.append(state)
    if me == 1 and len(states) == 3:
        os.kill(os.getpid(), signal.SIGTERM)

config.checkpoint.every = 100
stopped = train(config, folder + "/sharded", on_step=on_step)
assert stopped.stopped == "SIGTERM" and 3 <= stopped.step <= 5, stopped
done = train(config, folder + "/sharded", evaluate=evaluate, on_step=on_step)
assert done.resumed_from == stopped.step
written = load_model(done.model, mesh=make_mesh(jax.local_devices()))
np.testing.assert_array_equal(scores[-1], written.encode_text(["a red dog"]))
written, trained = parameters_of(written.model), states[-1].parameters
head = trained["vision_head.kernel"]
assert not head.is_fully_addressable and not head.is_fully_replicated
for path, array in trained.items():
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, written[path][shard.index], err_msg=path)

if me == 0:
    storage.shutil.disk_usage = lambda folder: types.SimpleNamespace(free=10)
config.steps = 1
try:
    train(config, folder + "/full")
    raise AssertionError("a checkpoint without room")
except InputError as error:
    assert error.is_on_all_processes and "/full/checkpoints/1: disk: found 10 bytes free" in str(error), error
"""


def test_parameters_sharded_over_two_processes_stop_together_resume_and_end_in_a_model_or_without_room(data):
    for code, said in run_lines(SHARDED.format(folder=str(data)), 2, timeout=60):
        assert code == 0, said
    started, trained = (parameters_of(load_model(data / name).model) for name in ("start", "sharded/model"))
    assert started.keys() == trained.keys()
    for path, array in started.items():
        if path.startswith(("vision.", "text.")):
            np.testing.assert_array_equal(trained[path], array, err_msg=path)
        else:
            assert np.abs(trained[path] - array).max() > 0, path


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_train_as_one_with_as_many_devices(data, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    port = free_port()
    finish(*(start(data, two, 2, 2, number, port) for number in range(2)))
    finish(start(data, one, 4))
    assert len(losses(one)) == STEPS
    # The reductions go through another library between processes, in another order.
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-4)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    found, expected = (load_model(workdir / "model").encode_image(pixels) for workdir in (two, one))
    np.testing.assert_allclose(found, expected, atol=1e-3)
