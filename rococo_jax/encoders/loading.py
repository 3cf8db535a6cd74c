"""`load_model` and `load_encoder`: load any model by its name.

Checkpoints of `rococo train` are read from its working directory:

    RUN/checkpoints/STEP/state    the trained parameters, and their average, which is the model if there is one
    RUN/origin                    a model directory without parameters, common to all checkpoints of the run
    RUN/evaluations.jsonl         the score of each evaluation

Their names are `RUN/checkpoints/STEP`, `RUN@STEP`, `RUN@latest` and `RUN@best`. Frozen parameters are read from the
model that the run started from, whose hash must be the recorded one.
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from rococo_jax.checkpoints.model_directory import (
    MODEL_FILE,
    PARAMETERS,
    TOKENIZER_FILE,
    read_description,
    reading,
    restore_parameters,
)
from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    build_model,
    check_images,
    check_parameters,
    check_tokenizer,
    hash_parameters,
    is_fully_addressable,
    parameter_shapes,
    parameters_of,
    with_image_size,
    with_interpolated_positions,
)
from rococo_jax.checkpoints.zoo import demo_folder
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.remote import local_copy
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.data.training_images import read_training_images
from rococo_jax.encoders.adapters import is_adapted, load_adapted, name_of
from rococo_jax.encoders.encoder import Encoder
from rococo_jax.encoders.foreign import is_factory, load_factory
from rococo_jax.encoders.foreign_model import ForeignModel
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.models.fsdp import sharding_of
from rococo_jax.runtime import cache_folder, make_mesh
from rococo_jax.storage import is_url

CHECKPOINTS, ORIGIN, EVALUATIONS = "checkpoints", "origin", "evaluations.jsonl"
_STATE = "state"


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """Settings that a model's source does not determine.

    Attributes:
        activation, tokenizer, heads: settings of other projects' checkpoints; see `load_model`.
        image_size: side of the square images in pixels, for models of this project.
        by: how to score a model that embeds and scores pairs: by `vectors` (default) or `pairs`.
        candidates: source of another model, whose embeddings select the candidates that are scored pair by pair.
        query_prompt, document_prompt: instructions for models that take them, or names of the model's own prompts.
        arguments: keyword arguments for `file.py:function` and for adapters.
    """

    activation: str | None = None
    tokenizer: str | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    heads: str | None = None
    image_size: int | None = None
    by: Literal["vectors", "pairs"] | None = None
    candidates: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None

    @property
    def prompts(self) -> dict[str, str]:
        """The requested prompts by role."""
        prompts = {"query": self.query_prompt, "document": self.document_prompt}
        return {role: prompt for role, prompt in prompts.items() if prompt is not None}

    @property
    def of_checkpoint(self) -> dict[str, Any]:
        """The keyword arguments of `load_model`."""
        names = ("activation", "heads", "tokenizer", "image_size")
        return {name: getattr(self, name) for name in names}


def load_encoder(
    source: Any,
    *,
    mesh: Mesh | None = None,
    compute: Compute | None = None,
    options: LoadOptions | None = None,
) -> LoadedModel:
    """Load a model of any kind: a source of `load_model`, `file.py:attribute`, or an object of any framework.

    Args:
        source: a model's name, the name of a function that returns an encoder, a model of another library such as
            `open_clip:ViT-B-32/openai` (see `adapters`), or an object with `encode_image` and `encode_text`, or with
            `score_pairs`.
        mesh: the devices; all of them by default.
        compute: how the towers compute, for models of this project.
        options: settings that the source does not determine.

    Raises:
        InputError: as `load_model`, or the object lacks `encode_image` or `encode_text`.
    """
    options, compute, name = options or LoadOptions(), compute or Compute(), None
    requested = source
    if isinstance(source, str) and is_adapted(source):
        source, name = load_adapted(source, options.arguments), name_of(source)
    elif isinstance(source, str) and is_factory(source):
        source = load_factory(source, options.arguments)
    if isinstance(source, str | os.PathLike):
        encoder = load_model(source, mesh=mesh, dtype=compute.dtype, **options.of_checkpoint)
        encoder.use(compute)
        return encoder
    if options.image_size is not None:
        expected = "none: the model's own library decides the size"
        raise InputError(name or getattr(source, "name", requested), "image_size", options.image_size, expected)
    if isinstance(source, LoadedModel):
        return source
    return ForeignModel(source, name, mesh, compute.images_at_once)


def load_model(
    source: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    dtype: DTypeLike = jnp.float32,
    image_size: int | None = None,
    source_format: str = "auto",
    pooling: str | None = None,
    activation: str | None = None,
    heads: str | None = None,
    tokenizer: str | None = None,
) -> Encoder:
    """Load a model directory, or a checkpoint of another project (file, folder or hub name).

    Args:
        source: the model. `demo:plain` is the small one that comes with the package, `zoo:NAME` a published one, and
            `RUN@best` and `RUN/checkpoints/STEP` are checkpoints of a training run. A folder behind a URL
            (`gs://bucket/model`) is copied into the cache folder.
        mesh: the devices; by default all, each with a copy of the parameters unless the mesh has an axis `fsdp`.
        dtype: dtype of the towers, float32 or bfloat16. Parameters, norms, softmax and heads are always float32.
        image_size: side of the square images in pixels; position embeddings are interpolated.
        source_format: format of another project's checkpoint; recognised by default.
        pooling, activation, heads, tokenizer: settings of other projects' checkpoints; see `ConversionOptions`.

    Raises:
        InputError: the source is none of these, or a part of it is missing, damaged or inconsistent.
    """
    if is_url(source):
        source = local_copy(str(source), cache_folder() / "remote")
    folder, mesh = demo_folder(source) or Path(source), make_mesh() if mesh is None else mesh
    if (folder / MODEL_FILE).is_file() or (folder / PARAMETERS).is_dir():
        spec, description = read_description(folder)
        provenance, parameters = description["provenance"], restore_parameters(folder, spec, mesh)
        check_parameters(parameters, folder / PARAMETERS, provenance.get("weights_sha256"))
        checkpoint = _with_description(folder, provenance, parameters, image_size)
        return encoder_of(checkpoint._replace(name=folder.resolve().name), mesh, dtype)
    if (saved := find_checkpoint(folder)) is not None:
        origin, provenance, parameters = _read_checkpoint(saved, mesh)
        checkpoint = _with_description(origin, provenance, parameters, image_size)
        name = f"{saved.resolve().parent.parent.name}@{saved.name}"
        return encoder_of(checkpoint._replace(name=name), mesh, dtype)
    from rococo_jax.checkpoints.formats import convert

    options = {"pooling": pooling, "activation": activation, "heads": heads, "tokenizer": tokenizer}
    checkpoint = convert(str(source), source_format=source_format, image_size=image_size, **options)
    name = folder.resolve().name if folder.exists() else str(source)
    return encoder_of(checkpoint._replace(name=name), mesh, dtype)


def encoder_of(checkpoint: Checkpoint, mesh: Mesh, dtype: DTypeLike) -> Encoder:
    """Return the encoder of a checkpoint: the inverse of `checkpoint_of`."""
    spec, parameters, preprocessing, tokenizer, provenance, training_images, name = checkpoint
    model = build_model(spec, parameters, dtype)
    encoder = Encoder(model, preprocessing, tokenizer, dict(provenance), name, mesh, training_images)
    recorded = encoder.provenance.get("weights_sha256")
    # The hash was computed or compared while the weights were read, except for parameters on several processes.
    if recorded and is_fully_addressable(checkpoint.parameters):
        encoder.remember_hash(recorded)
    return encoder


def _with_description(
    folder: Path, provenance: dict[str, Any], parameters: dict[str, jax.Array], image_size: int | None
) -> Checkpoint:
    """Return the model of some parameters and of the description in a folder."""
    spec, description = read_description(folder)
    path = folder / MODEL_FILE
    preprocessing, tokenizer = description["preprocessing"], read_model_tokenizer(folder)
    if preprocessing is not None:
        preprocessing = Preprocessing.from_json(preprocessing, path)
    check_tokenizer(tokenizer, spec, path)
    images = read_training_images(folder)
    checkpoint = Checkpoint(spec, parameters, preprocessing, tokenizer, provenance, images)
    return check_images(with_image_size(checkpoint, image_size), path)


def read_model_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a model directory; None if the model has none."""
    path, (_, description) = folder / MODEL_FILE, read_description(folder)
    if description["tokenizer"] is None:
        return None
    return Tokenizer.load(folder / TOKENIZER_FILE, TokenizerSpec.from_json(description["tokenizer"], path))


def find_checkpoint(source: str | os.PathLike) -> Path | None:
    """Return the folder of the training checkpoint that `source` names, or None if it names none.

    Raises InputError if the run exists and has no such checkpoint.
    """
    path = Path(source)
    if path.name.isdecimal() and path.parent.name == CHECKPOINTS and (path / _STATE).is_dir():
        return path
    run, at, checkpoint = str(source).rpartition("@")
    folder = Path(run) / CHECKPOINTS
    if not at or not run or not folder.is_dir():
        return None
    steps = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal() and (each / _STATE).is_dir())
    best = best_step(steps, read_scores(run))
    if checkpoint == "best" and best is not None:
        return folder / str(best)
    if checkpoint == "latest" and steps:
        return folder / str(steps[-1])
    if checkpoint.isdecimal() and int(checkpoint) in steps:
        return folder / checkpoint
    names = [*(["latest"] if steps else []), *(["best"] if best is not None else []), *map(str, steps)]
    expected = f"one of {', '.join(names)}" if names else "a run that has saved one"
    raise InputError(run, "checkpoint", repr(checkpoint), expected)


def read_scores(run: str | os.PathLike) -> dict[int, float]:
    """Return the scores of a run's evaluations by step."""
    path, scores = Path(run) / EVALUATIONS, {}
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # an unfinished line of a killed run
            evaluation = json.loads(line)
            scores[int(evaluation["step"])] = float(evaluation["score"])
    return {step: score for step, score in scores.items() if math.isfinite(score)}


def best_step(steps: Iterable[int], scores: Mapping[int, float]) -> int | None:
    """Return the step with the highest score, the last one of several; None if no step has a score."""
    return max((step for step in steps if step in scores), key=lambda step: (scores[step], step), default=None)


def _read_checkpoint(folder: Path, mesh: Mesh) -> tuple[Path, dict[str, Any], dict[str, jax.Array]]:
    """Return the folder with the description of a checkpoint's model, its provenance, and its parameters on the mesh.

    Raises InputError if a part is missing or inconsistent.
    """
    origin = folder.parent.parent / ORIGIN
    spec, description = read_description(origin)
    shapes = parameter_shapes(spec)

    def sharding(name: str) -> NamedSharding:
        return sharding_of(name, shapes[name], mesh)

    trained = _trained_parameters((folder / _STATE).absolute(), sharding)
    if unknown := sorted(trained.keys() - shapes.keys()):
        raise InputError(folder, "parameters", unknown[0], f"the parameters of the spec in {origin / MODEL_FILE}")
    parameters = dict(trained)
    missing = [name for name, shape in shapes.items() if name not in trained or trained[name].shape != shape]
    provenance = dict(description["provenance"])
    if missing:
        source = provenance["trained"]["config"]["init.model"]
        initial_encoder = load_model(source, mesh=mesh, image_size=spec.vision.image_size)
        recorded, current = (
            each.get("weights_sha256") for each in (provenance["started_from"], initial_encoder.provenance)
        )
        if current != recorded:
            expected = (
                f"{str(recorded)[:12]}..., from which {folder.parent.parent} was trained and has frozen parameters"
            )
            raise InputError(source, "weights", f"SHA-256 {str(current)[:12]}...", expected)
        initial = parameters_of(initial_encoder.model)
        if spec.vision.position_grid is None:
            _, initial = with_interpolated_positions(initial_encoder.spec, initial)
        for name in missing:
            array = initial[name]
            if name in trained:  # the first blocks of the stack were frozen
                array = jnp.concatenate([array[: len(array) - len(trained[name])], trained[name]])
            parameters[name] = jax.device_put(array, sharding(name))
    provenance["trained"] = {**provenance["trained"], "step": int(folder.name)}
    # The description contains the hash of the initial model.
    provenance["weights_sha256"] = hash_parameters(parameters)
    return origin, provenance, parameters


def _trained_parameters(path: Path, sharding: Callable[[str], NamedSharding]) -> dict[str, jax.Array]:
    """Return the averaged parameters of a checkpoint, or the parameters if it has no average."""
    with reading(path, "state", "a checkpoint that Orbax can read"), ocp.PyTreeCheckpointer() as checkpointer:
        stored = checkpointer.metadata(path).item_metadata
        part = "average" if stored["average"] else "parameters"
        shapes = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding(name))
            for name, leaf in stored[part].items()
        }
        restore_args = ocp.checkpoint_utils.construct_restore_args({part: shapes})
        args = ocp.args.PyTreeRestore({part: shapes}, restore_args=restore_args, partial_restore=True)
        return checkpointer.restore(path, args)[part]
