"""Primary differences between models as rows with a verdict, for the page, the terminal and JSON."""

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.evaluation.summary import INTERVAL, new_table
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import Verdict
from rococo_jax.report.blocks import Cell, Head, Note, Notes, Part, Table, rich
from rococo_jax.report.comparison import Comparison, Comparisons, Difference, leader_sentence, p_value
from rococo_jax.report.markdown import escaped, table_lines
from rococo_jax.report.vocabulary import percent, signed, task_label, variant_label

LEGEND = (
    "Difference: model minus reference, paired by image, with its 95 % bootstrap interval. p: permutation test, "
    "corrected over all primary differences of a task (step-down max-T). MDE: the difference that the test would find "
    "in 80 % of such samples. better, worse: the difference is significant (p below 0.05)."
)
COLUMNS = ("Model", "Task", "Variant", "Metric", "Value", "Reference", "Difference", INTERVAL, "p", "MDE", "Verdict")
NUMBERS = ("Value", "Reference", "Difference", INTERVAL, "p", "MDE")
# Of more models than this, one sentence counts the verdicts of all.
_MOST_SENTENCES = 8


@dataclasses.dataclass(frozen=True)
class VerdictRow:
    """Primary difference between a model and the reference, with its verdict.

    Attributes:
        reference, model: labels of the two models.
        value, reference_value: the metric of each model, in its unit.
        difference, low, high: model minus reference and its 95 % interval.
        p: p-value, corrected over all primary differences of the task.
        mde: minimum detectable effect; None if no image differs.
        verdict: see `PairedDifference.verdict`.
        coverage: phrase with the number of the benchmark's parts, if some are absent.
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
    coverage: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of `COLUMNS`."""
        variant = variant_label(self.variant) + self.coverage
        words = self.model, task_label(self.task), variant, metric_of(self.metric).label
        bounds = f"{signed(self.low)} to {signed(self.high)}"
        numbers = percent(self.value), percent(self.reference_value), signed(self.difference), bounds
        return *words, *numbers, p_value(self.p), percent(self.mde), self.verdict

    def as_json(self) -> dict[str, Any]:
        """Return the row with all digits."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "coverage"}


def verdict_rows(comparisons: Comparisons, margin: float | None = None) -> list[VerdictRow]:
    """Return the primary differences of all comparisons, in the order of the page.

    Args:
        margin: largest difference, in points, that is equivalent to none; None to decide on significance alone.
    """
    return [
        _verdict_row(comparison, task, row, margin)
        for (_, task), comparison in comparisons.items()
        for row in comparison.rows
        if row.paired.corrected is not None and metric_of(row.metric).better is not None
    ]


def _verdict_row(comparison: Comparison, task: str, row: Difference, margin: float | None) -> VerdictRow:
    model, reference = (run.estimate(task, row.variant, row.metric).value for run in (row.run, comparison.reference))
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
        coverage=coverage_phrase(row.run.sizes(task).get(row.variant, {})),
    )


def verdict_part(compared: Mapping[str, Comparison]) -> Part | None:
    """Return the table of primary differences of a group of results; None if no models were compared.

    Args:
        compared: the comparison of each task.
    """
    rows = verdict_rows({(0, task): comparison for task, comparison in compared.items()})
    if not rows:
        return None
    heads = [Head(name, words=name not in NUMBERS) for name in COLUMNS]
    cells = [
        [
            Cell(text, words=name not in NUMBERS, strong=name == "Verdict" and text != "undecided")
            for name, text in zip(COLUMNS, row.cells(), strict=True)
        ]
        for row in rows
    ]
    reference = rows[0].reference
    table = Table(f"Verdicts against {reference}", heads, cells, sortable=len(rows) > 1, filterable=True)
    hint = rich("{} <code>rococo compare --margin POINTS</code> also tests whether it is too small to matter.", LEGEND)
    return Part(f"Compared with {reference}", [Notes(summary_lines(rows)), table, Note(hint)], "task")


def summary_lines(rows: Sequence[VerdictRow]) -> list[str]:
    """Return a sentence for each model that counts its verdicts, or one for all of many models."""
    lines = []
    for reference in dict.fromkeys(row.reference for row in rows):
        of_reference = [row for row in rows if row.reference == reference]
        models = list(dict.fromkeys(row.model for row in of_reference))
        if len(models) > _MOST_SENTENCES:
            lines.append(f"{len(models)} models against {reference}: {_counted_verdicts(of_reference)}.")
            continue
        for model in models:
            of_model = [row for row in of_reference if row.model == model]
            lines.append(f"{model} against {reference}: {_counted_verdicts(of_model)}.")
    return lines


def _counted_verdicts(rows: Sequence[VerdictRow]) -> str:
    verdicts = Counter(row.verdict for row in rows)
    names = [name for name in ("better", "worse", "equivalent", "undecided") if verdicts[name]]
    counted = [f"{verdicts[name]} {name}" for name in names]
    return f"{', '.join(counted)} of {len(rows)} primary difference{'s' * (len(rows) != 1)}"


def leader_lines(comparisons: Comparisons) -> list[str]:
    """Return a sentence for each task: which model is first, that none is clearly, or that none is above chance."""
    return [
        f"{task_label(task)}: {leader_sentence(comparison.first_two)}"
        for (_, task), comparison in comparisons.items()
        if comparison.first_two
    ]


def print_verdicts(comparisons: Comparisons, margin: float | None = None, hint: str = "") -> None:
    """Print the table of primary differences with its sentences; in a file or a pipe it is Markdown.

    Args:
        hint: sentence that ends the legend.
    """
    rows = verdict_rows(comparisons, margin)
    cells = [row.cells() for row in rows]
    if sys.stdout.isatty():
        _print_table(cells)
    else:
        # No column is aligned to the right: the file is also read as it is.
        heads = [(name, True) for name in COLUMNS]
        for line in table_lines(heads, [map(escaped, row) for row in cells])[1:]:
            print(line)
        print()
    for line in (*leader_lines(comparisons), *summary_lines(rows), "", f"{legend(margin)} {hint}".rstrip()):
        print(line)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print the table to a terminal."""
    from rich.console import Console
    from rich.text import Text

    table = new_table(COLUMNS, NUMBERS)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table, crop=False)


def legend(margin: float | None) -> str:
    """Return what a reader must know about the columns, in plain text."""
    if margin is None:
        return LEGEND
    return f"{LEGEND} equivalent: it is smaller than {margin:g} points (two one-sided tests at 5 %)."
