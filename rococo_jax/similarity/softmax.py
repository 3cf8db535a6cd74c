"""Softmax over a gallery: the sums from which confidence and entropy are computed.

    Z = sum_k e^(z_k - z_top)  and  E = sum_k e^(z_k - z_top) (z_k - z_top)  with  z = scale * score
    highest probability 1 / Z, entropy ln Z - E / Z

Products are float32 at the highest precision, and their shape depends on the size of the gallery only. So the sums of a
query have the same bits whatever the other queries and the number of devices of one kind.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.similarity.counting import tile_scores

# Upper limits of the scores and of the queries that a device computes at a time.
_MAX_SCORES, _MAX_QUERIES = 2**24, 512


def softmax_sums(
    queries: Float[np.ndarray, "queries width"],
    gallery: Float[np.ndarray, "gallery width"],
    scale: float,
    mesh: jax.sharding.Mesh,
) -> Float[np.ndarray, "queries 2"]:
    """Compute Z and E of each query, float32. Queries are sharded over `mesh`."""
    size = mesh.size * min(_MAX_QUERIES, max(8, _MAX_SCORES // len(gallery)))
    by_query = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    replicated = NamedSharding(mesh, PartitionSpec())
    gallery_on_devices = jax.device_put(gallery.astype(np.float32), replicated)
    scale_on_devices = jax.device_put(np.float32(scale), replicated)
    sums = []
    for start in range(0, len(queries), size):
        padded = np.minimum(np.arange(start, start + size), len(queries) - 1)  # repeats the last query
        block = jax.device_put(queries[padded].astype(np.float32), by_query)
        block_sums = np.asarray(_sums(block, gallery_on_devices, scale_on_devices))
        sums.append(block_sums[: len(queries) - start])
    return np.concatenate(sums)


@jax.jit
def _sums(
    queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"], scale: Float[Array, ""]
) -> Float[Array, "queries 2"]:
    scores = tile_scores(queries, gallery)
    z = scale * (scores - scores.max(axis=1, keepdims=True))
    p = jnp.exp(z)
    return jnp.stack([p.sum(axis=1), (p * z).sum(axis=1)], axis=1)
