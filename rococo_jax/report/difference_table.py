"""The primary differences between models as a `blocks.Table` with notes, for papers."""

from rococo_jax.evaluation.summary import INTERVAL
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import FLIPS
from rococo_jax.report.blocks import Cell, Head, Table
from rococo_jax.report.comparison import Comparisons
from rococo_jax.report.verdicts import legend, verdict_rows
from rococo_jax.report.vocabulary import count, percent, signed, task_label, variant_label

_HEADS = (
    *(Head(name, words=True) for name in ("Model", "Task", "Variant", "Metric")),
    *(Head(name) for name in ("Value", "Reference", "Difference", INTERVAL, "p", "MDE", "Images")),
    Head("Verdict", words=True),
)


def difference_table(comparisons: Comparisons, margin: float | None = None) -> Table:
    """Return the primary differences of all comparisons, the significant ones marked as strong.

    Args:
        margin: that the comparisons were made with.
    """
    rows = []
    for row in verdict_rows(comparisons):
        variant = variant_label(row.variant) + row.coverage
        words = [Cell(text) for text in (row.model, task_label(row.task), variant, metric_of(row.metric).label)]
        numbers = [Cell(percent(row.value)), Cell(percent(row.reference_value))]
        numbers += [Cell(signed(row.points), strong=row.is_significant), Cell(row.bounds or "–")]
        numbers += [Cell(row.p_text), Cell(percent(row.mde)), Cell(count(row.images))]
        rows.append([*words, *numbers, Cell(row.verdict or "")])
    references = ", ".join(dict.fromkeys(comparison.reference.label for comparison in comparisons.values()))
    notes = [
        f"* p below 0.05 after the correction, by a two-sided permutation test with {FLIPS:,} swaps.",
        legend(comparisons, margin),
    ]
    return Table(f"Differences from {references}", _HEADS, rows, notes=notes)
