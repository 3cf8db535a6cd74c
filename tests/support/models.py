"""Read models of any source onto one device, compare them, and change their files."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rococo_jax.checkpoints.parameters import build_model, parameters_of
from rococo_jax.encoders import Encoder, load_model
from rococo_jax.runtime import make_mesh
from tests.support.tiny import drawn_parameters

MESH = make_mesh(jax.devices()[:1])
read_model = partial(load_model, mesh=MESH)
read_towers = partial(load_model, mesh=MESH, tokenizer="none")


def encoder_of(spec, preprocessing=None, tokenizer=None, name: str = "mine", seed: int = 3) -> Encoder:
    """An encoder with random parameters, without the cost of initialising them."""
    return Encoder(build_model(spec, drawn_parameters(spec, seed)), preprocessing, tokenizer, name=name, mesh=MESH)


def assert_same_model(model: Encoder, expected: Encoder) -> None:
    """Specs, preprocessing and tokenizers are equal, and parameters bit for bit."""
    assert (model.spec, model.preprocessing) == (expected.spec, expected.preprocessing)
    assert (model.tokenizer and model.tokenizer.hash()) == (expected.tokenizer and expected.tokenizer.hash())
    assert_same_arrays(parameters_of(model.model), parameters_of(expected.model))


def assert_same_arrays(arrays, expected) -> None:
    """Arrays by name are equal bit for bit."""
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected[name]), err_msg=name)


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite a file through `change(its object)`."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
