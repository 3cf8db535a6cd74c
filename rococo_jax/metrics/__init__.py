"""Numbers from ranks and choices, with intervals and paired tests. Nothing here reads or writes files."""

from rococo_jax.metrics import change, choice, classify, grounding, ood, retrieval
from rococo_jax.metrics.metric import DROPS, Metric

__all__ = ["METRICS", "Metric", "metric_of"]

# Every metric by name, in the order in which tables print them.
METRICS = {
    metric.name: metric
    for metric in (
        *retrieval.RECALLS,
        *grounding.METRICS,
        *DROPS,
        *retrieval.FIRST_PLACES,
        *choice.METRICS,
        *classify.METRICS,
        *change.METRICS,
        *ood.METRICS,
    )
}


def metric_of(name: str) -> Metric:
    """The metric of that name; a name that this version does not know is printed as it is written.

    >>> metric_of("fr1").label, metric_of("new_score").label
    ('FR@1', 'new score')
    """
    unknown = Metric(name, name.replace("_", " "), None, "", "as the results name it", None)
    return METRICS.get(name, unknown)


def digits_of(name: str) -> int:
    """Decimals that a metric is shown with: 3 for plain numbers, 1 for what has a unit or is not known."""
    return 1 if metric_of(name).unit or name not in METRICS else 3
