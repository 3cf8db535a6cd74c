"""Parameters of a running state for evaluation, where they are, and for writing, on the host."""

from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from rococo_jax.training.freezing import join_parameters


def parameters_where_they_are(
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
