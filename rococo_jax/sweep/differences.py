"""Differences between settings of a sweep, tested over seeds and images (`report.across_seeds.difference`)."""

from collections.abc import Sequence
from typing import NamedTuple

from rococo_jax.metrics import metric_of
from rococo_jax.report.across_seeds import SeedDifference, difference
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.comparison import p_value
from rococo_jax.report.tables import heads_of
from rococo_jax.report.vocabulary import percent, signed, task_label, variant_label
from rococo_jax.sweep.collect import Row, summary_columns
from rococo_jax.sweep.plan import Plan, value_text

_NOTE = (
    "Each setting minus the first one. The interval and p (two-sided, not corrected) hold for other seeds and other "
    "images: they add the variance over seeds, with Student's t of few seeds, to that over images."
)


class SettingDifference(NamedTuple):
    """Difference between a setting and the first one in one metric."""

    row: Row
    task: str
    variant: str
    metric: str
    difference: SeedDifference


def differences_of(rows: Sequence[Row]) -> list[SettingDifference]:
    """Compare each setting with the first in the metrics of the summary, where both have several seeds."""
    differences = []
    for row in rows[1:]:
        for column in summary_columns(rows):
            values, reference = row.values_of(*column), rows[0].values_of(*column)
            if values is None or reference is None or values.resampled is None or reference.resampled is None:
                continue
            compared = difference(values.values, values.resampled, reference.values, reference.resampled)
            if compared is not None:
                differences.append(SettingDifference(row, *column, compared))
    return differences


def setting_name(plan: Plan, row: Row) -> str:
    """Return arm and values of all axes, to be read after "Differences from"."""
    values = [f"{axis.short} {value_text(value)}" for axis, value in zip(plan.axes, row.values, strict=True)]
    return ", ".join([row.arm, *values] if row.arm else values)


def differences_part(plan: Plan, rows: Sequence[Row]) -> Part | None:
    """Return the table of differences; None if no two settings have several seeds."""
    differences = differences_of(rows)
    if not differences:
        return None
    heads = [*heads_of(["Setting", "Task", "Variant", "Metric"]), Head("Difference", edge=True), Head("p")]
    body = [
        [
            Cell(setting_name(plan, each.row)),
            Cell(task_label(each.task), words=True),
            Cell(variant_label(each.variant), words=True),
            Cell(metric_of(each.metric).label, words=True),
            Cell(
                signed(each.difference.points),
                (f"{percent(each.difference.low)}\u00a0to {percent(each.difference.high)}",),
                each.difference.points,
                edge=True,
            ),
            Cell(p_value(each.difference.p), value=each.difference.p),
        ]
        for each in differences
    ]
    title = f"Differences from {setting_name(plan, rows[0])}"
    return Part(title, [Note(_NOTE), Table(title, heads, body, sortable=len(body) > 1)])
