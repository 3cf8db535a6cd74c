"""FSDP: shard parameters, and gather each block's parameters just before use (ZeRO stage 3, arXiv 1910.02054).

Parameters are stored sharded over the mesh axis `fsdp`, along their longest axis that the number of shards divides (the
layer axis excepted). Without constraints XLA might gather the activations instead, which are far larger. So each
parameter is constrained to be replicated where it is used, and its gradient, which stays float32, to be sharded:

    forward    all-gather of a block's parameters when the block runs; again in a rematerialised backward pass
    backward   reduce-scatter of their gradient

Parameters outside the blocks (word and position tables, heads) are gathered once per step (`gather_parameters`).
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from rococo_jax.models.dual_encoder import DualEncoder
from rococo_jax.models.layers import stacks_of

# Parameters with fewer elements are not sharded.
LEAST_SHARDED = 2**14
_IN_BLOCKS, _LOOKED_UP = ".blocks.", "text.words"


def partition_of(path: str, shape: tuple[int, ...], shards: int) -> PartitionSpec:
    """Return the partition of a parameter over the axis `fsdp`.

    >>> tuple(partition_of("text.blocks.block.mlp.up.kernel", (12, 512, 2048), 4))
    (None, None, 'fsdp')
    """
    first = 1 if _IN_BLOCKS in path else 0
    axes = [axis for axis in range(first, len(shape)) if shape[axis] % shards == 0]
    if shards == 1 or math.prod(shape) < LEAST_SHARDED or not axes:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(None,) * longest, "fsdp")


def sharding_of(path: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Return the sharding of a parameter on a mesh."""
    return NamedSharding(mesh, partition_of(path, shape, mesh.shape["fsdp"]))


def place_parameters(parameters: Mapping[str, Array | np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Shard parameters, by dotted path, over the mesh. Arrays that already have the right sharding are not copied.

    Every process passes all parameters, or arrays of this mesh.
    """

    def place(path: str, array: Array | np.ndarray) -> jax.Array:
        sharding = sharding_of(path, array.shape, mesh)
        if isinstance(array, jax.Array) and array.sharding.is_equivalent_to(sharding, array.ndim):
            return array
        if mesh.is_multi_process:
            values = np.asarray(array)
            return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
        return jax.device_put(array, sharding)

    return {path: place(path, array) for path, array in parameters.items()}


def shard_model(model: DualEncoder, mesh: Mesh) -> tuple[Any, Any]:
    """Shard the parameters of a model over `mesh`, and return its graph and state for `merge_gathered`."""
    model.sharded_over = mesh
    gather_blocks_on_use(model, mesh)
    graph, state = nnx.split(model)
    sharded = place_parameters(flatten_dict(nnx.to_pure_dict(state), sep="."), mesh)
    nnx.replace_by_pure_dict(state, unflatten_dict(sharded, sep="."))
    return graph, state


def merge_gathered(graph: Any, state: Any) -> DualEncoder:
    """Rebuild a model inside `jax.jit`, with the parameters outside the blocks gathered if they are sharded."""
    model = nnx.merge(graph, state)
    mesh = model.sharded_over
    if mesh is None:
        return model
    state = jax.tree.map(lambda leaf: leaf, state)  # a copy, filled in place below
    gathered = gather_parameters(flatten_dict(nnx.to_pure_dict(state), sep="."), mesh)
    nnx.replace_by_pure_dict(state, unflatten_dict(gathered, sep="."))
    return nnx.merge(graph, state)


def gather_parameters(parameters: Mapping[str, Array], mesh: Mesh) -> dict[str, Array]:
    """Replicate the parameters outside the towers' blocks on every device; their gradients are sharded.

    Applied to parameters that are replicated already, it moves nothing but still shards the gradients.
    """
    shards = mesh.shape["fsdp"]
    if shards == 1:
        return dict(parameters)

    def gather(path: str, array: Array) -> Array:
        if _IN_BLOCKS in path:
            return array
        partition = partition_of(path, array.shape, shards)
        return _replicated(array, mesh, partition, path == _LOOKED_UP, array.dtype)

    return {path: gather(path, array) for path, array in parameters.items()}


def gather_blocks_on_use(model: DualEncoder, mesh: Mesh) -> None:
    """Let all stacks all-gather each block's parameters when the block runs."""
    if mesh.shape["fsdp"] == 1:
        return
    for stack in stacks_of(model):
        stack.prepare_layer = _GatherLayer(mesh, stack.layers, model.dtype)


@dataclasses.dataclass(frozen=True)
class _GatherLayer:
    """Callable that gathers a block's parameters.

    A dataclass, so that instances compare equal and two models of one shape share a program.
    """

    mesh: Mesh
    layers: int
    dtype: DTypeLike

    def __call__(self, layer: Any) -> Any:
        def gather(array: Array) -> Array:
            partition = partition_of(_IN_BLOCKS, (self.layers, *array.shape), self.mesh.shape["fsdp"])
            # The product of a matrix rounds it to this dtype anyway; rounding first sends fewer bytes.
            transfer_dtype = jnp.dtype(self.dtype if array.ndim > 1 else array.dtype)
            return _replicated(array, self.mesh, PartitionSpec(*partition[1:]), False, transfer_dtype)

        return jax.tree.map(gather, layer)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _replicated(
    array: Array, mesh: Mesh, partition: PartitionSpec, is_lookup: bool, transfer_dtype: DTypeLike
) -> Array:
    """Replicate an array, rounded to `transfer_dtype`. Its gradient is not rounded, and gets the sharding `partition`.

    `is_lookup` marks a table whose rows are looked up.
    """
    gathered = jax.lax.with_sharding_constraint(array.astype(transfer_dtype), NamedSharding(mesh, PartitionSpec()))
    return gathered.astype(array.dtype)


def _forward(
    array: Array, mesh: Mesh, partition: PartitionSpec, is_lookup: bool, transfer_dtype: DTypeLike
) -> tuple[Array, None]:
    return _replicated(array, mesh, partition, is_lookup, transfer_dtype), None


def _backward(
    mesh: Mesh, partition: PartitionSpec, is_lookup: bool, transfer_dtype: DTypeLike, _: None, cotangent: Array
) -> tuple[Array]:
    if is_lookup:
        # The gradient of a lookup is a scatter. Left to itself, XLA gathers the rows of all devices for it. With this
        # constraint, each device adds its rows to a table of its own, and the tables are summed.
        cotangent = jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, PartitionSpec()))
    return (jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, partition)),)


_replicated.defvjp(_forward, _backward)
