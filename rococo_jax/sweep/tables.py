"""The table of a sweep: sweep.json with everything, sweep.csv for other programs.

`differences` in sweep.json compares each setting with the first, over seeds and images
(`report.across_seeds.difference`).

sweep.csv has one row per setting, task and variant (the variant `altered` is the mean over the altered ones), or one
row per setting if nothing was evaluated. Its last column has the notes of the runs' results on the benchmark, such as
that the models were trained on its images. Every number is a mean over seeds, with its standard deviation over them
(`_sd`); metrics of tasks also have the bounds of their interval over seeds and images (`_low`, `_high`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.metrics import metric_of
from rococo_jax.report.across_seeds import difference
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table
from rococo_jax.report.collection import Estimate
from rococo_jax.report.difference import Difference
from rococo_jax.report.tables import heads_of
from rococo_jax.report.vocabulary import order_metrics, signed, task_label, variant_label
from rococo_jax.storage import write_csv_rows, write_json
from rococo_jax.sweep.collect import ALTERED, TRAINING, Row, metrics_of, notes_of, summary_columns
from rococo_jax.sweep.plan import Plan, value_text
from rococo_jax.training.config import flat

_NOTE = (
    "Each setting minus the first one. The interval and p (two-sided, not corrected) hold for other seeds and other "
    "images: they add the variance over seeds, with Student's t of few seeds, to that over images."
)
FORMAT, VERSION = "rococo_jax.sweep", 1
SCALED_SETTINGS = "Settings that follow from the batch size"
MIB = 2**20
_LR_SCALING = {
    "constant": "the same learning rate",
    "linear": "learning rate proportional to the batch size",
    "square-root": "learning rate proportional to the square root of the batch size",
    "adam": "learning rate, betas and epsilon by the rule for Adam (arXiv 2205.10287)",
}


def differences_of(plan: Plan, rows: Sequence[Row]) -> Iterator[tuple[Row, Difference]]:
    """Yield the differences of each setting from the first, in the metrics of the summary, where both have several
    seeds.
    """
    for row in rows[1:]:
        for task, variant, metric in summary_columns(rows):
            both = [each.estimate(task, variant, metric) for each in (row, rows[0])]
            if any(each is None or each.resampled is None for each in both):
                continue
            compared = [each for estimate in both for each in (estimate.values, estimate.resampled)]
            about = metric_of(metric)
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
                    value=both[0].value,
                    reference_value=both[1].value,
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


def sweep_json(plan: Plan, rows: Sequence[Row], failed: Mapping[str, str], states: Mapping[str, str]) -> dict[str, Any]:
    """Return the contents of sweep.json.

    Args:
        failed: the error of each failed run.
        states: how far each run is.
    """
    names = [axis.name for axis in plan.axes]
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": str(plan.config),
        "over": [{"keys": list(axis.keys), "values": plan.values(place)} for place, axis in enumerate(plan.axes)],
        "arms": {arm.name: dict(arm.overrides) for arm in plan.arms if arm.name},
        "seeds": list(plan.seeds),
        "rules": {"keep": plan.keep, "lr_scaling": plan.lr_scaling},
        "rows": [
            {
                "arm": row.arm,
                "values": dict(zip(names, row.values, strict=True)),
                "seeds": list(row.seeds),
                **row.config,
                "training": {name: _as_json(estimate) for name, estimate in row.training.items()},
                "tasks": {
                    task: {
                        variant: {name: _as_json(estimate) for name, estimate in metrics.items()}
                        for variant, metrics in variants.items()
                    }
                    for task, variants in row.tasks.items()
                },
            }
            for row in rows
        ],
        "differences": [
            {"arm": row.arm, "values": dict(zip(names, row.values, strict=True)), **each.as_json()}
            for row, each in differences_of(plan, rows)
        ],
        "notes": notes_of(rows),
        "points": [
            {
                "name": point.name,
                "run": point.run,
                "arm": point.arm,
                "values": dict(zip(names, point.values, strict=True)),
                "seed": point.seed,
                "state": states[point.run],
                "scaled": dict(point.derived_keys),
                **({"error": failed[point.run]} if point.run in failed else {}),
            }
            for point in plan.points
        ],
    }


def _as_json(estimate: Estimate) -> dict[str, Any]:
    interval = [estimate.low, estimate.high] if estimate.has_interval else None
    return {"value": estimate.value, "sd": estimate.spread, "interval": interval}


def write_tables(
    plan: Plan, rows: Sequence[Row], workdir: Path, failed: Mapping[str, str], states: Mapping[str, str]
) -> None:
    """Write sweep.json and sweep.csv, each by rename."""
    write_json(workdir / "sweep.json", sweep_json(plan, rows, failed, states))
    write_csv_rows(workdir / "sweep.csv", csv_rows(plan, rows))


def csv_rows(plan: Plan, rows: Sequence[Row]) -> Iterator[list[Any]]:
    """Yield the heading and the rows of sweep.csv. Numbers have all their digits."""
    suffixes = ("", "_sd", "_low", "_high")
    metrics = order_metrics(name for task in tasks_of(rows) for name in metrics_of(rows, task))
    yield [
        *("arm", *(axis.name for axis in plan.axes), "seeds", "steps", "batch_size", "learning_rate"),
        *(f"{name}{suffix}" for name in TRAINING for suffix in suffixes[:2]),
        *("task", "variant", *(f"{name}{suffix}" for name in metrics for suffix in suffixes), "notes"),
    ]
    for row in rows:
        config = [row.config[name] for name in ("steps", "batch_size", "learning_rate")]
        setting = [row.arm, *map(value_text, row.values), " ".join(map(str, row.seeds)), *config]
        setting += [cell for name in TRAINING for cell in _cells(row.training.get(name))[:2]]
        if not row.tasks:
            yield [*setting, "", "", *[""] * (len(metrics) * len(suffixes)), ""]
        for task, variants in row.tasks.items():
            notes = "; ".join(notes_of([row], task))
            for variant in row.variant_names(task):
                cells = [cell for name in metrics for cell in _cells(variants[variant].get(name))]
                yield [*setting, task, variant, *cells, notes]


def tasks_of(rows: Sequence[Row]) -> list[str]:
    """Return the tasks that any row was evaluated on."""
    return list(dict.fromkeys(task for row in rows for task in row.tasks))


def _cells(estimate: Estimate | None) -> list[Any]:
    if estimate is None:
        return [""] * 4
    numbers = (estimate.value, estimate.spread, estimate.low, estimate.high)
    return ["" if each is None else each for each in numbers]


def scaled_keys(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return the settings that were scaled with the batch size: heads, and a row for each arm and size."""
    keys = list(dict.fromkeys(key for point in plan.points for key in point.derived_keys))
    rows = {(point.arm, point.config.batch_size): flat(point.config) for point in plan.points} if keys else {}
    heads = ["batch_size", *keys]
    cells = [[value_text(config[key]) for key in heads] for config in rows.values()]
    if not plan.arms[0].name:
        return heads, cells
    return ["arm", *heads], [[arm, *of_row] for (arm, _), of_row in zip(rows, cells, strict=True)]


def title(plan: Plan) -> str:
    """Return the description of the sweep."""
    return "Sweep of " + " and ".join(axis.name.replace("+", " = ") for axis in plan.axes)


def summary(plan: Plan) -> str:
    """Return the settings that all runs share, and the definition of the numbers."""
    seeds = f"{len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''} ({', '.join(map(str, plan.seeds))})"
    words = [f"{plan.config.name}, {seeds}."]
    if "batch_size" in [key for axis in plan.axes for key in axis.keys]:
        base = plan.base
        samples = f"{base.steps * base.batch_size:,} samples" if plan.keep == "samples" else f"{base.steps} steps"
        at = f"{base.optimizer.learning_rate:g} at {base.batch_size}"
        words.append(f"Every point sees {samples}, with {_LR_SCALING[plan.lr_scaling]} ({at}).")
    words.append(
        "Percentages are means over seeds ± their standard deviation; in brackets and bands 95 % intervals, for "
        "other seeds and images. Altered: mean over the altered variants, without the control; drop: 100 × (clean − "
        "altered) / clean of R@1, this project's definition."
    )
    return " ".join(words)


def label(variant: str) -> str:
    """Return the name of a variant in tables."""
    return "Altered (mean)" if variant == ALTERED else variant_label(variant)


def summary_label(variant: str, name: str) -> str:
    """Return the heading of a column of the summary.

    >>> summary_label("clean", "r1"), summary_label("altered", "drop")
    ('R@1 clean', 'Drop altered')
    """
    return f"{metric_of(name).label} {variant}"


def training_texts(row: Row) -> list[str]:
    """Return loss, images per second and MiB per device as text."""
    loss, rate, memory = (row.training.get(name) for name in TRAINING)
    memory_format = ",.1f" if memory is not None and memory.value >= 10 * MIB else ".3g"
    return [
        "–" if loss is None else f"{loss.value:.3f}",
        "–" if rate is None else f"{rate.value:,.0f}",
        "–" if memory is None else f"{memory.value / MIB:{memory_format}}",
    ]
