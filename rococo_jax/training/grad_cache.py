"""Loss and gradients of a global batch, whole or in micro-batches.

In parts (gradient cache, Gao et al., arXiv 2101.06983) the activations of one part are held at a time:

    1. embed the parts, keep the embeddings only; of K of them, keep the activations as well
    2. the loss of all embeddings, and its gradient with respect to them
    3. pull the gradient of the embeddings of those K back to the parameters through the activations that were kept
    4. embed every other part again, and pull the gradient of its embeddings back; sum

The gradients are those of the whole batch, since an embedding depends on its own row only. It costs 1 - K / P of a
forward pass. The paper has K = 0; K = 1 needs no more memory, as one part is held at a time anyway; with K = P only
what a block computes is held for one part at a time, and nothing is embedded again.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.runtime import AXES

Parameters = Mapping[str, Array]
# What the towers read, arrays with one row a pair, and what they make of it.
Rows = Any
Embedded = dict[str, Array]
Embed = Callable[[Parameters, Rows], Embedded]
Loss = Callable[[Embedded, Parameters], tuple[Float[Array, ""], Mapping[str, Array]]]

_SCALES = ("logit_scale", "logit_bias")


def loss_and_gradients(
    embed: Embed,
    loss: Loss,
    parameters: Parameters,
    rows: Rows,
    *,
    parts: int = 1,
    kept: int = 1,
    mesh: Mesh | None = None,
    unrolled: bool = False,
) -> tuple[Float[Array, ""], Mapping[str, Array], dict[str, Array]]:
    """The loss, its parts, and the gradient with respect to `parameters`.

    Args:
        embed: parameters and rows to embeddings.
        loss: embeddings of the global batch and the scales among the parameters to the loss and its parts.
        parameters: the trained ones by path; `logit_scale` and `logit_bias` go to the loss, the rest to the towers.
        rows: what the towers read of the global batch, a pytree.
        parts: micro-batches that go through the towers one after the other; each has rows of every device.
        kept: K above, 1 to `parts`.
        mesh: the devices that the rows are split over.
        unrolled: whether the kept parts are lines of the program instead of turns of a loop: what a part keeps of its
            blocks is then not copied from the loop over blocks into that over parts. The program is longer.
    """
    if parts == 1:

        def whole(parameters: Parameters):
            return loss(embed(parameters, rows), _scales(parameters))

        (value, pieces), gradients = jax.value_and_grad(whole, has_aux=True)(parameters)
        return value, pieces, gradients

    def split(tree: Any) -> tuple[Any, Any]:
        parted = jax.tree.map(lambda array: _into_parts(array, parts, mesh), tree)
        return jax.tree.map(lambda array: array[:kept], parted), jax.tree.map(lambda array: array[kept:], parted)

    def embed_each(parameters: Parameters, chunks: Rows) -> Embedded:
        return jax.lax.map(lambda chunk: embed(parameters, chunk), chunks)

    def embed_held(parameters: Parameters) -> Embedded:
        if not unrolled:
            return embed_each(parameters, held)
        embedded = [embed(parameters, jax.tree.map(itemgetter(part), held)) for part in range(kept)]
        return jax.tree.map(lambda *each: jnp.stack(each), *embedded)

    held, others = split(rows)
    of_others = embed_each(parameters, others) if kept < parts else None
    # Activations are not held while the others are embedded, nor while they are embedded again.
    held, of_others = jax.lax.optimization_barrier((held, of_others))
    embedded, pull_held = jax.vjp(embed_held, parameters)
    if kept < parts:
        embedded = jax.tree.map(lambda *both: jnp.concatenate(both), embedded, of_others)
    embedded = jax.tree.map(lambda array: _from_parts(array, mesh), embedded)
    of_loss = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, pieces), (of_embedded, of_scales) = of_loss(embedded, _scales(parameters))

    def pull_back(total: Parameters, chunk: tuple[Rows, Embedded]) -> tuple[Parameters, None]:
        rows_of_part, cotangent = chunk
        _, pull = jax.vjp(lambda parameters: embed(parameters, rows_of_part), parameters)
        return jax.tree.map(jnp.add, total, pull(cotangent)[0]), None

    of_held, cotangents = split(of_embedded)
    gradients = pull_held(of_held)[0]
    if kept < parts:
        start, others = jax.lax.optimization_barrier((dict(gradients), others))
        gradients, _ = jax.lax.scan(pull_back, start, (others, cotangents))
    return value, pieces, {**gradients, **{name: gradients[name] + of_scales[name] for name in of_scales}}


def _scales(parameters: Parameters) -> dict[str, Array]:
    return {name: parameters[name] for name in _SCALES if name in parameters}


def _into_parts(array: Array, parts: int, mesh: Mesh | None) -> Array:
    """(rows, ...) as (parts, rows / parts, ...). Every device splits its own rows, so nothing is sent."""
    devices = 1 if mesh is None else mesh.size
    rows = len(array) // parts
    split = array.reshape(devices, parts, rows // devices, *array.shape[1:]).swapaxes(0, 1)
    return _constrained(split.reshape(parts, rows, *array.shape[1:]), mesh, PartitionSpec(None, AXES))


def _from_parts(array: Array, mesh: Mesh | None) -> Array:
    """The inverse of `_into_parts`."""
    devices = 1 if mesh is None else mesh.size
    parts, rows = array.shape[:2]
    joined = array.reshape(parts, devices, rows // devices, *array.shape[2:]).swapaxes(0, 1)
    return _constrained(joined.reshape(parts * rows, *array.shape[2:]), mesh, PartitionSpec(AXES))


def _constrained(array: Array, mesh: Mesh | None, partition: PartitionSpec) -> Array:
    return array if mesh is None else jax.lax.with_sharding_constraint(array, NamedSharding(mesh, partition))


def check_parts(batch_size: int, parts: int, devices: int) -> bool:
    """Whether every device can split its rows into `parts`."""
    return batch_size % (parts * devices) == 0
