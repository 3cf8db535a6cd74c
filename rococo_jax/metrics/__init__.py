"""Numbers from ranks and choices, with intervals and paired tests. Nothing here reads or writes files."""

from collections.abc import Iterable

from rococo_jax.metrics import change, choice, classify, grounding, ood, retrieval
from rococo_jax.metrics.metric import DROPS, Metric

__all__ = ["METRICS", "Metric", "describe", "is_defined", "metric_of"]

# Every metric by name, in the order in which tables print them.
METRICS = {
    metric.name: metric
    for metric in (
        *retrieval.RECALLS,
        *grounding.METRICS,
        *DROPS,
        *retrieval.FIRST_PLACES,
        retrieval.CANDIDATES,
        retrieval.HUBNESS,
        *choice.METRICS,
        *classify.METRICS,
        *change.METRICS,
        *ood.METRICS,
        # Those of rankings that have no place above.
        *retrieval.METRICS,
    )
}

# Metrics of other packages, by name: a results file describes those that it has.
_DESCRIBED: dict[str, Metric] = {}


def describe(metrics: Iterable[Metric]) -> None:
    """Register metrics of other packages by name; metrics of this package are not replaced."""
    _DESCRIBED.update((metric.name, metric) for metric in metrics)


def _find(name: str) -> Metric | None:
    return METRICS.get(name) or _DESCRIBED.get(name)


def is_defined(name: str) -> bool:
    """Whether this package, or a results file that was read, defines the metric."""
    return _find(name) is not None


def metric_of(name: str) -> Metric:
    """Return the metric of a name; an unknown name becomes its own label.

    >>> metric_of("fr1").label, metric_of("new_score").label
    ('FR@1', 'new score')
    """
    return _find(name) or Metric(name, name.replace("_", " "), None, "", "as the results name it", None)


def digits_of(name: str) -> int:
    """Return the decimals of a metric in tables: 3 for numbers without a unit, else 1."""
    metric = _find(name)
    return 1 if metric is None or metric.unit else 3
