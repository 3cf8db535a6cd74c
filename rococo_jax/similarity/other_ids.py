"""Sum of the embeddings whose id differs from an item's own id, for every item of a sharded batch.

    sum_i = sum over all j of e_j  -  sum over j with id_j = id_i of e_j

The second sum may need rows of any device, but it treats every column of the embeddings alike. So the devices exchange
rows for columns (all-to-all): each receives all rows of its share of the columns, subtracts the sums of equal ids, and
returns the results to the owners of the rows. A device never holds more than its share of the embeddings, and only the
ids are gathered.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def sum_of_other_ids(
    embeddings: Float[Array, "items width"],
    ids: Int[Array, "items"],
    mask: Bool[Array, "items"],
    axes: tuple[str, ...],
) -> tuple[Float[Array, "items width"], Float[Array, "items"]]:
    """Return, for each row, the sum and the number of the unmasked rows with another id, over all devices.

    Args:
        embeddings: 0 where the mask is False.
        axes: mesh axes that share the rows; this is called inside `jax.shard_map`, or with no axes.
    """
    all_ids, all_mask = (jax.lax.all_gather(array, axes, tiled=True) if axes else array for array in (ids, mask))
    rows = len(all_ids)
    sorted_ids = jnp.sort(all_ids)
    # Rows of equal ids form a group; its number is the first position of the id among the sorted ids.
    own_group = jnp.searchsorted(sorted_ids, ids, method="sort")
    all_groups = jnp.searchsorted(sorted_ids, all_ids, method="sort")

    columns = _rows_to_columns(embeddings, axes)
    group_sums = jax.ops.segment_sum(columns, all_groups, num_segments=rows)
    other_sums = columns.sum(0, keepdims=True) - group_sums[all_groups]

    all_ones = all_mask.astype(jnp.float32)
    group_counts = jax.ops.segment_sum(all_ones, all_groups, num_segments=rows)
    other_counts = all_ones.sum() - group_counts[own_group]
    return _columns_to_rows(other_sums, axes)[:, : embeddings.shape[1]], other_counts


def _rows_to_columns(
    embeddings: Float[Array, "own_rows width"], axes: tuple[str, ...]
) -> Float[Array, "all_rows own_columns"]:
    """Exchange rows for columns; the width is padded with zeros to a multiple of the number of devices."""
    if not axes:
        return embeddings
    padding = -embeddings.shape[1] % jax.lax.axis_size(axes)
    padded = jnp.pad(embeddings, ((0, 0), (0, padding)))
    return jax.lax.all_to_all(padded, axes, split_axis=1, concat_axis=0, tiled=True)


def _columns_to_rows(
    columns: Float[Array, "all_rows own_columns"], axes: tuple[str, ...]
) -> Float[Array, "own_rows padded_width"]:
    """Invert `_rows_to_columns`, except for its padding."""
    if not axes:
        return columns
    return jax.lax.all_to_all(columns, axes, split_axis=0, concat_axis=1, tiled=True)
