"""The primary differences between models as rows with a verdict: for the terminal, as Markdown and as JSON."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import Verdict
from rococo_jax.report.comparison import Comparison, Comparisons, Difference, p_value
from rococo_jax.report.vocabulary import percent, signed, task_label, variant_label

COLUMNS = ("Model", "Task", "Variant", "Metric", "Value", "Reference", "Difference", "95 %", "p", "MDE", "Verdict")


@dataclasses.dataclass(frozen=True)
class VerdictRow:
    """A primary difference between a model and the reference, and what it shows.

    Attributes:
        reference, model: labels of the two models.
        value, reference_value: the metric of each, in its unit.
        difference, low, high: model minus reference and its 95 % interval.
        p: corrected over all primary differences of the task.
        mde: minimum detectable effect; None if no image differs.
        verdict: see `PairedDifference.verdict`.
    """

    reference: str
    model: str
    task: str
    variant: str
    metric: str
    value: float
    reference_value: float
    difference: float
    low: float
    high: float
    p: float
    mde: float | None
    verdict: Verdict

    def cells(self) -> tuple[str, ...]:
        """The row as people read it, in the order of `COLUMNS`."""
        words = self.model, task_label(self.task), variant_label(self.variant), metric_of(self.metric).label
        bounds = f"{signed(self.low)} to {signed(self.high)}"
        numbers = percent(self.value), percent(self.reference_value), signed(self.difference), bounds
        return *words, *numbers, p_value(self.p), percent(self.mde), self.verdict

    def as_json(self) -> dict[str, Any]:
        """The row with all digits."""
        return dataclasses.asdict(self)


def verdict_rows(comparisons: Comparisons, margin: float | None = None) -> list[VerdictRow]:
    """Return the primary differences of all comparisons, in the order of the page.

    Args:
        margin: differences smaller than this, in points, do not matter; None to decide on significance alone.
    """
    return [
        _verdict_row(comparison, task, row, margin)
        for (_, task), comparison in comparisons.items()
        for row in comparison.rows
        if row.paired.corrected is not None and metric_of(row.metric).better is not None
    ]


def _verdict_row(comparison: Comparison, task: str, row: Difference, margin: float | None) -> VerdictRow:
    model, reference = (run.figure(task, row.variant, row.metric).value for run in (row.run, comparison.reference))
    paired = row.paired
    return VerdictRow(
        reference=comparison.reference.label,
        model=row.run.label,
        task=task,
        variant=row.variant,
        metric=row.metric,
        value=model,
        reference_value=reference,
        difference=paired.points,
        low=paired.low,
        high=paired.high,
        p=paired.corrected,
        mde=paired.mde,
        verdict=paired.verdict(metric_of(row.metric).better, margin),
    )


def summary_lines(rows: Sequence[VerdictRow]) -> list[str]:
    """Return a sentence for each model that counts its verdicts."""
    lines = []
    for reference, model in dict.fromkeys((row.reference, row.model) for row in rows):
        verdicts = Counter(row.verdict for row in rows if (row.reference, row.model) == (reference, model))
        names = [name for name in ("better", "worse", "equivalent", "undecided") if verdicts[name]]
        counted = [f"{verdicts[name]} {name}" for name in names]
        total = verdicts.total()
        differences = f"{total} primary difference{'s' * (total != 1)}"
        lines.append(f"{model} against {reference}: {', '.join(counted)} of {differences}.")
    return lines


def explanation(margin: float | None) -> str:
    """Return what a reader must know about the columns, in plain text."""
    text = (
        "Difference: model minus reference, paired by image, with its 95 % bootstrap interval. p: permutation test, "
        "corrected over all primary differences of a task (step-down max-T). MDE: the difference that the test would "
        "find in 80 % of such samples. better, worse: p below 0.05."
    )
    if margin is None:
        return f"{text} --margin POINTS also tests whether a difference is too small to matter."
    return f"{text} equivalent: the difference is smaller than {margin:g} points (two one-sided tests at 5 %)."
