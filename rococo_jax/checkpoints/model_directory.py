"""The model directory: a model with its preprocessing, tokenizer and provenance. It is written elsewhere and renamed.

model.json       format, version, spec, preprocessing, tokenizer settings beside tokenizer.json, provenance
params/          parameters by dotted path, float32 (Orbax)
tokenizer.json   for models with a text tower
training_images.txt    the images that the model was trained on, if they are known (`data.training_images`)
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh

from rococo_jax.checkpoints.parameters import (
    Checkpoint,
    checkpoint_of,
    hash_parameters,
    parameter_shapes,
)
from rococo_jax.checkpoints.tensors import list_differences
from rococo_jax.data.training_images import write_training_images
from rococo_jax.errors import InputError, first_line, naming_source, require_folder
from rococo_jax.models import ModelSpec
from rococo_jax.models.fsdp import sharding_of
from rococo_jax.storage import atomic_directory, check_free_space, read_json_object, write_json
from rococo_jax.version import __version__

FORMAT, VERSION = "rococo_jax.model", 1
MODEL_FILE, PARAMETERS, TOKENIZER_FILE = "model.json", "params", "tokenizer.json"
_KEYS = {"format", "version", "spec", "preprocessing", "tokenizer", "provenance"}


def save_model(path: str | os.PathLike, encoder: Any) -> None:
    """Write the model directory of an `Encoder`. Raises InputError as `write_model`, or if `encoder` is none."""
    if not hasattr(encoder, "model"):
        raise InputError(
            "save_model", "encoder", f"a {type(encoder).__name__}", "save_model(path, model of load_model)"
        )
    write_model(path, checkpoint_of(encoder))


def write_model(path: str | os.PathLike, checkpoint: Checkpoint) -> None:
    """Write a model directory; parameters are on the host or on devices of this process.

    The hash of the weights is added to the provenance. Raises InputError if `path` exists, or the disk is full.
    """
    path, parameters = Path(path), checkpoint.parameters
    provenance = {**checkpoint.provenance, "weights_sha256": hash_parameters(parameters), "written_by": __version__}
    # Check free space first: Orbax's threads each raise on a full disk.
    check_free_space(path, sum(array.nbytes for array in parameters.values()))
    with quiet_orbax(), atomic_directory(path) as folder:
        # One process writes, without waiting for the others.
        single_process = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}, barrier_sync_key_prefix="model"
        )
        options = {"multiprocessing_options": single_process} if jax.process_count() > 1 else {}
        if options:
            parameters = jax.device_get(parameters)
        with ocp.StandardCheckpointer(**options) as checkpointer:
            checkpointer.save((folder / PARAMETERS).absolute(), dict(parameters))
        # Orbax records the temporary folder in it; here the rename marks the model as complete.
        (folder / PARAMETERS / "commit_success.txt").unlink(missing_ok=True)
        write_description(folder, checkpoint._replace(provenance=provenance))


def write_description(folder: Path, checkpoint: Checkpoint) -> None:
    """Write all files of a model directory but the parameters."""
    spec, preprocessing = checkpoint.spec, checkpoint.preprocessing
    tokenizer, provenance = checkpoint.tokenizer, checkpoint.provenance
    write_training_images(folder, checkpoint.training_images)
    if tokenizer is not None:
        tokenizer.save(folder / TOKENIZER_FILE)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "spec": spec.to_json(),
        "preprocessing": None if preprocessing is None else preprocessing.to_json(),
        "tokenizer": None if tokenizer is None else tokenizer.spec.to_json(),
        "provenance": provenance,
    }
    write_json(folder / MODEL_FILE, description)


def read_description(folder: Path) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the spec, and the content of `model.json`. Raises InputError if it is damaged or has another format."""
    path = folder / MODEL_FILE
    description = read_json_object(path, "a model directory's model.json")
    if description.get("format") != FORMAT:
        raise InputError(path, "format", repr(description.get("format")), FORMAT)
    if description.get("version") != VERSION:
        raise InputError(path, "version", repr(description.get("version")), f"{VERSION}, which this release reads")
    if set(description) != _KEYS:
        raise InputError(path, "fields", sorted(description), sorted(_KEYS))
    if not isinstance(description["provenance"], dict):
        raise InputError(path, "provenance", type(description["provenance"]).__name__, "a JSON object")
    with naming_source(path):
        return ModelSpec.from_json(description["spec"], path), description


def restore_parameters(folder: Path, spec: ModelSpec, mesh: Mesh) -> dict[str, jax.Array]:
    """Return the parameters by dotted path, read directly to their devices; sharded if the mesh has an axis `fsdp`.

    Raises InputError with a list of parameters that are missing, unknown or misshapen, or if they cannot be read.
    """
    path = (folder / PARAMETERS).absolute()
    require_folder(path, "folder", "the parameters of the model")
    shapes = parameter_shapes(spec)
    targets = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding_of(name, shape, mesh))
        for name, shape in shapes.items()
    }
    with reading(path, "parameters", "a folder that Orbax can read"), ocp.StandardCheckpointer() as checkpointer:
        stored = {name: tuple(leaf.shape) for name, leaf in dict(checkpointer.metadata(path).item_metadata).items()}
        _compare(path, stored, shapes)
        return checkpointer.restore(path, targets)


def _compare(path: Path, stored: dict[str, tuple[int, ...]], shapes: dict[str, tuple[int, ...]]) -> None:
    missing, unknown = shapes.keys() - stored.keys(), stored.keys() - shapes.keys()
    shared = shapes.keys() & stored.keys()
    wrong = [f"{name} of {stored[name]} instead of {shapes[name]}" for name in shared if stored[name] != shapes[name]]
    if problem := list_differences(missing=missing, unknown=unknown, wrong=wrong):
        raise InputError(path, "parameters", problem, "those of the spec in model.json")


@contextlib.contextmanager
def reading(path: Path, field: str, expected: str) -> Iterator[None]:
    """Raise InputError for any error while Orbax reads in the block, with the first line of its cause.

    Orbax and TensorStore raise many classes for missing and truncated files, and Orbax's own text lists settings.
    """
    try:
        with quiet_orbax():
            yield
    except InputError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise InputError(path, field, first_line(cause), expected) from None


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Hide what Orbax prints besides the error that it raises: its log, and what its threads and tasks report later."""
    _hide_late_errors()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    except BaseException:
        # Other tasks that failed would each be logged when they are freed.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise
    finally:
        logger.setLevel(level)


@functools.cache
def _hide_late_errors() -> None:
    """Stop the process from printing, with a traceback each, exceptions of Orbax that no code can catch."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        coroutine = getattr(unraisable.object, "cr_code", None)
        is_of_coroutine = coroutine is not None and "orbax" in coroutine.co_filename
        # Said by threads that end after the event loop of the operation.
        if not is_of_coroutine and str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = report_others
