"""Parameters of a model as a flat dictionary of dotted paths, and a model from such a dictionary.

A model is made from its spec without initialising anything: shapes are evaluated, then the arrays are put in place.
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

# Of another image size, by the format of the checkpoint; else that of its family in `transformers`.
_POSITION_RULES = {"openai": "antialiased", "open_clip": "antialiased", "big_vision": "linear"}
_MAPS_OF_HEADS = tuple(f"{side}_head.{map}kernel" for side in ("vision", "text") for map in ("", "affine."))


class Checkpoint(NamedTuple):
    """A model in parts: of another project's checkpoint, of a model directory or of an encoder.

    Attributes:
        parameters: all that `parameter_shapes` lists.
        preprocessing: None for a text tower.
        tokenizer: None for an image tower, or where none was found.
        training_images: the images that the model was trained on; None where nothing is known of them.
    """

    spec: ModelSpec
    parameters: Mapping[str, Any]
    preprocessing: Any
    tokenizer: Any
    provenance: Mapping[str, Any]
    training_images: TrainingImages | None = None


def checkpoint_of(encoder: Any) -> Checkpoint:
    """The parts of an `Encoder`."""
    model = encoder.model
    return Checkpoint(
        model.spec,
        parameters_of(model),
        encoder.preprocessing,
        encoder.tokenizer,
        encoder.provenance,
        encoder.training_images,
    )


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by dotted path. A single tower has no logit scale to speak of, so none is listed."""
    _, state = abstract_model(spec)
    shapes = {path: tuple(leaf.shape) for path, leaf in flatten_dict(nnx.to_pure_dict(state), sep=".").items()}
    return {path: shape for path, shape in shapes.items() if _is_stored(path, spec)}


def _is_stored(path: str, spec: ModelSpec) -> bool:
    return not path.startswith("logit_") or (spec.vision is not None and spec.text is not None)


def build_model(spec: ModelSpec, parameters: Mapping[str, Any], dtype: DTypeLike = jnp.float32) -> DualEncoder:
    """A model that holds `parameters` (arrays by dotted path, all that `parameter_shapes` lists)."""
    graph, abstract = abstract_model(spec, jnp.dtype(dtype).name)
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
    without = {path: array for path, array in parameters_of(model).items() if not path.startswith("matching.")}
    return build_model(dataclasses.replace(model.spec, matching=None), without, model.dtype)


def is_fully_addressable(parameters: Mapping[str, Any]) -> bool:
    """Whether this process has every value: False where arrays are sharded over several."""
    arrays = [array for array in parameters.values() if isinstance(array, jax.Array)]
    return all(array.is_fully_addressable or array.is_fully_replicated for array in arrays)


def hash_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, shapes and float32 values, the same however arrays are laid out over devices.

    Arrays that are sharded over several processes are gathered one after the other, so all processes must call this.
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
    """Raises InputError where a parameter is NaN or infinite, the kernel of a head has zeros alone, or the hash of all
    is not the `recorded` one. Parameters that are sharded over processes are taken as they are."""
    if not is_fully_addressable(parameters):
        return
    for path, array in parameters.items():
        values = np.asarray(array)
        # A sum is finite only where every value is, unless it overflows; float64 does not.
        if not np.isfinite(values.sum(dtype=np.float64)):
            count = int((~np.isfinite(values)).sum())
            raise InputError(source, path, f"{count} NaN or infinite values of {values.size}", "finite numbers")
        if path in _MAPS_OF_HEADS and not values.any():
            raise InputError(source, path, "zeros alone", "a map that gives vectors a direction")
    # Model directories of early releases lack the hash.
    if recorded is not None and (found := hash_parameters(parameters)) != recorded:
        wanted = f"{recorded[:12]}..., as the model's description has it: they are damaged, or another model's"
        raise InputError(source, "weights", f"SHA-256 {found[:12]}...", wanted)


def check_tokenizer(tokenizer: Any, spec: ModelSpec, source: object) -> None:
    """Raises InputError where the tokenizer makes ids that the text tower has no vector for, or never ends a text with
    the id that it is pooled at."""
    if spec.text is None or tokenizer is None:
        return
    size = spec.text.vocabulary_size
    word, number = max(tokenizer.rust.get_vocab().items(), key=lambda entry: entry[1])
    if number >= size:
        found = f"token ids up to {number} ({word!r})"
        raise InputError(source, "tokenizer", found, f"ids below {size}, the rows of the text tower's table")
    if not 0 <= tokenizer.spec.pad_id < size:
        raise InputError(source, "tokenizer.pad_id", tokenizer.spec.pad_id, f"an id from 0 to {size - 1}")
    if spec.text.pooling == "first_eos" and spec.text.eos_id not in tokenizer.encode(["a"])[0]:
        found = f"{spec.text.eos_id}, which the tokenizer puts into no text (it ends one with {tokenizer.spec.eos_id})"
        raise InputError(source, "text.eos_id", found, "the id that ends a text")


def check_images(checkpoint: Checkpoint, source: object) -> Checkpoint:
    """Return the checkpoint. Raises InputError where its images are no squares, as towers read them, or where images
    keep their shape and the tower has one grid, or the other way round."""
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
    """The same model for square images of another size, in pixels: the tower interpolates the stored positions, by the
    rule of the library that the checkpoint is of; provenance says that the caller chose the size.

    Raises InputError where the size is smaller than a patch, or the model reads no images.
    """
    if image_size is None:
        return checkpoint
    spec, preprocessing, provenance = checkpoint.spec, checkpoint.preprocessing, checkpoint.provenance
    places = {**provenance.get("read_from", {}), "image size": "the argument image_size"}
    provenance = {**provenance, "read_from": places}
    if spec.vision is None:
        raise InputError("image size", "pixels", image_size, "none, for a model without an image tower")
    if image_size != spec.vision.image_size:
        grid = spec.vision.position_grid or spec.vision.grid
        vision = dataclasses.replace(spec.vision, image_size=image_size)
        if vision.grid < 1:
            raise InputError("image size", "pixels", image_size, f"at least {vision.patch_size}, one patch")
        if vision.stores_positions and not vision.flexible_grid:
            origin = before_training(provenance)
            if "joined" in origin:
                origin = before_training(origin["joined"]["vision"])
            rule = _POSITION_RULES.get(origin.get("format"), origin.get("position_rule", "bicubic"))
            changes = {} if grid == vision.grid else {"position_grid": grid, "position_rule": rule}
            vision = dataclasses.replace(vision, **{"position_grid": None, "position_rule": "bicubic", **changes})
        spec = dataclasses.replace(spec, vision=vision)
    if preprocessing is not None and preprocessing.image_size[0] != image_size:
        preprocessing = preprocessing.with_image_size(image_size)
    return checkpoint._replace(spec=spec, preprocessing=preprocessing, provenance=provenance)


def before_training(provenance: Mapping[str, Any]) -> Mapping[str, Any]:
    """The provenance of the model that the first of any number of trainings started from."""
    while "started_from" in provenance:
        provenance = provenance["started_from"]
    return provenance


def with_interpolated_positions(spec: ModelSpec, parameters: Mapping[str, Any]) -> tuple[ModelSpec, Mapping[str, Any]]:
    """The same model with position embeddings of the one size that it is used at, where it interpolates stored ones."""
    if spec.vision is None or spec.vision.position_grid is None or spec.vision.flexible_grid:
        return spec, parameters
    vision = dataclasses.replace(spec.vision, position_grid=None, position_rule="bicubic")
    positions = positions_on_grid(jnp.asarray(parameters["vision.positions"]), spec.vision)
    return dataclasses.replace(spec, vision=vision), {**parameters, "vision.positions": positions}


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """Settings that a checkpoint may not record.

    Attributes:
        pooling: of a DINOv2, DINOv3 or BERT tower; see `Family.poolings`.
        activation: `quick_gelu` or `gelu`, for OpenAI and open_clip checkpoints that do not record it.
        heads: of the image and the text tower, such as `16,8`, for a state dict under OpenAI's names of unknown size.
        tokenizer: a folder or hub name, or `none`; by default the checkpoint's own or its family's.
        image_size: the side in pixels of the images that it is used with; see `image_sizes`.
        is_format_declared: whether the caller named the format.
    """

    pooling: str | None = None
    activation: str | None = None
    heads: str | None = None
    tokenizer: str | None = None
    image_size: int | None = None
    is_format_declared: bool = False


def missing_choice(source: object, argument: str, found: str, wanted: str) -> InputError:
    """The error where nothing in a checkpoint tells a part: how to give it, to commands without the argument too."""
    elsewhere = "a command without this argument reads the folder that `rococo convert` writes with it"
    return InputError(source, argument, found, f"the argument {argument}, {wanted}; {elsewhere}")


def sources_of_settings(file: str, given: Mapping[str, Any], keys: Mapping[str, str], default: str) -> dict[str, str]:
    """Where each rule was read: `file: key` for the first of its keys that is there, else `default`."""
    there = {key for key, value in given.items() if value is not None}
    parts = {name: part for name, part in given.items() if isinstance(part, Mapping)}
    there |= {f"{name}.{key}" for name, part in parts.items() for key, value in part.items() if value is not None}
    return {
        rule: next((f"{file}: {key}" for key in names.split() if key in there), default) for rule, names in keys.items()
    }


def finish_checkpoint(checkpoint: Checkpoint, image_size: int | None = None) -> Checkpoint:
    """The last steps of every conversion: check and hash the weights, and change the image size.

    The size is by default that which the preprocessing makes.
    """
    spec, parameters, preprocessing = checkpoint.spec, checkpoint.parameters, checkpoint.preprocessing
    tokenizer, provenance = checkpoint.tokenizer, checkpoint.provenance
    source = provenance.get("source", "model")
    check_parameters(parameters, source)
    check_tokenizer(tokenizer, spec, source)
    places = {**provenance.get("read_from", {}), **(tokenizer.read_from if tokenizer else {})}
    provenance = {**provenance, "read_from": places, "weights_sha256": hash_parameters(parameters)}
    checkpoint = checkpoint._replace(provenance=provenance)
    if image_size is None and preprocessing is not None:
        sized = with_image_size(checkpoint, preprocessing.image_size[0])._replace(provenance=provenance)
    else:
        sized = with_image_size(checkpoint, image_size)
    return check_images(sized, source)
