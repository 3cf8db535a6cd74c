"""`Checkpoint`: the parts of a model; and its parameters as a flat dictionary of dotted paths.

A model is built from its spec without initialising anything: shapes are evaluated, then the arrays are put in place.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental.multihost_utils import process_allgather
from jax.typing import DTypeLike

from rococo_jax.data.training_images import TrainingImages
from rococo_jax.errors import InputError
from rococo_jax.models import DualEncoder, ModelSpec
from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.positions import positions_on_grid
from rococo_jax.storage import hash_bytes

# How positions are resized for another image size, by the format; else as the family does in `transformers`.
_POSITION_RULES = {"openai": "antialiased", "open_clip": "antialiased", "big_vision": "linear"}
_MAPS_OF_HEADS = tuple(f"{side}_head.{map}kernel" for side in ("vision", "text") for map in ("", "affine."))


class Checkpoint(NamedTuple):
    """The parts of a model, from another project's checkpoint, a model directory or an encoder.

    Attributes:
        parameters: arrays for all names of `parameter_shapes`.
        preprocessing: None for a text tower.
        tokenizer: None for an image tower, or if none was found.
        training_images: the images that the model was trained on; None if they are not known.
        name: what tables call it.
    """

    spec: ModelSpec
    parameters: Mapping[str, Any]
    preprocessing: Any
    tokenizer: Any
    provenance: Mapping[str, Any]
    training_images: TrainingImages | None = None
    name: str = "model"


def checkpoint_of(encoder: Any) -> Checkpoint:
    """Return the parts of an `Encoder`."""
    fields = ("preprocessing", "tokenizer", "provenance", "training_images", "name")
    return Checkpoint(encoder.spec, parameters_of(encoder.model), *(getattr(encoder, field) for field in fields))


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by dotted path. Single towers have no logit scale."""
    _, state = abstract_model(spec)
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten_dict(nnx.to_pure_dict(state), sep=".").items()}
    return {path: shape for path, shape in shapes.items() if _is_stored(path, spec)}


def _is_stored(path: str, spec: ModelSpec) -> bool:
    """Return whether a parameter is part of a checkpoint; single towers have a logit scale in memory alone."""
    return not path.startswith("logit_") or (spec.vision is not None and spec.text is not None)


def build_model(spec: ModelSpec, parameters: Mapping[str, Any], dtype: DTypeLike = jnp.float32) -> DualEncoder:
    """Return a model with these parameters, arrays for all names of `parameter_shapes`."""
    graph, abstract = abstract_model(spec, jnp.dtype(dtype).name)
    state = jax.tree.map(lambda leaf: leaf, abstract)  # a copy to fill: the other one is kept
    pure = flatten_dict(nnx.to_pure_dict(state), sep=".")
    not_stored = [path for path in pure if not _is_stored(path, spec)]
    scalars_without_a_checkpoint = {path: jnp.zeros(pure[path].shape, pure[path].dtype) for path in not_stored}
    arrays = {path: jnp.asarray(array) for path, array in parameters.items()}
    nnx.replace_by_pure_dict(state, unflatten_dict({**arrays, **scalars_without_a_checkpoint}, sep="."))
    return nnx.merge(graph, state)


def parameters_of(model: DualEncoder) -> dict[str, jax.Array]:
    """Return the parameters of a model by dotted path, with the statistics of batch norms."""
    flat = flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))), sep=".")
    return {path: array for path, array in flat.items() if _is_stored(path, model.spec)}


def without_matching(model: DualEncoder) -> DualEncoder:
    """Return the model without its matching head, which no longer fits once the towers are trained without it."""
    parameters = {path: array for path, array in parameters_of(model).items() if not path.startswith("matching.")}
    return build_model(dataclasses.replace(model.spec, matching=None), parameters, model.dtype)


def is_fully_addressable(parameters: Mapping[str, Any]) -> bool:
    """Return whether this process has all values; False if arrays are sharded over several processes."""
    arrays = [array for array in parameters.values() if isinstance(array, jax.Array)]
    return all(array.is_fully_addressable or array.is_fully_replicated for array in arrays)


def hash_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, shapes and float32 values, the same however arrays are laid out over devices.

    Arrays that are sharded over several processes are gathered one by one, so all processes must call this function.
    """

    def parts(path: str, values: Any) -> tuple[bytes, bytes, bytes]:
        array = np.ascontiguousarray(np.asarray(values, dtype="<f4"))
        return path.encode(), repr(np.shape(values)).encode(), hashlib.sha256(array.data).digest()

    paths = sorted(parameters)
    sharded = [path for path in paths if not is_fully_addressable({path: parameters[path]})]
    hashed = {path: parts(path, process_allgather(parameters[path], tiled=True)) for path in sharded}
    rest = [path for path in paths if path not in hashed]
    # Hashing releases the GIL: a model of 600 MB takes as long as its loading from memory.
    with ThreadPoolExecutor() as pool:
        hashed |= zip(rest, pool.map(parts, rest, map(parameters.get, rest)), strict=True)
    return hash_bytes(*itertools.chain.from_iterable(hashed[path] for path in paths))


def check_parameters(parameters: Mapping[str, Any], source: object, recorded: str | None = None) -> None:
    """Raise InputError for NaN and infinite values, for a head of zeros, and for another hash than the recorded one.

    Parameters that are sharded over processes are not checked.
    """
    if not is_fully_addressable(parameters):
        return
    for path, array in parameters.items():
        values = np.asarray(array)
        # The sum is finite exactly if every value is: float64 does not overflow.
        with np.errstate(invalid="ignore"):
            total = values.sum(dtype=np.float64)
        if not np.isfinite(total):
            count = int((~np.isfinite(values)).sum())
            raise InputError(source, path, f"{count} NaN or infinite values of {values.size}", "finite numbers")
        if path in _MAPS_OF_HEADS and not values.any():
            raise InputError(source, path, "zeros alone", "a linear map that is not zero")
    # Model directories of early releases lack the hash.
    if recorded is not None and (actual_hash := hash_parameters(parameters)) != recorded:
        expected = f"{recorded[:12]}..., as recorded in the model's description: they are damaged, or another model's"
        raise InputError(source, "weights", f"SHA-256 {actual_hash[:12]}...", expected)


def check_tokenizer(tokenizer: Any, spec: ModelSpec, source: object) -> None:
    """Raise InputError if the tokenizer does not fit the text tower.

    It must not give ids beyond the tower's vocabulary, and must end texts with the id that the tower pools at.
    """
    if spec.text is None or tokenizer is None:
        return
    size = spec.text.vocabulary_size
    word, largest_id = max(tokenizer.rust.get_vocab().items(), key=lambda entry: entry[1])
    if largest_id >= size:
        problem = f"token ids up to {largest_id} ({word!r})"
        raise InputError(source, "tokenizer", problem, f"ids below {size}, the rows of the text tower's table")
    if not 0 <= tokenizer.spec.pad_id < size:
        raise InputError(source, "tokenizer.pad_id", tokenizer.spec.pad_id, f"an id from 0 to {size - 1}")
    if spec.text.pooling == "first_eos" and spec.text.eos_id not in tokenizer.encode(["a"])[0]:
        problem = (
            f"{spec.text.eos_id}, which the tokenizer adds to no text (it ends texts with {tokenizer.spec.eos_id})"
        )
        raise InputError(source, "text.eos_id", problem, "the id that ends a text")


def check_images(checkpoint: Checkpoint, source: object) -> Checkpoint:
    """Return the checkpoint. Raises InputError if the preprocessing does not fit the image tower.

    Towers read squares, or with a flexible grid images that keep their shape.
    """
    spec, preprocessing = checkpoint.spec, checkpoint.preprocessing
    if spec.vision is None or preprocessing is None:
        return checkpoint
    height, width = preprocessing.image_size
    if height != width:
        raise InputError(source, "preprocessing", f"images of {height} x {width} pixels", "square images")
    expected = spec.vision.patch_size if spec.vision.flexible_grid else None
    if preprocessing.patch_size != expected:
        wanted = f"{expected}, the patch of a tower whose grid follows the image" if expected else "none: one grid"
        raise InputError(source, "preprocessing.patch_size", preprocessing.patch_size, wanted)
    return checkpoint


def with_image_size(checkpoint: Checkpoint, image_size: int | None) -> Checkpoint:
    """Return the same model for square images of another size in pixels.

    The tower interpolates the stored positions as the source library does, and provenance records that the caller
    chose the size. Raises InputError if the size is smaller than a patch, or the model reads no images.
    """
    if image_size is None:
        return checkpoint
    spec, preprocessing, provenance = checkpoint.spec, checkpoint.preprocessing, checkpoint.provenance
    read_from = {**provenance.get("read_from", {}), "image size": "the argument image_size"}
    provenance = {**provenance, "read_from": read_from}
    if spec.vision is None:
        raise InputError("image size", "pixels", image_size, "none, for a model without an image tower")
    if image_size != spec.vision.image_size:
        vision = dataclasses.replace(spec.vision, image_size=image_size)
        if vision.grid < 1:
            raise InputError("image size", "pixels", image_size, f"at least {vision.patch_size}, one patch")
        if vision.stores_positions and not vision.flexible_grid:
            stored_grid = spec.vision.position_grid or spec.vision.grid
            vision = _with_stored_grid(vision, stored_grid, provenance)
        spec = dataclasses.replace(spec, vision=vision)
    if preprocessing is not None and preprocessing.image_size[0] != image_size:
        preprocessing = preprocessing.with_image_size(image_size)
    return checkpoint._replace(spec=spec, preprocessing=preprocessing, provenance=provenance)


def _with_stored_grid(vision: Any, stored_grid: int, provenance: Mapping[str, Any]) -> Any:
    """Return the tower with positions that are stored for this grid and, if its own differs, interpolated."""
    if stored_grid == vision.grid:
        return dataclasses.replace(vision, position_grid=None, position_rule="bicubic")
    origin = before_training(provenance)
    if "joined" in origin:
        origin = before_training(origin["joined"]["vision"])
    rule_of_family = origin.get("position_rule", "bicubic")
    rule = _POSITION_RULES.get(origin.get("format"), rule_of_family)
    return dataclasses.replace(vision, position_grid=stored_grid, position_rule=rule)


def before_training(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provenance of the model that the first training started from."""
    while "started_from" in provenance:
        provenance = provenance["started_from"]
    return provenance


def with_interpolated_positions(spec: ModelSpec, parameters: Mapping[str, Any]) -> tuple[ModelSpec, Mapping[str, Any]]:
    """Return the same model with position embeddings of the size that it is used at, instead of interpolated ones."""
    if spec.vision is None or spec.vision.position_grid is None or spec.vision.flexible_grid:
        return spec, parameters
    vision = dataclasses.replace(spec.vision, position_grid=None, position_rule="bicubic")
    positions = positions_on_grid(jnp.asarray(parameters["vision.positions"]), spec.vision)
    return dataclasses.replace(spec, vision=vision), {**parameters, "vision.positions": positions}


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """Settings that a checkpoint may not record.

    Attributes:
        pooling: pooling of a DINOv2, DINOv3 or BERT tower; see `Family.poolings`.
        activation: `quick_gelu` or `gelu`, for OpenAI and open_clip checkpoints that do not record it.
        heads: numbers of heads of the image and the text tower, such as `16,8`, for a state dict of unknown size.
        tokenizer: a folder, a hub name, or `none`; by default the checkpoint's own or its family's.
        image_size: side in pixels of the images that the model is used with; see `image_sizes`.
        is_format_declared: whether the caller named the format.
    """

    pooling: str | None = None
    activation: str | None = None
    heads: str | None = None
    tokenizer: str | None = None
    image_size: int | None = None
    is_format_declared: bool = False


def missing_choice(source: object, argument: str, problem: str, wanted: str) -> InputError:
    """Return the error for a setting that a checkpoint does not record: it says how to give it to any command."""
    elsewhere = "for a command without this argument, convert the checkpoint with `rococo convert` first"
    return InputError(source, argument, problem, f"the argument {argument}, {wanted}; {elsewhere}")


def sources_of_settings(file: str, config: Mapping[str, Any], keys: Mapping[str, str], default: str) -> dict[str, str]:
    """Return where each setting was read: `file: key` for the first of its keys that is present, else `default`.

    `keys` has the keys of each setting, separated by spaces; `part.key` is a key of a part of the configuration.
    """
    sections = {name: part for name, part in config.items() if isinstance(part, Mapping)}
    present = {key for key, value in config.items() if value is not None}
    for name, section in sections.items():
        present |= {f"{name}.{key}" for key, value in section.items() if value is not None}
    return {
        setting: next((f"{file}: {key}" for key in names.split() if key in present), default)
        for setting, names in keys.items()
    }


def finish_checkpoint(checkpoint: Checkpoint, image_size: int | None = None) -> Checkpoint:
    """Return the checkpoint after the last steps of every conversion: check and hash the weights, set the image size.

    The image size is by default that of the preprocessing.
    """
    spec, parameters, preprocessing = checkpoint.spec, checkpoint.parameters, checkpoint.preprocessing
    tokenizer, provenance = checkpoint.tokenizer, checkpoint.provenance
    source = provenance.get("source", "model")
    check_parameters(parameters, source)
    check_tokenizer(tokenizer, spec, source)
    read_from = {**provenance.get("read_from", {}), **(tokenizer.read_from if tokenizer else {})}
    provenance = {**provenance, "read_from": read_from, "weights_sha256": hash_parameters(parameters)}
    checkpoint = checkpoint._replace(provenance=provenance)
    if image_size is None and preprocessing is not None:
        # Not a choice of the caller, so that provenance stays as it is.
        checkpoint = with_image_size(checkpoint, preprocessing.image_size[0])._replace(provenance=provenance)
    else:
        checkpoint = with_image_size(checkpoint, image_size)
    return check_images(checkpoint, source)
