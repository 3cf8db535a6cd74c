"""Parameters that are sharded over processes are evaluated where they are, with the figures of one process."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from tests.support.processes import run_lines
from tests.support.tiny import random_captions, tiny_encoder

# More than one part of images for each process, and a last round in which process 1 has none.
IMAGES = 150
TRAINED = """
import json
import jax
import numpy as np
from jax.experimental import multihost_utils
from rococo_jax.encoders import embedding, load_model
from rococo_jax.evaluation.callback import make_evaluation
from rococo_jax.models import fsdp
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config
from rococo_jax.training.run import train

fsdp.LEAST_SHARDED = 256
embedding.IMAGES_PER_RUN, embedding._PARTS_PER_ROUND = 64, 1
folder, gathered, sizes = {folder!r}, [], []
config = default_config()
config.init.model, config.log.tensorboard = folder + "/start", False
config.data.images, config.data.captions = folder + "/coco/images", folder + "/captions.json"
config.steps, config.batch_size, config.fsdp = 1, 8, 2
config.eval.data, config.eval.benchmarks, config.eval.templates = folder, "rococo,cifar10", "1"
ask = make_evaluation(config.eval, keep=False)
original = multihost_utils.process_allgather

def spy(array, **options):
    gathered.append(np.shape(array))
    return original(array, **options)

def evaluate(encoder):
    multihost_utils.process_allgather = spy
    figures = ask(encoder)
    multihost_utils.process_allgather = original
    own = [sum(s.data.nbytes for s in leaf.addressable_shards) for leaf in jax.tree.leaves(encoder._state)]
    sizes.append((sum(own), sum(leaf.nbytes for leaf in jax.tree.leaves(encoder._state))))
    shapes = {{leaf.shape for leaf in jax.tree.leaves(encoder._state)}}
    sharded = [leaf for leaf in jax.tree.leaves(encoder._state) if not leaf.is_fully_replicated]
    assert sharded and not any(leaf.is_fully_addressable for leaf in sharded)
    # What processes exchange are bytes and flags, never a parameter.
    assert gathered and not shapes & {{shape for shape in gathered if len(shape) > 1}}
    assert all(len(shape) < 2 for shape in gathered), gathered
    return figures

done = train(config, folder + "/run", evaluate=evaluate)
(held, whole), = sizes
assert held < 0.6 * whole, (held, whole)
# Each process with the whole model on a device of its own, as `rococo evaluate` has it.
alone = ask(load_model(done.model, mesh=make_mesh(jax.local_devices())))
if me == 0:
    lines = open(folder + "/run/evaluations.jsonl").read().splitlines()
    assert [json.loads(line) for line in lines] == [{{"step": 1, **alone}}], (lines, alone)
    assert {{"image_to_text/clean/r1", "cifar10/clean/nll"}} <= alone.keys()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A retrieval benchmark and classes in the documented layout, captions to train on, and a model to start from."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    items = []
    for number in range(IMAGES):  # captions get longer, so that processes have texts of other lengths
        name = f"{number:03}.png"
        for place in ("coco/images", f"cifar10/images/{('cat', 'dog')[number % 2]}"):
            (folder / place).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / place / name)
        items.append({"image": name, "caption": random_captions(5, seed=number, longest=3 + number // 8)})
    (folder / "rococo" / "annotations").mkdir(parents=True)
    for path in ("rococo/annotations/coco_karpathy_test.json", "captions.json"):
        (folder / path).write_text(json.dumps(items))
    save_model(folder / "start", tiny_encoder(name="start"))
    return folder


def test_two_processes_evaluate_the_shards_that_they_train_without_gathering_them(data):
    for code, said in run_lines(TRAINED.format(folder=str(data)), 2, timeout=60):
        assert code == 0, said
