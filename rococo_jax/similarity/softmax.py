"""Softmax over a whole gallery: the sums that confidence and entropy are made of.

    Z = sum_k e^(z_k - z_top)  and  E = sum_k e^(z_k - z_top) (z_k - z_top)  with  z = scale * score
    largest probability 1 / Z, entropy ln Z - E / Z

Products are float32 at the highest precision, of one shape for a gallery's size: a query's sums have the same bits
beside any other queries and on any number of devices of one kind.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.similarity.counting import tile_scores

# Scores that a device holds at once, and queries at most.
_SCORES, _QUERIES = 2**24, 512


def softmax_sums(
    queries: Float[np.ndarray, "queries width"],
    gallery: Float[np.ndarray, "gallery width"],
    scale: float,
    mesh: jax.sharding.Mesh,
) -> Float[np.ndarray, "queries 2"]:
    """Z and E of each query, float32. `mesh` shares the queries."""
    size = mesh.size * min(_QUERIES, max(8, _SCORES // len(gallery)))
    shared, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([mesh.axis_names], []))
    on_devices, parts = jax.device_put((gallery.astype(np.float32), np.float32(scale)), whole), []
    for start in range(0, len(queries), size):
        place = np.minimum(np.arange(start, start + size), len(queries) - 1)
        of_queries = jax.device_put(queries[place].astype(np.float32), shared)
        parts.append(np.asarray(_sums(of_queries, *on_devices))[: len(queries) - start])
    return np.concatenate(parts)


@jax.jit
def _sums(
    queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"], scale: Float[Array, ""]
) -> Float[Array, "queries 2"]:
    scores = tile_scores(queries, gallery)
    z = scale * (scores - scores.max(axis=1, keepdims=True))
    p = jnp.exp(z)
    return jnp.stack([p.sum(axis=1), (p * z).sum(axis=1)], axis=1)
