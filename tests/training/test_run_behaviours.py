"""`rococo train` with an evaluation, and of models and losses that other tests of runs leave out.

Where a loss is checked, its first value is recomputed by NumPy from the embeddings of the starting model.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import build_model
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.models import ModelSpec
from rococo_jax.runtime import enable_compilation_cache, make_mesh
from rococo_jax.training import run
from rococo_jax.training.config import read_config
from tests.support.tiny import drawn_parameters, random_captions, tiny_spec, tiny_tokenizer

IMAGES, BATCH, STEPS = 8, 8, 6


@pytest.fixture(scope="module", autouse=True)
def programs_are_kept(compiled_programs_are_kept):
    """As the command does; and compiled without what makes them fast, which takes half of the time."""
    enable_compilation_cache()
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """The command takes all devices of the machine: here as on a machine that has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_mesh", lambda fsdp=1: make_mesh(jax.devices()[:1], fsdp=fsdp))
        yield


def encoder_of(spec: ModelSpec, tokenizer: Tokenizer) -> Encoder:
    preprocessing = Preprocessing(exact_size=(32, 32), mean=(0.5, 0.4, 0.3), std=(0.3, 0.3, 0.3))
    parameters = {**drawn_parameters(spec), "logit_scale": np.float32(2.0)}
    mesh = make_mesh(jax.devices()[:1])
    return Encoder(build_model(spec, parameters), preprocessing, tokenizer, name="start", mesh=mesh)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Images, captions with partners, annotations, starting models, and a config of few, quick steps."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    (folder / "images").mkdir()
    (folder / "annotations").mkdir()
    items, partners = [], []
    for number in range(IMAGES):
        name = f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / "images" / name)
        captions = random_captions(5, seed=number, longest=6)
        items.append({"image": name, "caption": captions})
        partners += [
            {"caption": text, "hard_positive": f"the {text}", "hard_negative": f"no {text}" if number % 3 else None}
            for text in captions
        ]
    for name, value in (("captions", items), ("annotations/coco_karpathy_test", items), ("partners", partners)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    for name, encoder in (("clip", encoder_of(tiny_spec(16), tiny_tokenizer())),):
        save_model(folder / name, encoder)
    (folder / "config.py").write_text(
        "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n"
        "    config = default_config()\n"
        f"    config.steps, config.batch_size = {STEPS}, {BATCH}\n"
        f"    config.init.model = {str(folder / 'clip')!r}\n"
        f"    config.data.images = {str(folder / 'images')!r}\n"
        f"    config.data.captions = {str(folder / 'captions.json')!r}\n"
        "    config.log.every, config.log.tensorboard = 1, False\n"
        "    return config\n"
    )
    return folder


def test_the_best_checkpoint_is_kept_beside_the_last(data, tmp_path):
    scores, seen = {2: 0.9, 4: 0.3, 6: 0.5}, []
    config = read_config(data / "config.py", ["config.checkpoint.keep=1", "config.checkpoint.every=1"])
    config.eval.every = 2  # by the callback below, which needs no folders

    def evaluate(encoder: Encoder) -> dict[str, float]:
        step = encoder.provenance["trained"]["step"]
        seen.append((step, float(encoder.model.logit_scale[...])))
        return {"score": scores[step]}

    done = run.train(config, tmp_path / "run", evaluate=evaluate)
    assert [step for step, _ in seen] == [2, 4, 6] and len({scale for _, scale in seen}) == 3
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdecimal()}
    assert kept == {2, 6}
    # The model at the end is the last, not the best.
    assert float(load_model(done.model).model.logit_scale[...]) == seen[-1][1]
