"""The training state, its shardings, and its checkpoints (Orbax).

Parameters are replicated, or sharded over `fsdp` (`models.fsdp`); moments and averages have the sharding of their
parameter.

CHECKPOINTS/STEP/state     TrainState: trained parameters, moments, average
CHECKPOINTS/STEP/input     the next step of the input, and what decides the order of the data
CHECKPOINTS/STEP/run       hashes of what decides the run: `Setup.identity`

Checkpoints are written in the background and appear complete or not at all; the latest ones and the best one are kept.
A state is restored with the shardings of the current run, so the number of devices and processes may change.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from rococo_jax.checkpoints.model_directory import quiet_orbax, reading
from rococo_jax.encoders.loading import best_step
from rococo_jax.errors import InputError, as_input_error
from rococo_jax.models.fsdp import partition_of, place_parameters
from rococo_jax.processes import broadcast_from_process_0
from rococo_jax.storage import check_free_space, remove_failed_write, remove_folder
from rococo_jax.training.freezing import join_parameters

# Upper bound on what Orbax writes to a checkpoint besides its arrays.
_DESCRIPTION_BYTES = 1_000_000


class TrainState(NamedTuple):
    """State of training.

    Attributes:
        step: number of updates so far, an int32 scalar.
        parameters: trained parameters by path.
        moments: state of the optimizer.
        average: debiased moving average of the parameters, or {}; before the first update, the initial parameters.
    """

    step: jax.Array
    parameters: dict[str, jax.Array]
    moments: Any
    average: dict[str, jax.Array]


def sharding_of_tree(tree: Any, mesh: Mesh) -> Any:
    """Return the sharding of every leaf. Moments and averages are found by the path of their parameter."""

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        partition = partition_of(names[-1], leaf.shape, mesh.shape["fsdp"]) if names else PartitionSpec()
        return NamedSharding(mesh, partition)

    return jax.tree_util.tree_map_with_path(sharding, tree)


def make_state(
    parameters: dict[str, jax.Array],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    averaged: bool,
    donate: bool = False,
) -> TrainState:
    """Return the state before the first step, placed on the mesh.

    Args:
        donate: reuse the buffers of `parameters` that are on the mesh already, instead of copying them.
    """
    on_mesh = place_parameters(parameters, mesh)
    # Placing an array on the devices where it is already does not copy its buffer.
    donated, copied = (on_mesh, {}) if donate else ({}, on_mesh)

    def make(donated: dict[str, jax.Array], copied: dict[str, jax.Array]) -> TrainState:
        copies = {path: jnp.copy(array) for path, array in copied.items()}
        return _initial({**donated, **copies}, optimizer, averaged)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, state_shapes(parameters, optimizer, mesh, averaged=averaged))
    return jax.jit(make, out_shardings=shardings, donate_argnums=0)(donated, copied)


def state_shapes(
    parameters: dict[str, jax.Array], optimizer: optax.GradientTransformation, mesh: Mesh, *, averaged: bool
) -> TrainState:
    """Return shapes, dtypes and shardings of the result of `make_state`."""
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
    """Return all parameters and their mesh, without a copy.

    If the devices of this process hold complete parameters between them, the mesh is theirs, and processes can encode
    without waiting for each other. Otherwise it is `mesh`, and all processes must encode together.
    """
    local = mesh.local_mesh
    if local.shape["fsdp"] != mesh.shape["fsdp"]:
        return join_parameters(trained, frozen), mesh
    local_trained = {path: _local_view(array, local) for path, array in trained.items()}
    local_frozen = {path: _local_view(array, local) for path, array in frozen.items()}
    return join_parameters(local_trained, local_frozen), local


def _local_view(array: jax.Array, mesh: Mesh) -> jax.Array:
    if array.is_fully_addressable:
        return array
    shards = [shard.data for shard in array.addressable_shards]
    sharding = NamedSharding(mesh, array.sharding.spec)
    return jax.make_array_from_single_device_arrays(array.shape, sharding, shards)


def gather_to_host(
    trained: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array], *, keep: bool = True
) -> dict[str, np.ndarray]:
    """Gather parameters that are sharded over devices and processes, one at a time. All processes must call it.

    Args:
        keep: False if this process only takes part in the exchange; it gets nothing.
    """

    def gathered(parameters: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
        arrays = {}
        for path in sorted(parameters):
            array = parameters[path]
            is_local = array.is_fully_addressable or array.is_fully_replicated
            if is_local and not keep:
                continue
            complete = jax.device_get(array) if is_local else multihost_utils.process_allgather(array, tiled=True)
            if keep:
                arrays[path] = complete
        return arrays

    return join_parameters(gathered(trained), gathered(frozen))


class KeepBest(managers.PreservationPolicy):
    """Keep the checkpoint with the highest score, the latest if several have it. Scores are added after saving."""

    def __init__(self, scores: Mapping[int, float]):
        self.scores = scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return for each checkpoint whether it is the best one."""
        best = best_step((each.step for each in checkpoints), self.scores)
        return [each.step == best for each in checkpoints]


class TrainingCheckpoints:
    """The checkpoints of a run.

    Args:
        folder: created if it does not exist.
        keep: number of latest checkpoints to keep, besides the one with the best score.
        run: JSON values that identify the run.
        keep_every: checkpoints at multiples of this step are kept for good; 0 for none.
        scores: scores of evaluated steps; the caller adds to them.
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
        self._remove_unfinished(remove_folder)
        # Orbax writes in the background, and logs until the manager is closed.
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(quiet_orbax())
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def latest(self) -> int | None:
        """Return the step of the latest complete checkpoint, None if there is none."""
        return self.manager.latest_step()

    def describe_latest(self) -> str:
        """Say from which checkpoint a run can resume."""
        latest = self.latest()
        return "no checkpoint was written before" if latest is None else f"the checkpoint of step {latest} is good"

    def save(self, step: int, state: TrainState, input_state: dict[str, Any]) -> None:
        """Start writing in the background; do nothing if the latest checkpoint is of this step.

        Raises InputError: the disk is full, or the previous checkpoint could not be written.
        """
        if step == self.manager.latest_step():
            return
        self.wait()  # Orbax would wait too; this way the free space is known
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + _DESCRIPTION_BYTES
        broadcast_from_process_0("room on the disk", lambda: self._check_free_space(step, size))
        items = {
            "state": ocp.args.StandardSave(state._asdict()),
            "input": ocp.args.JsonSave(input_state),
            "run": ocp.args.JsonSave(self.run),
        }
        with self._writing():
            self.manager.save(step, args=ocp.args.Composite(**items))

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Return state and input state of a checkpoint, with the shapes and shardings of `like`.

        Raises InputError: it belongs to another model, or its parameters differ in name or shape.
        """
        path = self.folder / str(step)
        with reading(path, "checkpoint", "a complete checkpoint of a run"):
            args = ocp.args.Composite(input=ocp.args.JsonRestore(), run=ocp.args.JsonRestore())
            restored = self.manager.restore(step, args=args)
        for name in sorted({*self.run, *restored["run"]}):
            saved, current = restored["run"].get(name), self.run.get(name)
            if saved != current:
                raise InputError(path, name, saved, f"{current}, which this run starts from")
        with reading(path, "state", "the state of this model"):
            args = ocp.args.Composite(state=ocp.args.StandardRestore(like._asdict()))
            state = self.manager.restore(step, args=args)["state"]
        for name, saved_step in (("step", int(state["step"])), ("input", restored["input"].get("next_step", step))):
            if saved_step != step:
                raise InputError(path, name, f"step {saved_step}", f"step {step}, as the folder is named")
        return TrainState(**state), restored["input"]

    def wait(self) -> None:
        """Wait until everything is written. Raises InputError if that fails."""
        with self._writing():
            self.manager.wait_until_finished()

    def close(self) -> None:
        """Wait until everything is written, and close the manager. Raises InputError if that fails."""
        with self._quiet, self._writing():
            self.manager.close()

    def _check_free_space(self, step: int, size: int) -> None:
        with self._writing():
            check_free_space(self.folder / str(step), size)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise InputError for errors of the disk, with the checkpoint from which the run can resume."""
        try:
            with quiet_orbax():
                yield
        except (InputError, OSError, ValueError) as error:
            refused = as_input_error(error)
            if refused is None:
                raise
            self._remove_unfinished(remove_failed_write)
            expected = f"{refused.wanted}; {self.describe_latest()}"
            raise type(refused)(refused.source, refused.field, refused.found, expected) from None

    def _remove_unfinished(self, remove: Callable[[Path], None]) -> None:
        """Remove incomplete checkpoints: of a killed run, or of this one if a write fails and threads go on."""
        if jax.process_index() == 0:
            for folder in self.folder.glob("*.orbax-checkpoint-tmp"):
                remove(folder)
