"""FSDP: all-gather each block's parameters just before use (ZeRO stage 3, Rajbhandari et al., arXiv 1910.02054).

Parameters lie sharded over the mesh axis `fsdp`, along their longest axis that divides (layer axes excepted). Without
constraints XLA may keep them so and gather the activations instead, which are far larger. So each parameter is
constrained to be replicated for its product and its gradient, which stays float32, to be sharded: an all-gather
forward, another one for a rematerialised backward pass, a reduce-scatter of the gradient.
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

# Smaller parameters are not sharded.
LEAST_SHARDED = 2**14
_IN_BLOCKS, _LOOKED_UP = ".blocks.", "text.words"


def partition_of(path: str, shape: tuple[int, ...], parts: int) -> PartitionSpec:
    """The sharding of a parameter over the axis `fsdp`.

    >>> tuple(partition_of("text.blocks.block.mlp.up.kernel", (12, 512, 2048), 4))
    (None, None, 'fsdp')
    """
    first = 1 if _IN_BLOCKS in path else 0
    axes = [axis for axis in range(first, len(shape)) if shape[axis] % parts == 0]
    if parts == 1 or math.prod(shape) < LEAST_SHARDED or not axes:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(None,) * longest, "fsdp")


def sharding_of(path: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """`partition_of` over the axis `fsdp` of a mesh."""
    return NamedSharding(mesh, partition_of(path, shape, mesh.shape["fsdp"]))


def place_parameters(parameters: Mapping[str, Array | np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Parameters by dotted path, sharded over the mesh. An array that is there already is not copied.

    Every process passes all of them, or arrays of this mesh.
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
    """The graph and the state of a model whose parameters are sharded over `mesh`; `merge_gathered` puts them together
    inside a program."""
    model.sharded_over = mesh
    gather_blocks_on_use(model, mesh)
    graph, state = nnx.split(model)
    placed = place_parameters(flatten_dict(nnx.to_pure_dict(state), sep="."), mesh)
    nnx.replace_by_pure_dict(state, unflatten_dict(placed, sep="."))
    return graph, state


def merge_gathered(graph: Any, state: Any) -> DualEncoder:
    """The model, its parameters gathered where they are sharded. Called inside `jax.jit`."""
    model = nnx.merge(graph, state)
    mesh = model.sharded_over
    if mesh is None:
        return model
    state = jax.tree.map(lambda leaf: leaf, state)  # a copy to fill
    gathered = gather_parameters(flatten_dict(nnx.to_pure_dict(state), sep="."), mesh)
    nnx.replace_by_pure_dict(state, unflatten_dict(gathered, sep="."))
    return nnx.merge(graph, state)


def gather_parameters(parameters: Mapping[str, Array], mesh: Mesh) -> dict[str, Array]:
    """All parameters; those outside of the towers' blocks replicated on every device."""
    parts = mesh.shape["fsdp"]
    if parts == 1:
        return dict(parameters)
    return {
        path: array
        if _IN_BLOCKS in path
        else _replicated(array, mesh, partition_of(path, array.shape, parts), path == _LOOKED_UP, array.dtype)
        for path, array in parameters.items()
    }


def gather_blocks_on_use(model: DualEncoder, mesh: Mesh) -> None:
    """Makes the towers all-gather each block's parameters when the block runs."""
    if mesh.shape["fsdp"] == 1:
        return
    for stack in model.stacks.values():
        stack.prepare_layer = _GatherLayer(mesh, stack.layers, model.dtype)


@dataclasses.dataclass(frozen=True)
class _GatherLayer:
    """Gathers a block's parameters. Equal ones are equal, so that two models of one shape share a program."""

    mesh: Mesh
    layers: int
    dtype: DTypeLike

    def __call__(self, layer: Any) -> Any:
        def of_leaf(array: Array) -> Array:
            partition = partition_of(_IN_BLOCKS, (self.layers, *array.shape), self.mesh.shape["fsdp"])
            # A matrix: its product rounds to this dtype anyway, and less is sent.
            sent = jnp.dtype(self.dtype if array.ndim > 1 else array.dtype)
            return _replicated(array, self.mesh, PartitionSpec(*partition[1:]), False, sent)

        return jax.tree.map(of_leaf, layer)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _replicated(array: Array, mesh: Mesh, partition: PartitionSpec, looked_up: bool, sent: DTypeLike) -> Array:
    """The whole array, rounded to the dtype in which it is sent. Its gradient is not rounded."""
    gathered = jax.lax.with_sharding_constraint(array.astype(sent), NamedSharding(mesh, PartitionSpec()))
    return gathered.astype(array.dtype)


def _forward(
    array: Array, mesh: Mesh, partition: PartitionSpec, looked_up: bool, sent: DTypeLike
) -> tuple[Array, None]:
    return _replicated(array, mesh, partition, looked_up, sent), None


def _backward(
    mesh: Mesh, partition: PartitionSpec, looked_up: bool, sent: DTypeLike, _: None, cotangent: Array
) -> tuple[Array]:
    if looked_up:
        # The gradient of a lookup is a scatter, which XLA shards by gathering the rows of all devices. So each device
        # adds its own rows to a table of its own, and the tables are summed.
        cotangent = jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, PartitionSpec()))
    return (jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, partition)),)


_replicated.defvjp(_forward, _backward)
