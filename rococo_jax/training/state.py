"""The training state, its place on the mesh, and its checkpoints (Orbax).

Parameters are replicated, or sharded over `fsdp` along their longest axis that divides (layer axes excepted); moments
and averages lie where their parameter lies.

CHECKPOINTS/STEP/state     TrainState: trained parameters, moments, average
CHECKPOINTS/STEP/input     the step of the input, and what decides its order
CHECKPOINTS/STEP/run       the frozen parameters that belong to it

Checkpoints are written while training goes on, and appear whole or not at all; the last few and the best are kept. A
state is restored to the sharding of the asking state, so the number of devices and of processes may change.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import checkpoint_managers as managers

from rococo_jax.checkpoints.model_directory import quiet_orbax
from rococo_jax.errors import InputError, first_line

# Smaller parameters are not sharded.
_LEAST_CUT = 2**14


class TrainState(NamedTuple):
    """Attributes: steps done, int32 (); trained parameters by path; the optimizer's state; their average, or {}."""

    step: jax.Array
    parameters: dict[str, jax.Array]
    moments: Any
    average: dict[str, jax.Array]


def partition_of(path: str, shape: tuple[int, ...], parts: int) -> PartitionSpec:
    """The sharding of a parameter over the axis `fsdp`.

    >>> tuple(partition_of("text.blocks.block.mlp.up.kernel", (12, 512, 2048), 4))
    (None, None, 'fsdp')
    """
    first = 1 if ".blocks." in path else 0
    size = 1
    for length in shape:
        size *= length
    axes = [axis for axis in range(first, len(shape)) if shape[axis] % parts == 0]
    if parts == 1 or size < _LEAST_CUT or not axes:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(None,) * longest, "fsdp")


def sharding_of_tree(tree: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf. A leaf under a parameter's path is that parameter, its moment or its average."""

    def place(path: tuple, leaf: Any) -> NamedSharding:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        partition = partition_of(names[-1], leaf.shape, mesh.shape["fsdp"]) if names else PartitionSpec()
        return NamedSharding(mesh, partition)

    return jax.tree_util.tree_map_with_path(place, tree)


def make_state(
    parameters: dict[str, jax.Array], optimizer: optax.GradientTransformation, mesh: Mesh, *, averaged: bool
) -> TrainState:
    """The state before the first step, placed on the mesh."""

    def initial(parameters: dict[str, jax.Array]) -> TrainState:
        # Copies: donated buffers must not be shared between the fields.
        average = {path: jnp.copy(array) for path, array in parameters.items()} if averaged else {}
        return TrainState(jnp.zeros((), jnp.int32), parameters, optimizer.init(parameters), average)

    shardings = sharding_of_tree(jax.eval_shape(initial, parameters), mesh)
    parameters = place_parameters(parameters, mesh)
    return jax.jit(initial, out_shardings=shardings)(parameters)


def place_parameters(parameters: dict[str, jax.Array], mesh: Mesh) -> dict[str, jax.Array]:
    """Copies of the parameters, placed on the mesh; every process passes all of them and keeps its part."""
    host = jax.device_get(parameters)
    shardings = sharding_of_tree(parameters, mesh)

    def place(path: str) -> jax.Array:
        return jax.make_array_from_callback(host[path].shape, shardings[path], lambda index: host[path][index])

    return {path: place(path) for path in parameters}


def abstract_state(state: TrainState) -> TrainState:
    """Shapes, dtypes and shardings of a state, for restoring a checkpoint."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


class TrainingCheckpoints:
    """The checkpoints in a folder.

    Args:
        folder: made where it does not exist.
        keep: how many of the latest are kept, beside the one with the best evaluation.
        run: JSON values that identify the run.
    """

    def __init__(self, folder: str | os.PathLike, keep: int, run: dict[str, Any]):
        self.folder, self.run = Path(folder).absolute(), run
        best = managers.BestN(get_metric_fn=lambda metrics: metrics["score"], reverse=False, n=1)
        policy = managers.AnyPreservationPolicy([managers.LatestN(keep), best])
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, enable_async_checkpointing=True)
        with quiet_orbax():
            self.manager = ocp.CheckpointManager(self.folder, options=options)

    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self.manager.latest_step()

    def save(self, step: int, state: TrainState, input_state: dict[str, Any], score: float | None = None) -> None:
        """Starts writing in the background. A step that is there already is not written again."""
        if step == self.manager.latest_step():
            return
        items = {
            "state": ocp.args.StandardSave(state._asdict()),
            "input": ocp.args.JsonSave(input_state),
            "run": ocp.args.JsonSave(self.run),
        }
        with quiet_orbax():
            metrics = None if score is None else {"score": score}
            self.manager.save(step, args=ocp.args.Composite(**items), metrics=metrics)

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """State and input state of a checkpoint, placed as `like` is.

        Raises:
            InputError: it belongs to another model, or its parameters differ in name or shape.
        """
        path = self.folder / str(step)
        with quiet_orbax():
            small = {"input": ocp.args.JsonRestore(), "run": ocp.args.JsonRestore()}
            read = self.manager.restore(step, args=ocp.args.Composite(**small))
            for name, value in self.run.items():
                if read["run"].get(name) != value:
                    raise InputError(path, name, read["run"].get(name), f"{value}, which this run starts from")
            wanted = abstract_state(like)._asdict()
            try:
                args = ocp.args.Composite(state=ocp.args.StandardRestore(wanted))
                state = self.manager.restore(step, args=args)["state"]
            except (ValueError, KeyError, FileNotFoundError) as error:
                raise InputError(path, "state", first_line(error), "the state of this model") from None
        return TrainState(**state), read["input"]

    def wait(self) -> None:
        """Waits until everything is written."""
        self.manager.wait_until_finished()

    def close(self) -> None:
        """Waits until everything is written, and closes the folder."""
        self.manager.close()
