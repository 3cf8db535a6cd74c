"""FSDP: all-gather each block's parameters just before use (ZeRO stage 3, Rajbhandari et al., arXiv 1910.02054).

Without constraints XLA may keep the parameters sharded over `fsdp` and gather the activations instead, which are far
larger. So each parameter is constrained to be replicated for its product and its gradient to be sharded: an all-gather
forward, another one for a rematerialised backward pass, a reduce-scatter of the gradient.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from rococo_jax.models import DualEncoder
from rococo_jax.training.state import partition_of

_IN_BLOCKS = ".blocks."


def gather_parameters(parameters: Mapping[str, Array], mesh: Mesh) -> dict[str, Array]:
    """All parameters; those outside of the towers' blocks replicated on every device."""
    parts = mesh.shape["fsdp"]
    if parts == 1:
        return dict(parameters)
    return {
        path: array if _IN_BLOCKS in path else _replicated(array, mesh, partition_of(path, array.shape, parts))
        for path, array in parameters.items()
    }


def gather_blocks_on_use(model: DualEncoder, mesh: Mesh) -> None:
    """Makes the towers all-gather each block's parameters when the block runs."""
    parts = mesh.shape["fsdp"]
    if parts == 1:
        return

    def prepare(layer: Any, layers: int) -> Any:
        def of_leaf(array: Array) -> Array:
            partition = partition_of(_IN_BLOCKS, (layers, *array.shape), parts)
            if array.ndim > 1:  # a matrix: its product rounds to this dtype anyway, and less is sent
                array = array.astype(jnp.dtype(model.dtype))
            return _replicated(array, mesh, PartitionSpec(*partition[1:]))

        return jax.tree.map(of_leaf, layer)

    for tower in (model.vision, model.text):
        if hasattr(tower, "blocks"):
            tower.blocks.prepare_layer = functools.partial(prepare, layers=tower.blocks.layers)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _replicated(array: Array, mesh: Mesh, partition: PartitionSpec) -> Array:
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec()))


def _forward(array: Array, mesh: Mesh, partition: PartitionSpec) -> tuple[Array, None]:
    return _replicated(array, mesh, partition), None


def _backward(mesh: Mesh, partition: PartitionSpec, _: None, cotangent: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(cotangent, NamedSharding(mesh, partition)),)


_replicated.defvjp(_forward, _backward)
