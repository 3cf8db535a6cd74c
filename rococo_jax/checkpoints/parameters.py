"""Parameters of a model as a flat dictionary of dotted paths, and a model from such a dictionary.

A model is made from its spec without initialising anything: shapes are evaluated, then the arrays are put in place.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.storage import hash_bytes


@runtime_checkable
class HasInputParts(Protocol):
    """How a model reads images and texts; either may be None."""

    preprocessing: Any
    tokenizer: Any


@runtime_checkable
class HasModelParts(HasInputParts, Protocol):
    """What `save_model` and the exports read: an `Encoder`, a `ModelParts`, or anything with these attributes."""

    model: DualEncoder
    provenance: dict[str, Any]


class ModelParts(NamedTuple):
    """What a converter returns: the arguments of an `Encoder`, in their order.

    Preprocessing is None for a text tower, the tokenizer None for an image tower or where none was found.
    """

    model: DualEncoder
    preprocessing: Any
    tokenizer: Any
    provenance: dict[str, Any]


@functools.lru_cache(maxsize=16)
def _abstract_model(spec: ModelSpec, dtype: str) -> tuple[Any, Any]:
    """The graph of a model and its state as shapes. Tracing takes a third of a second, so it is done once a spec."""
    return nnx.split(nnx.eval_shape(lambda: DualEncoder(spec, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype))))


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by dotted path. A single tower has no logit scale to speak of, so none is listed."""
    _, state = _abstract_model(spec, "float32")
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten_dict(nnx.to_pure_dict(state), sep=".").items()}
    return {path: shape for path, shape in shapes.items() if _is_stored(path, spec)}


def _is_stored(path: str, spec: ModelSpec) -> bool:
    return not path.startswith("logit_") or (spec.vision is not None and spec.text is not None)


def build_model(spec: ModelSpec, parameters: Mapping[str, Any], dtype: DTypeLike = jnp.float32) -> DualEncoder:
    """A model that holds `parameters` (arrays by dotted path, all that `parameter_shapes` lists)."""
    graph, abstract = _abstract_model(spec, jnp.dtype(dtype).name)
    state = jax.tree.map(lambda leaf: leaf, abstract)  # a copy to fill: the other one is kept
    pure = flatten_dict(nnx.to_pure_dict(state), sep=".")
    single = {path: jnp.zeros(leaf.shape, leaf.dtype) for path, leaf in pure.items() if not _is_stored(path, spec)}
    nnx.replace_by_pure_dict(state, unflatten_dict({**jax.tree.map(jnp.asarray, dict(parameters)), **single}, sep="."))
    return nnx.merge(graph, state)


def parameters_of(model: DualEncoder) -> dict[str, jax.Array]:
    """The inverse of `build_model`: arrays by dotted path, statistics of batch norms among them."""
    flat = flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))), sep=".")
    return {path: array for path, array in flat.items() if _is_stored(path, model.spec)}


def without_matching(model: DualEncoder) -> DualEncoder:
    """The model without its matching head, which no longer fits once the towers are trained on alone."""
    kept = {path: array for path, array in parameters_of(model).items() if not path.startswith("matching.")}
    return build_model(dataclasses.replace(model.spec, matching=None), kept, model.dtype)


def hash_parameters(parameters: Mapping[str, Any]) -> str:
    """SHA-256 of names, shapes and float32 values; the same however the arrays are laid out over devices."""
    parts = []
    for path in sorted(parameters):
        array = np.asarray(parameters[path], dtype="<f4")
        parts += [path.encode(), repr(array.shape).encode(), hashlib.sha256(array.tobytes()).digest()]
    return hash_bytes(*parts)


def with_image_size(spec: ModelSpec, image_size: int) -> ModelSpec:
    """The same model for square images of another size, in pixels: the tower interpolates the stored positions.

    Raises InputError where the size is smaller than a patch.
    """
    grid = spec.vision.position_grid or spec.vision.grid
    vision = dataclasses.replace(spec.vision, image_size=image_size)
    if vision.grid < 1:
        raise InputError("image size", "pixels", image_size, f"at least {vision.patch_size}, one patch")
    return dataclasses.replace(
        spec, vision=dataclasses.replace(vision, position_grid=None if grid == vision.grid else grid)
    )


def assemble_parts(
    spec: ModelSpec,
    parameters: Mapping[str, np.ndarray],
    preprocessing: Any,
    tokenizer: Any,
    provenance: Mapping[str, Any],
    dtype: DTypeLike,
    image_size: int | None,
) -> ModelParts:
    """The last steps of every conversion: hash the weights, change the image size if asked, build the module."""
    provenance = {**provenance, "weights_sha256": hash_parameters(parameters)}
    if spec.vision is not None and image_size not in (None, spec.vision.image_size):
        spec = with_image_size(spec, image_size)
        preprocessing = preprocessing and preprocessing.with_image_size(image_size)
    return ModelParts(build_model(spec, parameters, dtype), preprocessing, tokenizer, provenance)
