"""Several real processes on one machine through `jax.distributed` train as one process with as many devices does."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from rococo_jax.encoders import load_model
from tests.support.processes import Hosts, processes_of, run_lines
from tests.support.tiny import random_captions, tiny_encoder
from tests.support.tiny_runs import metrics_of, trained_parameters, write_config_file
from tests.support.world import write_world

# More than one part of images for each process, and a last round in which process 1 has none.
IMAGES, IMAGES_PER_RUN = 40, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Captions to train on, a model to start from, and a retrieval benchmark and classes in the documented layout."""
    # They get longer, so that processes have texts of other lengths.
    captions = [random_captions(5, seed=number, longest=3 + number // 2) for number in range(IMAGES)]
    folder = write_world(tmp_path_factory.mktemp("data"), captions, altered={}, start=tiny_encoder(name="start"))
    for place in ("coco", "rococo", "cifar10/images/cat", "cifar10/images/dog"):
        (folder / place).mkdir(parents=True)
    (folder / "coco" / "images").symlink_to(folder / "images")
    (folder / "rococo" / "annotations").symlink_to(folder / "annotations")
    for number, path in enumerate(sorted((folder / "images").iterdir())):
        shutil.copy(path, folder / "cifar10" / "images" / ("cat", "dog")[number % 2])
    return folder


SHARDED = """
import json
import types
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from rococo_jax import storage
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import embedding, load_model
from rococo_jax.evaluation.callback import make_evaluation
from rococo_jax.models import fsdp
from rococo_jax.runtime import make_mesh
from rococo_jax.training import run, setup
from tests.support.tiny_runs import changed, tiny_config

fsdp.LEAST_SHARDED = 256
embedding.IMAGES_PER_RUN, embedding._PARTS_PER_ROUND = {images_per_run}, 1
folder = Path({folder!r})
# Frozen towers, so that little is compiled; both parts of the parameters are sharded.
settings = dict(train__vision="none", train__text="none", steps=9, batch_size=8, fsdp=2, checkpoint__every=100)
settings |= dict(eval__data=str(folder), eval__benchmarks="rococo,cifar10", eval__templates="1")
config = tiny_config(folder, **settings)
ask = make_evaluation(config.eval, keep=False)
gathered, sizes, scores, states = [], [], [], []
original, make_step, steps = multihost_utils.process_allgather, setup.make_step, []

def spy(array, **options):
    gathered.append(np.shape(array))
    return original(array, **options)

def made_once(*given):
    steps[:] = steps or [make_step(*given)]
    return steps[0]

def evaluate(encoder):
    multihost_utils.process_allgather = spy
    figures = ask(encoder)
    multihost_utils.process_allgather = original
    leaves = jax.tree.leaves(encoder.graph_and_state()[1])
    own = [sum(shard.data.nbytes for shard in leaf.addressable_shards) for leaf in leaves]
    sizes.append((sum(own), sum(leaf.nbytes for leaf in leaves)))
    sharded = [leaf for leaf in leaves if not leaf.is_fully_replicated]
    assert sharded and not any(leaf.is_fully_addressable for leaf in sharded)
    # What processes exchange are bytes and flags, never a parameter.
    shapes = {{leaf.shape for leaf in leaves}}
    assert gathered and not shapes & {{shape for shape in gathered if len(shape) > 1}}
    assert all(len(shape) < 2 for shape in gathered), gathered
    scores.append(encoder.encode_text(["a red dog"]))
    return figures

def on_step(done, state):
    states.append(state)
    if me == 1 and len(states) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.2)  # JAX's service looks for the signal every second

setup.make_step = made_once  # the same one in all three runs
stopped = run.run_training(config, folder / "sharded", on_step=on_step)
assert stopped.stopped == "SIGTERM" and 3 <= stopped.step <= 5, stopped
if me == 1:
    run.time = types.SimpleNamespace(monotonic=float)  # always 0: late by the clock of process 0 alone
timed = changed(config, checkpoint__minutes=1e-9)
done = run.run_training(timed, folder / "sharded", evaluate=evaluate, on_step=on_step)
assert done.resumed_from == stopped.step
assert (folder / "sharded" / "checkpoints" / "8").exists()
(held, whole), = sizes
assert held < 0.6 * whole, (held, whole)
# Each process with the whole model on a device of its own, as `rococo evaluate` has it.
written = load_model(done.model, mesh=make_mesh(jax.local_devices()))
alone = ask(written)
assert {{"image_to_text/clean/r1", "cifar10/clean/nll"}} <= alone.keys()
if me == 0:
    lines = [json.loads(line) for line in (folder / "sharded" / "evaluations.jsonl").read_text().splitlines()]
    assert lines == [{{"step": 9, **alone}}], (lines, alone)
np.testing.assert_array_equal(scores[-1], written.encode_text(["a red dog"]))
written, trained = parameters_of(written.model), states[-1].parameters
head = trained["vision_head.kernel"]
assert not head.is_fully_addressable and not head.is_fully_replicated
for path, array in trained.items():
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, written[path][shard.index], err_msg=path)

if me == 0:
    storage.shutil.disk_usage = lambda folder: types.SimpleNamespace(free=10)
try:
    run.run_training(changed(config, checkpoint__every=1), folder / "full")
    raise AssertionError("a checkpoint without room")
except InputError as error:
    assert error.is_on_all_processes and "/full/checkpoints/1: disk: found 10 bytes free" in str(error), error
"""


@pytest.mark.slow
def test_two_processes_with_sharded_parameters_can_save_evaluate_and_resume(data):
    """A stop, a resumed run with an evaluation of the model that is as of one process, and a run without room."""
    lines = SHARDED.format(folder=str(data), images_per_run=IMAGES_PER_RUN)
    for code, said in run_lines(lines, 2, timeout=60):
        assert code == 0, said
    started, trained = (trained_parameters(data / name) for name in ("start", "sharded/model"))
    assert started.keys() == trained.keys()
    moved = {path for path, array in started.items() if not np.array_equal(trained[path], array)}
    assert moved == {path for path in started if not path.startswith(("vision.", "text."))}


@pytest.mark.slow
@pytest.mark.thorough
def test_two_processes_train_like_one_process_with_the_same_number_of_devices(data, tmp_path):
    settings = {"steps": 4, "batch_size": 8, "checkpoint__every": 2, "ema": 0.5, "losses__sc__weight": 1.0}
    settings |= {"losses__vc__weight": 1.0, "losses__vc__partner_group": 2}
    write_config_file(data, **settings)
    one, two = tmp_path / "one", tmp_path / "two"
    for workdir, processes in ((one, 1), (two, 2)):
        words = "train", "--config", data / "config.py", "--workdir", workdir
        with Hosts(
            processes_of(processes, 4 // processes, *words, timeout=60), tmp_path / f"{processes}.logs"
        ) as group:
            assert group.end(600) == [0] * processes, group.said(0)
    losses = [[line["loss"] for line in metrics_of(workdir)] for workdir in (one, two)]
    # The reductions go through another library between processes, in another order.
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    found, expected = (load_model(workdir / "model").encode_image(pixels) for workdir in (two, one))
    np.testing.assert_allclose(found, expected, atol=1e-3)
