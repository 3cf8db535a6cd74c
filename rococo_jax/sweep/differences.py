"""Differences between settings of a sweep, tested over seeds and images (`report.across_seeds.difference`)."""

from collections.abc import Iterator, Sequence

import numpy as np

from rococo_jax.metrics import metric_of
from rococo_jax.report.across_seeds import difference
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.difference import Difference
from rococo_jax.report.tables import heads_of
from rococo_jax.report.vocabulary import signed, task_label, variant_label
from rococo_jax.sweep.collect import Row, summary_columns
from rococo_jax.sweep.plan import Plan, value_text

_NOTE = (
    "Each setting minus the first one. The interval and p (two-sided, not corrected) hold for other seeds and other "
    "images: they add the variance over seeds, with Student's t of few seeds, to that over images."
)


def differences_of(plan: Plan, rows: Sequence[Row]) -> Iterator[tuple[Row, Difference]]:
    """Yield the differences of each setting from the first, in the metrics of the summary, where both have several
    seeds.
    """
    for row in rows[1:]:
        for task, variant, metric in summary_columns(rows):
            values, reference = (each.values_of(task, variant, metric) for each in (row, rows[0]))
            if values is None or reference is None or values.resampled is None or reference.resampled is None:
                continue
            about = metric_of(metric)
            compared: list[np.ndarray] = [*values, *reference]
            if about.neutral is not None:
                compared = [np.abs(each - about.neutral) for each in compared]
            paired = difference(*compared, about.bounds)
            if paired is None:
                continue
            yield (
                row,
                Difference(
                    model=setting_name(plan, row),
                    reference=setting_name(plan, rows[0]),
                    benchmark="",
                    task=task,
                    variant=variant,
                    metric=metric,
                    value=float(values.values.mean()),
                    reference_value=float(reference.values.mean()),
                    points=paired.points,
                    low=paired.low,
                    high=paired.high,
                    p=paired.p,
                    verdict=paired.verdict(about),
                ),
            )


def setting_name(plan: Plan, row: Row) -> str:
    """Return arm and values of all axes, to be read after "Differences from"."""
    values = [f"{axis.short} {value_text(value)}" for axis, value in zip(plan.axes, row.values, strict=True)]
    return ", ".join([row.arm, *values] if row.arm else values)


def differences_part(plan: Plan, rows: Sequence[Row]) -> Part | None:
    """Return the table of differences; None if no two settings have several seeds."""
    differences = [each for _, each in differences_of(plan, rows)]
    if not differences:
        return None
    heads = [*heads_of(["Setting", "Task", "Variant", "Metric"]), Head("Difference", edge=True), Head("p")]
    body = [
        [
            Cell(each.model),
            Cell(task_label(each.task), words=True),
            Cell(variant_label(each.variant), words=True),
            Cell(metric_of(each.metric).label, words=True),
            Cell(signed(each.points), (each.bounds.replace(" to ", "\u00a0to "),), each.points, edge=True),
            Cell(each.p_text, value=each.p),
            Cell(each.verdict or "", words=True),
        ]
        for each in differences
    ]
    title = f"Differences from {setting_name(plan, rows[0])}"
    heads.append(Head("Verdict", words=True))
    return Part(title, [Note(_NOTE), Table(title, heads, body, sortable=len(body) > 1)])
