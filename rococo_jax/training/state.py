"""The training state, its place on the mesh and on the host, and its checkpoints (Orbax).

Parameters are replicated, or sharded over `fsdp` (`models.fsdp`); moments and averages lie where their parameter lies.

CHECKPOINTS/STEP/state     TrainState: trained parameters, moments, average
CHECKPOINTS/STEP/input     the step of the input, and what decides its order
CHECKPOINTS/STEP/run       hashes of what decides the run: `Setup.identity`

Checkpoints are written while training goes on, and appear whole or not at all; the last few and the best are kept. A
state is restored to the sharding of the asking state, so the number of devices and of processes may change.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import checkpoint_managers as managers

from rococo_jax.checkpoints.model_directory import quiet_orbax
from rococo_jax.encoders.loading import best_step
from rococo_jax.errors import InputError, as_input_error, first_line
from rococo_jax.models.fsdp import partition_of, place_parameters
from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.storage import check_free_space, remove_folder
from rococo_jax.training.freezing import join_parameters

# At most what Orbax writes of a checkpoint beside its arrays.
_DESCRIPTION_BYTES = 1_000_000


class TrainState(NamedTuple):
    """Attributes: steps done, int32 (); trained parameters by path; the optimizer's state; their average,
    debiased, or {}. Before the first update it holds the starting parameters."""

    step: jax.Array
    parameters: dict[str, jax.Array]
    moments: Any
    average: dict[str, jax.Array]


def sharding_of_tree(tree: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf. A leaf under a parameter's path is that parameter, its moment or its average."""

    def place(path: tuple, leaf: Any) -> NamedSharding:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        partition = partition_of(names[-1], leaf.shape, mesh.shape["fsdp"]) if names else PartitionSpec()
        return NamedSharding(mesh, partition)

    return jax.tree_util.tree_map_with_path(place, tree)


def make_state(
    parameters: dict[str, jax.Array],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    averaged: bool,
    donate: bool = False,
) -> TrainState:
    """The state before the first step, placed on the mesh.

    Args:
        donate: use up `parameters` where they lie on the mesh already, instead of copying them.
    """
    placed = place_parameters(parameters, mesh)
    # What is placed on the devices it lies on already keeps its buffer, under a new name.
    owned, shared = (placed, {}) if donate else ({}, placed)

    def make(owned: dict[str, jax.Array], shared: dict[str, jax.Array]) -> TrainState:
        copies = {path: jnp.copy(array) for path, array in shared.items()}
        return _initial({**owned, **copies}, optimizer, averaged)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, state_shapes(parameters, optimizer, mesh, averaged=averaged))
    return jax.jit(make, out_shardings=shardings, donate_argnums=0)(owned, shared)


def state_shapes(
    parameters: dict[str, jax.Array], optimizer: optax.GradientTransformation, mesh: Mesh, *, averaged: bool
) -> TrainState:
    """Shapes, dtypes and shardings of what `make_state` makes."""
    shapes = jax.eval_shape(lambda parameters: _initial(parameters, optimizer, averaged), parameters)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        sharding_of_tree(shapes, mesh),
    )


def _initial(parameters: dict[str, jax.Array], optimizer: optax.GradientTransformation, averaged: bool) -> TrainState:
    # Copies: donated buffers must not be shared between the fields.
    average = {path: jnp.copy(array) for path, array in parameters.items()} if averaged else {}
    return TrainState(jnp.zeros((), jnp.int32), parameters, optimizer.init(parameters), average)


def local_parameters(
    trained: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array], mesh: Mesh
) -> tuple[dict[str, jax.Array], Mesh]:
    """All parameters and their mesh, without a copy: that of this process's devices where these hold whole parameters
    between them, so that processes need not wait for each other; else `mesh`, whose processes encode in step.
    """
    local = mesh.local_mesh
    if local.shape["fsdp"] != mesh.shape["fsdp"]:
        return join_parameters(trained, frozen), mesh
    return join_parameters(*({path: _local_view(array, local) for path, array in part.items()}
                             for part in (trained, frozen))), local  # fmt: skip


def _local_view(array: jax.Array, mesh: Mesh) -> jax.Array:
    if array.is_fully_addressable:
        return array
    shards = [shard.data for shard in array.addressable_shards]
    sharding = NamedSharding(mesh, array.sharding.spec)
    return jax.make_array_from_single_device_arrays(array.shape, sharding, shards)


def gather_to_host(
    trained: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array], *, keep: bool = True
) -> dict[str, np.ndarray]:
    """Gathers parameters that are sharded over devices and processes, one after another. All processes must call it.

    Args:
        keep: False where this process only takes part; it gets nothing.
    """

    def gathered(parameters: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
        found = {}
        for path in sorted(parameters):
            array = parameters[path]
            local = array.is_fully_addressable or array.is_fully_replicated
            if not local or keep:
                whole = jax.device_get(array) if local else multihost_utils.process_allgather(array, tiled=True)
                if keep:
                    found[path] = whole
        return found

    return join_parameters(gathered(trained), gathered(frozen))


class KeepBest(managers.PreservationPolicy):
    """Keep the checkpoint with the highest score; of several, the last. It is saved before its score is known."""

    def __init__(self, scores: Mapping[int, float]):
        self.scores = scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Whether each checkpoint is the best one."""
        best = best_step((each.step for each in checkpoints), self.scores)
        return [each.step == best for each in checkpoints]


class TrainingCheckpoints:
    """The checkpoints in a folder.

    Args:
        folder: made where it does not exist.
        keep: how many of the latest are kept, beside the one with the best evaluation.
        run: JSON values that identify the run.
        keep_every: checkpoints of these steps are kept for good; 0 for none.
        scores: of evaluated steps; the caller adds to them.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        keep: int,
        run: dict[str, Any],
        keep_every: int = 0,
        scores: Mapping[int, float] | None = None,
    ):
        self.folder, self.run = Path(folder).absolute(), run
        policies = [managers.LatestN(keep), KeepBest({} if scores is None else scores)]
        if keep_every:
            policies.append(managers.EveryNSteps(keep_every))
        policy = managers.AnyPreservationPolicy(policies)
        options = ocp.CheckpointManagerOptions(preservation_policy=policy, enable_async_checkpointing=True)
        self._remove_unfinished()
        self._quiet = contextlib.ExitStack()  # until it is closed, as it writes in the background
        self._quiet.enter_context(quiet_orbax())
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def latest(self) -> int | None:
        """The step of the last complete checkpoint."""
        return self.manager.latest_step()

    def describe_latest(self) -> str:
        """From where a run can go on, in words."""
        latest = self.latest()
        return "no checkpoint was written before" if latest is None else f"the checkpoint of step {latest} is good"

    def save(self, step: int, state: TrainState, input_state: dict[str, Any]) -> None:
        """Starts writing in the background. A step that is there already is not written again.

        Raises InputError: the disk has no room for it, or the one before could not be written.
        """
        if step == self.manager.latest_step():
            return
        self.wait()  # as Orbax does, so that the one before has its room
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + _DESCRIPTION_BYTES
        broadcast_from_process_0("room on the disk", lambda: self._check_room(step, size))
        items = {
            "state": ocp.args.StandardSave(state._asdict()),
            "input": ocp.args.JsonSave(input_state),
            "run": ocp.args.JsonSave(self.run),
        }
        with self._writing():
            self.manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """State and input state of a checkpoint, of the shapes and shardings of `like`.

        Raises InputError: it belongs to another model, or its parameters differ in name or shape.
        """
        path = self.folder / str(step)
        small = {"input": ocp.args.JsonRestore(), "run": ocp.args.JsonRestore()}
        try:
            read = self.manager.restore(step, args=ocp.args.Composite(**small))
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise InputError(path, "checkpoint", first_line(error), "a whole checkpoint of a run") from None
        for name in sorted({*self.run, *read["run"]}):
            saved, current = read["run"].get(name), self.run.get(name)
            if saved != current:
                raise InputError(path, name, saved, f"{current}, which this run starts from")
        try:
            args = ocp.args.Composite(state=ocp.args.StandardRestore(like._asdict()))
            state = self.manager.restore(step, args=args)["state"]
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise InputError(path, "state", first_line(error), "the state of this model") from None
        for name, found in (("step", int(state["step"])), ("input", read["input"].get("next_step", step))):
            if found != step:
                raise InputError(path, name, f"step {found}", f"step {step}, as the folder is named")
        return TrainState(**state), read["input"]

    def wait(self) -> None:
        """Waits until everything is written. Raises InputError where it cannot be."""
        with self._writing():
            self.manager.wait_until_finished()

    def close(self) -> None:
        """Waits until everything is written, and closes the folder. Raises InputError where it cannot be."""
        with self._quiet, self._writing():
            self.manager.close()

    def _check_room(self, step: int, size: int) -> None:
        with self._writing():
            check_free_space(self.folder / str(step), size)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises InputError for what the disk refuses, with the step from which the run can go on."""
        try:
            yield
        except (InputError, OSError, ValueError) as error:
            refused = as_input_error(error)
            if refused is None:
                raise
            # The tasks that failed beside the first one would each be logged when the process ends.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            self._remove_unfinished()
            wanted = f"{refused.wanted}; {self.describe_latest()}"
            raise type(refused)(refused.source, refused.field, refused.found, wanted) from None

    def _remove_unfinished(self) -> None:
        """Removes what a run left that was killed, or had no room, while it wrote a checkpoint."""
        if jax.process_index() == 0:
            for folder in self.folder.glob("*.orbax-checkpoint-tmp"):
                remove_folder(folder)
