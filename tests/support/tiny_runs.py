"""What a tiny training run takes: images, captions and a model in a folder, and a config of few, quick steps."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from PIL import Image

from rococo_jax.checkpoints import save_model
from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config, flat
from tests.support.tiny import random_captions, tiny_encoder

# Captions of few words, most of which have a replacement.
CAPTIONS = (
    "a red dog sits on the house",
    "two men and a cat in a boat",
    "the woman runs near a big tree",
    "a blue car near the small house",
    "a man and his dog on a ball",
)
DEFAULTS = flat(default_config())
FEATURES_ALONE = {"train__vision": "none", "train__text": "none", "data__cached_features": True}


def write_material(
    folder: Path, captions: Sequence[Sequence[str]], size: tuple[int, int] = (32, 32), encoder: Encoder | None = None
) -> Path:
    """`images/NN.png` of random pixels, one for each list of captions; `captions.json`; and the model `start`."""
    (folder / "images").mkdir()
    random, items = np.random.default_rng(0), []
    for number, texts in enumerate(captions):
        name = f"{number:02}.png"
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(folder / "images" / name)
        items.append({"image": name, "caption": list(texts)})
    (folder / "captions.json").write_text(json.dumps(items))
    save_model(folder / "start", encoder or tiny_encoder(name="start"))
    return folder


def write_random_material(folder: Path, images: int) -> Path:
    """`write_material` with three random captions of at most six words for each image."""
    return write_material(folder, [random_captions(3, seed=number, longest=6) for number in range(images)])


def with_a_broken_image(images: Path, folder: Path) -> str:
    """A folder with the same images, of which 07.png ends early."""
    folder.mkdir()
    for path in images.iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[: 100 if path.stem == "07" else None])
    return str(folder)


def changed(config: ConfigDict, **settings) -> ConfigDict:
    """A copy with other values: `losses__sc__weight=1.0`."""
    config = copy.deepcopy(config)  # resolved, `data.workers` would take words alone
    config.update_from_flattened_dict({key.replace("__", "."): value for key, value in settings.items()})
    return config


def tiny_config(folder: Path, **settings) -> ConfigDict:
    """The config of a run on what `write_material` wrote, every step logged."""
    paths = {"init__model": "start", "data__images": "images", "data__captions": "captions.json"}
    common = {key: str(folder / name) for key, name in paths.items()} | {"log__every": 1, "log__tensorboard": False}
    return changed(default_config(), **common, **settings)


def write_config_file(folder: Path, **settings) -> Path:
    """`config.py` in the folder of `write_material`: its `tiny_config`, for commands."""
    leaves = {key: value for key, value in flat(tiny_config(folder, **settings)).items() if value != DEFAULTS[key]}
    (folder / "config.py").write_text(
        "from rococo_jax.training.config import default_config\n\n\ndef get_config():\n"
        f"    config = default_config()\n    config.update_from_flattened_dict({leaves!r})\n    return config\n"
    )
    return folder


def mesh_of(devices: int) -> Mesh:
    """The first virtual devices."""
    return make_mesh(jax.devices()[:devices])


def metrics_of(workdir: Path) -> list[dict]:
    """The lines of a run's log."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def trained_parameters(model: str | Path) -> dict[str, np.ndarray]:
    """The parameters of a model directory or a checkpoint, by path."""
    return {path: np.asarray(array) for path, array in parameters_of(load_model(model).model).items()}


class Stopped(Exception):
    """Thrown into a run, which then ends as if the machine had gone."""


def stop_after(step: int):
    """An `on_step` that ends a run as a machine that is lost does."""

    def on_step(done, state):
        if done == step:
            raise Stopped

    return on_step
