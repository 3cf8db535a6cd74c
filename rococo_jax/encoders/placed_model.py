"""A model's parameters on a mesh with their hashes, both of the weights at the time when the model was placed.

JAX arrays are immutable: whoever changes a model replaces its arrays. So a model is unchanged as long as it holds the
same array objects, and their values need not be read. A model with arrays of NumPy is placed again for each call.
"""

import dataclasses
import operator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rococo_jax.checkpoints.parameters import hash_parameters, parameters_of
from rococo_jax.models import DualEncoder
from rococo_jax.models.attention import use_fused_attention
from rococo_jax.models.fsdp import shard_model


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedModel:
    """A model in the form that its programs take.

    Attributes:
        model: the module; if parameters are sharded, a module with the sharded ones.
        graph, state: the output of `nnx.split`, with the state on the devices.
        arrays: the arrays of the module; those of NumPy make it be placed again.
        hashes: hashes of parameters by the prefix of their paths.
    """

    model: DualEncoder
    graph: Any
    state: Any
    arrays: list[jax.Array | np.ndarray]
    hashes: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def place(cls, model: DualEncoder, mesh: Mesh) -> "PlacedModel":
        """Place a model's parameters on a mesh: sharded over its axis `fsdp`, else copied to every device."""
        use_fused_attention(model, mesh, model.dtype)
        if mesh.shape["fsdp"] > 1 or mesh.is_multi_process:
            graph, state = shard_model(model, mesh)
            model = nnx.merge(graph, state)
            return cls(model, graph, state, _arrays_of(model))
        graph, state = nnx.split(model)
        return cls(model, graph, jax.device_put(state, NamedSharding(mesh, PartitionSpec())), jax.tree.leaves(state))

    def is_of(self, model: DualEncoder) -> bool:
        """Return whether a model is the one that was placed, without changes since."""
        graph, state = nnx.split(model)
        arrays = jax.tree.leaves(state)
        same_arrays = len(arrays) == len(self.arrays) and all(map(operator.is_, arrays, self.arrays))
        return same_arrays and graph == self.graph and all(isinstance(array, jax.Array) for array in arrays)

    def hash(self, prefix: str = "") -> str:
        """Return the hash of the parameters whose paths begin with a prefix.

        All processes must call this if parameters are sharded over several.
        """
        if prefix not in self.hashes:
            parameters = parameters_of(self.model)
            selected = {path: array for path, array in parameters.items() if path.startswith(prefix)}
            self.hashes[prefix] = hash_parameters(selected)
        return self.hashes[prefix]


def _arrays_of(model: DualEncoder) -> list[jax.Array | np.ndarray]:
    return jax.tree.leaves(nnx.split(model)[1])
