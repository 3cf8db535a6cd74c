"""Checkpoints of `rococo train` as models: `RUN/checkpoints/STEP`, `RUN@STEP`, `RUN@latest`, `RUN@best`.

RUN/checkpoints/STEP/state    the trained parameters, and their average, which is the model where there is one
RUN/origin                    what all of a run have in common: a model directory without parameters

Frozen parameters are those of the model that the run started from.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding

from rococo_jax.checkpoints.model_directory import MODEL_FILE, quiet_orbax, read_description
from rococo_jax.checkpoints.parameters import hash_parameters, parameter_shapes
from rococo_jax.errors import InputError, first_line
from rococo_jax.models.fsdp import sharding_of

CHECKPOINTS, ORIGIN = "checkpoints", "origin"
_STATE = "state"
# Loads the model that a run started from: its name, and the mesh.
LoadStart = Callable[[str], Mapping[str, jax.Array]]


def find_checkpoint(source: str | os.PathLike) -> Path | None:
    """The folder of the checkpoint that `source` names, or None where it names none.

    Raises:
        InputError: the run is there, and no such checkpoint.
    """
    path = Path(source)
    if path.name.isdecimal() and path.parent.name == CHECKPOINTS and (path / _STATE).is_dir():
        return path
    run, at, which = str(source).rpartition("@")
    folder = Path(run) / CHECKPOINTS
    if not at or not run or not folder.is_dir():
        return None
    steps = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal() and (each / _STATE).is_dir())
    scores = {step: score for step in steps if (score := _score(folder / str(step))) is not None}
    if which == "best" and scores:
        return folder / str(max(scores, key=lambda step: (scores[step], step)))
    if which == "latest" and steps:
        return folder / str(steps[-1])
    if which.isdecimal() and int(which) in steps:
        return folder / which
    known = [*(["latest"] if steps else []), *(["best"] if scores else []), *map(str, steps)]
    wanted = f"one of {', '.join(known)}" if known else "a run that has saved one"
    raise InputError(run, "checkpoint", repr(which), wanted)


def _score(folder: Path) -> float | None:
    """The score of the evaluation at a checkpoint."""
    try:
        return float(json.loads((folder / "metrics" / "metrics").read_text())["score"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_checkpoint(
    folder: Path, mesh: Mesh, load_start: LoadStart
) -> tuple[Path, dict[str, Any], dict[str, jax.Array]]:
    """The folder of the description of a checkpoint's model, its provenance, and its parameters, placed on the mesh.

    Raises:
        InputError: something is missing or does not fit.
    """
    origin = folder.parent.parent / ORIGIN
    if not (origin / MODEL_FILE).is_file():
        found = "nothing there; the run was begun with an older release"
        raise InputError(origin, "description", found, "what `rococo train` writes; resume the run, and it is written")
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
        start = load_start(provenance["trained"]["config"]["init.model"])
        for name in missing:
            whole = start[name]
            if name in trained:  # the first blocks of the stack were frozen
                whole = jnp.concatenate([whole[: len(whole) - len(trained[name])], trained[name]])
            parameters[name] = jax.device_put(whole, place(name))
    provenance["trained"] = {**provenance["trained"], "step": int(folder.name)}
    host = {name: np.asarray(array) for name, array in parameters.items()} if not mesh.is_multi_process else None
    if host is not None:
        provenance["weights_sha256"] = hash_parameters(host)
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
