"""A tiny training run on the folder of `write_world`: its config of few, quick steps, what it wrote, how it stops."""

import copy
import json
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.encoders import load_model
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config, flat

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
    """The config of a run on what `write_world` wrote, every step logged."""
    paths = {"init__model": "start", "data__images": "images", "data__captions": "captions.json"}
    common = {key: str(folder / name) for key, name in paths.items()} | {"log__every": 1, "log__tensorboard": False}
    return changed(default_config(), **(common | settings))


def write_config_file(folder: Path, **settings) -> Path:
    """`config.py` in the folder of `write_world`: its `tiny_config`, for commands."""
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

    def on_step(completed, state):
        if completed == step:
            raise Stopped

    return on_step
