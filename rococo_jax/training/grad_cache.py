"""Loss and gradients of a global batch, in one pass or in micro-batches.

With micro-batches (gradient cache, Gao et al., arXiv 2101.06983), a device stores the activations of one micro-batch at
a time:

    1. embed all micro-batches; store the embeddings, and of the first micro-batch the activations as well
    2. compute the loss of all embeddings, and its gradient with respect to them
    3. first micro-batch: propagate that gradient to the parameters through the stored activations
    4. every other micro-batch: embed it again, propagate its part of the gradient, and add the results

A device adds the gradients of its own rows. They are summed over devices once, after all loops over micro-batches and
blocks: `embed` takes copies of the parameters, one for each device, and the gradient of a copy stays where it is.

The gradients are those of the whole batch, because an embedding depends on its own row only. With P micro-batches the
price is 1 - 1/P of a forward pass. The paper also recomputes the first micro-batch; storing it takes no more memory,
because one micro-batch is stored at a time anyway.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rococo_jax.models.fsdp import copy_parameters
from rococo_jax.runtime import AXES

Parameters = Mapping[str, Array]
# Tower inputs, arrays with one row per pair, and their embeddings.
TowerInputs = Any
Embedded = dict[str, Array]
Embed = Callable[[Parameters, TowerInputs], Embedded]
Loss = Callable[[Embedded, Parameters], tuple[Float[Array, ""], Mapping[str, Array]]]

_SCALES = ("logit_scale", "logit_bias")


def loss_and_gradients(
    embed: Embed,
    loss: Loss,
    parameters: Parameters,
    rows: TowerInputs,
    *,
    micro_batches: int = 1,
    mesh: Mesh | None = None,
    gradient_dtype: DTypeLike = jnp.float32,
) -> tuple[Float[Array, ""], Mapping[str, Array], dict[str, Array]]:
    """Compute the loss, the values of its terms, and the gradient with respect to `parameters`.

    Args:
        embed: computes embeddings from parameters and rows; with a mesh, from `copy_parameters`.
        loss: computes the loss and the values of its terms from the embeddings of the global batch and the scales.
        parameters: trained parameters by path. `logit_scale` and `logit_bias` are the scales, which the loss reads.
        rows: tower inputs of the global batch, a pytree.
        micro_batches: number of micro-batches; each has rows of every device.
        mesh: devices that share the rows.
        gradient_dtype: dtype in which devices send their gradients to be summed.
    """
    copy = dict if mesh is None else lambda parameters: copy_parameters(parameters, mesh, gradient_dtype)
    if micro_batches == 1:
        return _in_one_pass(lambda parameters, rows: embed(copy(parameters), rows), loss, parameters, rows)

    copies, sum_over_devices = jax.vjp(copy, parameters)
    # Every array is (micro_batches, rows, ...) from here on.
    split_rows = _split_rows(rows, micro_batches, mesh)
    first_rows, other_rows = _first(split_rows), _all_but_first(split_rows)

    # Forward. The barrier keeps the stored activations of the first micro-batch from being computed too early, when
    # they would take memory beside those of the others.
    other_embedded = jax.lax.map(lambda rows: embed(copies, rows), other_rows)
    first_rows, other_embedded = jax.lax.optimization_barrier((first_rows, other_embedded))
    first_embedded, backward_of_first = jax.vjp(lambda copies: embed(copies, first_rows), copies)
    embedded = jax.tree.map(_prepend, first_embedded, other_embedded)

    # Loss of the global batch, and the gradient with respect to embeddings and scales.
    loss_with_gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, terms), (embedding_gradients, scale_gradients) = loss_with_gradients(
        _join_rows(embedded, mesh), _scales(parameters)
    )
    split_gradients = _split_rows(embedding_gradients, micro_batches, mesh)

    # Backward: first through the stored activations, then micro-batch by micro-batch through recomputed ones.
    (gradients,) = backward_of_first(_first(split_gradients))
    gradients, other_rows = jax.lax.optimization_barrier((dict(gradients), other_rows))

    def add_micro_batch(total: Parameters, micro_batch: tuple[TowerInputs, Embedded]) -> tuple[Parameters, None]:
        rows, embedding_gradients = micro_batch
        _, backward = jax.vjp(lambda copies: embed(copies, rows), copies)
        (gradients,) = backward(embedding_gradients)
        return jax.tree.map(jnp.add, total, gradients), None

    gradients, _ = jax.lax.scan(add_micro_batch, gradients, (other_rows, _all_but_first(split_gradients)))
    (gradients,) = sum_over_devices(gradients)
    for name, gradient in scale_gradients.items():
        gradients[name] += gradient
    return value, terms, gradients


def _in_one_pass(
    embed: Embed, loss: Loss, parameters: Parameters, rows: TowerInputs
) -> tuple[Float[Array, ""], Mapping[str, Array], dict[str, Array]]:
    def loss_of(parameters: Parameters) -> tuple[Float[Array, ""], Mapping[str, Array]]:
        return loss(embed(parameters, rows), _scales(parameters))

    (value, terms), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
    return value, terms, gradients


def _scales(parameters: Parameters) -> dict[str, Array]:
    return {name: parameters[name] for name in _SCALES if name in parameters}


def _first(split: Any) -> Any:
    return jax.tree.map(lambda array: array[0], split)


def _all_but_first(split: Any) -> Any:
    return jax.tree.map(lambda array: array[1:], split)


def _prepend(
    first: Float[Array, "rows ..."], rest: Float[Array, "rest rows ..."]
) -> Float[Array, "micro_batches rows ..."]:
    return jnp.concatenate([first[None], rest])


def _split_rows(tree: Any, micro_batches: int, mesh: Mesh | None) -> Any:
    """Reshape arrays from (rows, ...) to (micro_batches, rows / micro_batches, ...).

    Every device splits its own rows, so that nothing is communicated.
    """
    devices = 1 if mesh is None else mesh.size

    def split(array: Array) -> Array:
        rows = len(array) // micro_batches
        by_device = array.reshape(devices, micro_batches, rows // devices, *array.shape[1:])
        by_micro_batch = by_device.swapaxes(0, 1).reshape(micro_batches, rows, *array.shape[1:])
        return _constrained(by_micro_batch, mesh, PartitionSpec(None, AXES))

    return jax.tree.map(split, tree)


def _join_rows(tree: Any, mesh: Mesh | None) -> Any:
    """Invert `_split_rows`."""
    devices = 1 if mesh is None else mesh.size

    def join(array: Array) -> Array:
        micro_batches, rows = array.shape[:2]
        by_micro_batch = array.reshape(micro_batches, devices, rows // devices, *array.shape[2:])
        by_device = by_micro_batch.swapaxes(0, 1).reshape(micro_batches * rows, *array.shape[2:])
        return _constrained(by_device, mesh, PartitionSpec(AXES))

    return jax.tree.map(join, tree)


def _constrained(array: Array, mesh: Mesh | None, partition: PartitionSpec) -> Array:
    return array if mesh is None else jax.lax.with_sharding_constraint(array, NamedSharding(mesh, partition))


def divides_into_micro_batches(batch_size: int, micro_batches: int, devices: int) -> bool:
    """Return whether every device can split its rows into `micro_batches`."""
    return batch_size % (micro_batches * devices) == 0
