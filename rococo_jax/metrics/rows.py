"""Metric counts from the columns of rows (queries, items, images).

The columns are those of `per_query.parquet`. The kind of a task decides which metrics are functions of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics.choice import count_items
from rococo_jax.metrics.classify import count_images
from rococo_jax.metrics.intervals import ItemCounts
from rococo_jax.metrics.metric import Metric
from rococo_jax.metrics.ood import count_sides
from rococo_jax.metrics.retrieval import count_queries

Columns = Mapping[str, np.ndarray]
# Columns and groups of rows, and names of metrics in order -> their counts.
Count = Callable[[Columns, Int[np.ndarray, " rows"], Sequence[str]], Any]

_COUNTS: Mapping[str, Count] = {
    "rank": lambda columns, group, names: count_queries(columns, group),
    **dict.fromkeys(
        ("choice", "image_choice", "group_choice", "text_choice"),
        lambda columns, group, names: count_items(columns, group, tuple(names)),
    ),
    **dict.fromkeys(("classify", "shape", "options"), lambda columns, group, names: count_images(columns, group)),
    "out_of_distribution": lambda columns, group, names: count_sides(columns),
}


def count_rows(kind: str, columns: Columns, group: Int[np.ndarray, " rows"], names: Sequence[str]) -> Any:
    """Return the counts of rows of one task and variant, as `metrics.intervals` takes them.

    Args:
        kind: kind of the task. For an unknown kind, columns with the name of a metric are shares.
        columns: counted columns, with one entry for each row.
        group: image of each row.
        names: metrics in the order of the results.
    """
    count = _COUNTS.get(kind, _count_shares)
    return count(columns, group, names)


def _count_shares(columns: Columns, group: Int[np.ndarray, " rows"], names: Sequence[str]) -> ItemCounts:
    shares = {name: columns[name].astype(np.float64) for name in names if name in columns}
    metrics = tuple(map(_share, shares))
    counts = np.stack([*shares.values()], axis=1) if shares else np.empty((len(group), 0))
    return ItemCounts(counts, tuple(shares), group, metrics)


def _share(name: str) -> Metric:
    return Metric(name, name, None, "%", "", None, lambda shares: shares[name], is_share=True)
