"""Numbers from ranks and choices, with intervals and paired tests. Nothing here reads or writes files."""

from collections.abc import Iterable

from rococo_jax.metrics import change, choice, classify, grounding, ood, retrieval
from rococo_jax.metrics.metric import DROPS, Metric

__all__ = ["METRICS", "Metric", "describe", "metric_of"]

# Every metric by name, in the order in which tables print them.
METRICS = {
    metric.name: metric
    for metric in (
        *retrieval.RECALLS,
        *grounding.METRICS,
        *DROPS,
        *retrieval.FIRST_PLACES,
        retrieval.CANDIDATES,
        *choice.METRICS,
        *classify.METRICS,
        *change.METRICS,
        *ood.METRICS,
    )
}

# Metrics of other packages, by name: a results file describes those that it has.
_DESCRIBED: dict[str, Metric] = {}


def describe(metrics: Iterable[Metric]) -> None:
    """Make metrics of other packages known by their names; a metric of this package stays as it is."""
    _DESCRIBED.update((metric.name, metric) for metric in metrics)


def _known(name: str) -> Metric | None:
    return METRICS.get(name) or _DESCRIBED.get(name)


def metric_of(name: str) -> Metric:
    """The metric of that name; a name that nothing describes is printed as it is written.

    >>> metric_of("fr1").label, metric_of("new_score").label
    ('FR@1', 'new score')
    """
    return _known(name) or Metric(name, name.replace("_", " "), None, "", "as the results name it", None)


def digits_of(name: str) -> int:
    """Decimals that a metric is shown with: 3 for plain numbers, 1 for what has a unit or is not known."""
    known = _known(name)
    return 1 if known is None or known.unit else 3
