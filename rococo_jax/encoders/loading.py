"""`load_model`: any model by its name, ready to encode; checkpoints of `rococo train` among them.

RUN/checkpoints/STEP/state    the trained parameters, and their average, which is the model where there is one
RUN/origin                    what all of a run have in common: a model directory without parameters
RUN/evaluations.jsonl         the score of each evaluation

Names are `RUN/checkpoints/STEP`, `RUN@STEP`, `RUN@latest` and `RUN@best`. Frozen parameters are those of the model that
the run started from.
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.checkpoints.model_directory import (
    MODEL_FILE,
    PARAMETERS,
    TOKENIZER_FILE,
    quiet_orbax,
    read_description,
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
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.remote import local_copy
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.data.training_images import read_training_images
from rococo_jax.encoders.adapters import is_adapted, load_adapted, name_of
from rococo_jax.encoders.encoder import Encoder
from rococo_jax.encoders.foreign import ForeignEncoder, is_factory, load_factory
from rococo_jax.encoders.foreign_object import ForeignObject
from rococo_jax.encoders.programs import Compute
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError, first_line
from rococo_jax.models.fsdp import sharding_of
from rococo_jax.runtime import cache_folder, make_mesh
from rococo_jax.storage import is_url

CHECKPOINTS, ORIGIN, EVALUATIONS = "checkpoints", "origin", "evaluations.jsonl"
_STATE = "state"


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """What a source may leave open.

    Attributes:
        activation, tokenizer, heads: of checkpoints of other projects; see `load_model`.
        image_size: pixels of a side of the square images, for models that are loaded here.
        by: how a model with both is asked, `vectors` (default) or `pairs`.
        candidates: a further source, whose vectors choose what is scored of a gallery.
        query_prompt, document_prompt: instructions for models that take some, or names of the model's own.
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
        """The prompts that are given, by role."""
        given = {"query": self.query_prompt, "document": self.document_prompt}
        return {role: prompt for role, prompt in given.items() if prompt is not None}


def load_encoder(
    source: Any,
    *,
    mesh: Mesh | None = None,
    compute: Compute | None = None,
    options: LoadOptions | None = None,
    kinds: Sequence[type[ForeignObject]] = (),
) -> LoadedModel:
    """Whatever can be evaluated: what `load_model` takes, `file.py:attribute`, or an object of any framework.

    Args:
        source: a model's name, the name of a function that returns an encoder, a model of another library such as
            `open_clip:ViT-B-32/openai` (see `adapters`), or an encoder.
        mesh: the devices; all of them by default.
        compute: how the towers compute, for models of this project that are loaded here.
        options: what the source leaves open.
        kinds: what an object may be in place of a `ForeignEncoder`; the first that fits.

    Raises:
        InputError: as `load_model`, or the object lacks `encode_image` or `encode_text`.
    """
    options, compute, name = options or LoadOptions(), compute or Compute(), None
    if isinstance(source, str) and is_adapted(source):
        source, name = load_adapted(source, options.arguments), name_of(source)
    elif isinstance(source, str) and is_factory(source):
        source = load_factory(source, options.arguments)
    if isinstance(source, str | os.PathLike):
        chosen = {name: getattr(options, name) for name in ("activation", "heads", "tokenizer", "image_size")}
        encoder = load_model(source, mesh=mesh, dtype=compute.dtype, **chosen)
        encoder.use(compute)
        return encoder
    if options.image_size is not None:
        wanted = "none: the model's own library decides the size"
        raise InputError(name or getattr(source, "name", source), "image_size", options.image_size, wanted)
    if isinstance(source, LoadedModel):
        return source
    kind = next((kind for kind in kinds if kind.fits(source)), ForeignEncoder)
    return kind(source, name, mesh, compute.images_at_once)


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
    """A model directory, or a checkpoint of another project (file, folder or hub name), as an `Encoder`.

    Args:
        source: where the model is; `demo:plain` is the small one that comes with the package, `zoo:NAME` a published
            one, `RUN@best` and `RUN/checkpoints/STEP` are checkpoints of a training run. A folder behind a URL
            (`gs://bucket/model`) is copied into the cache folder.
        mesh: the devices to put it on; all of them by default, each with a whole copy unless the mesh has an `fsdp`.
        dtype: of the compute, float32 or bfloat16. Parameters, norms, softmax and heads are float32 always.
        image_size: encode square images of this many pixels; position embeddings are interpolated.
        source_format, pooling, activation, heads, tokenizer: of other projects' checkpoints; see `ConversionOptions`.

    Raises:
        InputError: the source is none of these, or something in it is missing, broken or does not fit together.
    """
    if is_url(source):
        source = local_copy(str(source), cache_folder() / "remote")
    folder, mesh = demo_folder(source) or Path(source), make_mesh() if mesh is None else mesh
    if (folder / MODEL_FILE).is_file() or (folder / PARAMETERS).is_dir():
        spec, description = read_description(folder)
        provenance, parameters = description["provenance"], restore_parameters(folder, spec, mesh)
        check_parameters(parameters, folder / PARAMETERS, provenance.get("weights_sha256"))
        checkpoint = _described(folder, provenance, parameters, image_size)
        return _encoder(checkpoint, folder.resolve().name, mesh, dtype)
    if (saved := find_checkpoint(folder)) is not None:
        origin, *rest = _read_checkpoint(saved, mesh)
        name = f"{saved.resolve().parent.parent.name}@{saved.name}"
        return _encoder(_described(origin, *rest, image_size), name, mesh, dtype)
    from rococo_jax.checkpoints.formats import convert

    choices = {"pooling": pooling, "activation": activation, "heads": heads, "tokenizer": tokenizer}
    checkpoint = convert(str(source), source_format=source_format, image_size=image_size, **choices)
    return _encoder(checkpoint, folder.resolve().name if folder.exists() else str(source), mesh, dtype)


def _encoder(checkpoint: Checkpoint, name: str, mesh: Mesh, dtype: DTypeLike) -> Encoder:
    """Return the encoder of a checkpoint."""
    model = build_model(checkpoint.spec, checkpoint.parameters, dtype)
    encoder = Encoder(model, checkpoint.preprocessing, checkpoint.tokenizer, checkpoint.provenance, name, mesh)
    encoder.training_images = checkpoint.training_images
    recorded = encoder.provenance.get("weights_sha256")
    # Computed, or compared, while the weights were read; parameters that lie on several processes were not compared.
    if recorded and is_fully_addressable(checkpoint.parameters):
        encoder.remember_hash(recorded)
    return encoder


def _described(
    folder: Path, provenance: dict[str, Any], parameters: dict[str, jax.Array], image_size: int | None
) -> Checkpoint:
    """The model of some parameters and the description in a folder."""
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
    """The tokenizer of a model directory; None where the model has none."""
    path, (_, description) = folder / MODEL_FILE, read_description(folder)
    if description["tokenizer"] is None:
        return None
    return Tokenizer.load(folder / TOKENIZER_FILE, TokenizerSpec.from_json(description["tokenizer"], path))


def find_checkpoint(source: str | os.PathLike) -> Path | None:
    """The folder of the checkpoint that `source` names, or None where it names none.

    Raises InputError: the run is there, and no such checkpoint.
    """
    path = Path(source)
    if path.name.isdecimal() and path.parent.name == CHECKPOINTS and (path / _STATE).is_dir():
        return path
    run, at, which = str(source).rpartition("@")
    folder = Path(run) / CHECKPOINTS
    if not at or not run or not folder.is_dir():
        return None
    steps = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal() and (each / _STATE).is_dir())
    best = best_step(steps, read_scores(run))
    if which == "best" and best is not None:
        return folder / str(best)
    if which == "latest" and steps:
        return folder / str(steps[-1])
    if which.isdecimal() and int(which) in steps:
        return folder / which
    known = [*(["latest"] if steps else []), *(["best"] if best is not None else []), *map(str, steps)]
    wanted = f"one of {', '.join(known)}" if known else "a run that has saved one"
    raise InputError(run, "checkpoint", repr(which), wanted)


def read_scores(run: str | os.PathLike) -> dict[int, float]:
    """The scores of a run's evaluations, by step."""
    path, scores = Path(run) / EVALUATIONS, {}
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that a killed run left unfinished
            evaluation = json.loads(line)
            scores[int(evaluation["step"])] = float(evaluation["score"])
    return {step: score for step, score in scores.items() if math.isfinite(score)}


def best_step(steps: Iterable[int], scores: Mapping[int, float]) -> int | None:
    """The one of some steps with the highest score, the last of several; None where none has a score."""
    return max((step for step in steps if step in scores), key=lambda step: (scores[step], step), default=None)


def _read_checkpoint(folder: Path, mesh: Mesh) -> tuple[Path, dict[str, Any], dict[str, jax.Array]]:
    """The folder of the description of a checkpoint's model, its provenance, and its parameters, placed on the mesh.

    Raises InputError: something is missing or does not fit.
    """
    origin = folder.parent.parent / ORIGIN
    spec, description = read_description(origin)
    shapes = parameter_shapes(spec)

    def place(name: str) -> NamedSharding:
        return sharding_of(name, shapes[name], mesh)

    trained = _trained_parameters((folder / _STATE).absolute(), place)
    if unknown := sorted(trained.keys() - shapes.keys()):
        raise InputError(folder, "parameters", unknown[0], f"those that the spec in {origin / MODEL_FILE} asks for")
    parameters = dict(trained)
    missing = [name for name, shape in shapes.items() if name not in trained or trained[name].shape != shape]
    provenance = dict(description["provenance"])
    if missing:
        model = provenance["trained"]["config"]["init.model"]
        first = load_model(model, mesh=mesh, image_size=spec.vision.image_size).model
        start = parameters_of(first)
        if spec.vision.position_grid is None:
            _, start = with_interpolated_positions(first.spec, start)
        for name in missing:
            whole = start[name]
            if name in trained:  # the first blocks of the stack were frozen
                whole = jnp.concatenate([whole[: len(whole) - len(trained[name])], trained[name]])
            parameters[name] = jax.device_put(whole, place(name))
    provenance["trained"] = {**provenance["trained"], "step": int(folder.name)}
    # Not the hash of the starting model, which stands in the description.
    provenance["weights_sha256"] = hash_parameters(parameters)
    return origin, provenance, parameters


def _trained_parameters(path: Path, place: Callable[[str], NamedSharding]) -> dict[str, jax.Array]:
    """The average of the parameters, or they themselves."""
    try:
        with quiet_orbax(), ocp.PyTreeCheckpointer() as checkpointer:
            stored = checkpointer.metadata(path).item_metadata
            part = "average" if stored["average"] else "parameters"
            wanted = {
                name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place(name))
                for name, leaf in stored[part].items()
            }
            how = ocp.checkpoint_utils.construct_restore_args({part: wanted})
            args = ocp.args.PyTreeRestore({part: wanted}, restore_args=how, partial_restore=True)
            return checkpointer.restore(path, args)[part]
    except Exception as error:  # Orbax and TensorStore raise many classes for files that are missing or cut short
        raise InputError(path, "state", first_line(error), "a checkpoint that Orbax can read") from None
