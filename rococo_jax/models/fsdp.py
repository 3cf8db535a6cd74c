"""FSDP: shard parameters, and gather each block's parameters just before use (ZeRO stage 3, arXiv 1910.02054).

Parameters are stored sharded over the mesh axis `fsdp`, along their longest axis that the number of shards divides (the
layer axis excepted). Parameters outside the blocks (word and position tables, heads) are gathered once per step
(`gather_parameters`), those of a block when the block runs; again in a rematerialised backward pass.

In training, towers run on each device by itself (`jax.shard_map`), with a copy of the parameters (`copy_parameters`),
so that a device computes the gradients of its own rows:

    in the loops over blocks and micro-batches    reduce-scatter over `fsdp` of the gradients of sharded parameters
    after the loops, once                         sum over the copies, and reduce-scatter of what is outside the blocks

Gradients are sent in float32, or in the second case in the dtype that is requested.
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

from rococo_jax.models.dual_encoder import DualEncoder, abstract_model
from rococo_jax.models.layers import stacks_of
from rococo_jax.runtime import AXES

# Parameters with fewer elements, in a block or outside, are not sharded.
LEAST_SHARDED = 2**14
_IN_BLOCKS = ".blocks."


def partition_of(path: str, shape: tuple[int, ...], shards: int) -> PartitionSpec:
    """Return the partition of a parameter over the axis `fsdp`.

    >>> tuple(partition_of("text.blocks.block.mlp.up.kernel", (12, 512, 2048), 4))
    (None, None, 'fsdp')
    """
    first = 1 if _IN_BLOCKS in path else 0
    axis = _sharded_axis(shape[first:], shards)
    return PartitionSpec() if axis is None else PartitionSpec(*(None,) * (first + axis), "fsdp")


def _sharded_axis(shape: tuple[int, ...], shards: int) -> int | None:
    """Return the axis along which a parameter of this shape is sharded; None for none."""
    axes = [axis for axis, length in enumerate(shape) if length % shards == 0]
    if shards == 1 or math.prod(shape) < LEAST_SHARDED or not axes:
        return None
    return max(axes, key=lambda axis: shape[axis])


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
    """Replicate the parameters outside the towers' blocks on every device."""
    if mesh.shape["fsdp"] == 1:
        return dict(parameters)
    full = NamedSharding(mesh, PartitionSpec())
    return {
        path: array if _IN_BLOCKS in path else jax.lax.with_sharding_constraint(array, full)
        for path, array in parameters.items()
    }


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def copy_parameters(
    parameters: Mapping[str, Array], mesh: Mesh, gradient_dtype: DTypeLike = jnp.float32
) -> dict[str, Array]:
    """Return a copy of the parameters for every device, (devices, ...), for towers inside `jax.shard_map`.

    Parameters outside the blocks are gathered. Of a parameter of a block that is sharded over `fsdp`, the devices of
    one position on the axis `data` share a copy: (data, ...). The gradient is the sum over the copies, which are sent
    and added in `gradient_dtype`.
    """

    def copy(path: str, array: Array) -> Array:
        partition = partition_of_copies(path, array.shape, mesh)
        count = mesh.size if partition[0] == AXES else mesh.shape["data"]
        copies = jnp.broadcast_to(array, (count, *array.shape))
        return jax.lax.with_sharding_constraint(copies, NamedSharding(mesh, partition))

    return {path: copy(path, array) for path, array in gather_parameters(parameters, mesh).items()}


def _copy_parameters_forward(
    parameters: Mapping[str, Array], mesh: Mesh, gradient_dtype: DTypeLike
) -> tuple[dict[str, Array], None]:
    return copy_parameters(parameters, mesh, gradient_dtype), None


def _copy_parameters_backward(
    mesh: Mesh, gradient_dtype: DTypeLike, _: None, gradients: Mapping[str, Array]
) -> tuple[dict[str, Array]]:
    def total(path: str, copies: Array) -> Array:
        # The sum of `jax.numpy` would add in float32, and send that.
        summed = jax.lax.reduce(copies.astype(gradient_dtype), np.zeros((), gradient_dtype), jax.lax.add, (0,))
        return jax.lax.with_sharding_constraint(summed, sharding_of(path, summed.shape, mesh)).astype(copies.dtype)

    return ({path: total(path, copies) for path, copies in gradients.items()},)


copy_parameters.defvjp(_copy_parameters_forward, _copy_parameters_backward)


def partition_of_copies(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the partition of the copies of a parameter of this shape."""
    partition = partition_of_gathered(path, shape, mesh)
    return PartitionSpec("data", *partition) if len(partition) else PartitionSpec(AXES)


def partition_of_gathered(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the partition of a parameter in the result of `gather_parameters`."""
    return partition_of(path, shape, mesh.shape["fsdp"]) if _IN_BLOCKS in path else PartitionSpec()


def gather_blocks_on_use(model: DualEncoder, mesh: Mesh, *, on_each_device: bool = False) -> None:
    """Let all stacks all-gather each block's parameters when the block runs.

    Args:
        on_each_device: the model runs inside `jax.shard_map` and has this device's shards of its blocks.
    """
    shards = mesh.shape["fsdp"]
    if shards == 1:
        return
    complete = nnx.merge(*abstract_model(model.spec))
    for stack, shapes in zip(stacks_of(model), stacks_of(complete), strict=True):
        leaves = jax.tree.leaves(nnx.split(shapes.block)[1])
        axes = tuple(_sharded_axis(leaf.shape[1:], shards) for leaf in leaves)
        stack.prepare_layer = _GatherLayer(mesh, axes, model.dtype, on_each_device)


@dataclasses.dataclass(frozen=True)
class _GatherLayer:
    """Callable that gathers a block's parameters, which are sharded along `axes`.

    A dataclass, so that instances compare equal and two models of one shape share a program.
    """

    mesh: Mesh
    axes: tuple[int | None, ...]
    dtype: DTypeLike
    on_each_device: bool

    def __call__(self, layer: Any) -> Any:
        def gather(array: Array, axis: int | None) -> Array:
            if axis is None:
                return array
            # The product of a matrix rounds it to this dtype anyway; rounding first sends fewer bytes.
            transfer_dtype = jnp.dtype(self.dtype if array.ndim > 1 else array.dtype)
            if self.on_each_device:
                return _all_gather(array, axis, transfer_dtype)
            # Without a constraint XLA might gather the activations instead, which are far larger.
            full = NamedSharding(self.mesh, PartitionSpec())
            return jax.lax.with_sharding_constraint(array.astype(transfer_dtype), full).astype(array.dtype)

        leaves, structure = jax.tree.flatten(layer)
        return jax.tree.unflatten(structure, map(gather, leaves, self.axes))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _all_gather(shard: Array, axis: int, transfer_dtype: DTypeLike) -> Array:
    """Gather an array over `fsdp`, rounded to `transfer_dtype`. Its gradient is not rounded."""
    return jax.lax.all_gather(shard.astype(transfer_dtype), "fsdp", axis=axis, tiled=True).astype(shard.dtype)


def _all_gather_forward(shard: Array, axis: int, transfer_dtype: DTypeLike) -> tuple[Array, None]:
    return _all_gather(shard, axis, transfer_dtype), None


def _all_gather_backward(axis: int, transfer_dtype: DTypeLike, _: None, cotangent: Array) -> tuple[Array]:
    return (jax.lax.psum_scatter(cotangent, "fsdp", scatter_dimension=axis, tiled=True),)


_all_gather.defvjp(_all_gather_forward, _all_gather_backward)
