"""Counts of rows (queries, items, images) of each kind of task, from their columns in `per_query.parquet`."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics import change, choice, classify, grounding, retrieval
from rococo_jax.metrics.counts import Column, Counts
from rococo_jax.metrics.metric import Metric, percent
from rococo_jax.metrics.ood import OodScores, count_sides

Columns = Mapping[str, np.ndarray]


class Kind(NamedTuple):
    """How rows of a kind of task are counted.

    Attributes:
        columns: columns of the rows -> columns that are summed.
        metrics: these columns, and names of metrics to list first -> the metrics that are functions of them.
        constants: columns of the rows -> values that are no functions of sums.
    """

    columns: Callable[[Columns], Mapping[str, Column]]
    metrics: Callable[[Mapping[str, Column], Collection[str]], tuple[Metric, ...]]
    constants: Callable[[Columns], dict[str, float]] = lambda columns: {}


_KINDS: Mapping[str, Kind] = {
    "rank": Kind(retrieval.query_columns, retrieval.metrics_of, retrieval.constants),
    **dict.fromkeys(
        ("choice", "image_choice", "group_choice", "text_choice"), Kind(choice.choice_columns, choice.metrics_of)
    ),
    **dict.fromkeys(
        ("classify", "shape", "options"), Kind(classify.class_columns, classify.metrics_of, classify.constants)
    ),
}


def _shares_of(names: Collection[str]) -> Kind:
    """Return a kind of task of another package, whose metrics are shares of the columns of their names."""
    return Kind(
        lambda columns: {name: columns[name] for name in names if name in columns},
        lambda columns, leads: tuple(percent(name, name, None, "", "ours") for name in columns),
    )


def count_rows(
    kind: str, columns: Columns, unit: Int[np.ndarray, " rows"], names: Collection[str] = ()
) -> Counts | OodScores:
    """Return the counts of the rows of one task, variant and seed, with those of pairs and of changes by corruption.

    Args:
        kind: kind of the task. For an unknown kind, columns with the name of a metric are shares.
        columns: counted columns, with one entry for each row.
        unit: number of the group that each row is resampled with.
        names: metrics in the order of the results.

    Raises KeyError: a column of the kind is missing.
    """
    if kind == "out_of_distribution":
        return count_sides(columns)
    of_kind = _KINDS.get(kind) or _shares_of(names)
    counted = of_kind.columns(columns)
    metrics = of_kind.metrics(counted, names)
    pairs, changes = grounding.pair_columns(columns), change.change_columns(columns)
    metrics += (*(grounding.METRICS if pairs else ()), *(change.METRICS if changes else ()))
    return Counts.of_rows({**counted, **pairs, **changes}, unit, metrics, of_kind.constants(columns))
