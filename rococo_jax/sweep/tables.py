"""The table of a sweep: sweep.json with everything, sweep.csv for other programs.

`differences` in sweep.json compares each setting with the first, over seeds and images (`sweep.differences`).

sweep.csv has one row a setting, task and variant (the variant `altered` is the mean over the altered ones), or one row
a setting where nothing was evaluated; every estimate has its mean over seeds, its standard deviation over them (`_sd`),
and metrics of tasks also the bounds of their interval over seeds and images (`_low`, `_high`).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Estimate
from rococo_jax.report.vocabulary import order_metrics, variant_label
from rococo_jax.storage import write_csv_rows, write_json
from rococo_jax.sweep.collect import ALTERED, TRAINING, Row, metrics_of
from rococo_jax.sweep.differences import differences_of
from rococo_jax.sweep.plan import Plan, value_text
from rococo_jax.training.config import flat

FORMAT, VERSION = "rococo_jax.sweep", 1
SCALED = "What follows from the batch size"
MIB = 2**20
_LR_SCALING = {
    "constant": "the same learning rate",
    "linear": "learning rate proportional to the batch size",
    "square-root": "learning rate proportional to the square root of the batch size",
    "adam": "learning rate, betas and epsilon by the rule for Adam (arXiv 2205.10287)",
}


def sweep_json(
    plan: Plan,
    rows: Sequence[Row],
    failed: Mapping[str, str],
    states: Mapping[str, str],
) -> dict[str, Any]:
    """Everything, as JSON values; `failed` says what was wrong with a run, `states` how far each is."""
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
            {
                "arm": each.row.arm,
                "values": dict(zip(names, each.row.values, strict=True)),
                "task": each.task,
                "variant": each.variant,
                "metric": each.metric,
                "difference": each.difference.points,
                "interval": [each.difference.low, each.difference.high],
                "p": each.difference.p,
            }
            for each in differences_of(rows)
        ],
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
    plan: Plan,
    rows: Sequence[Row],
    workdir: Path,
    failed: Mapping[str, str],
    states: Mapping[str, str],
) -> None:
    """sweep.json and sweep.csv, each by rename."""
    write_json(workdir / "sweep.json", sweep_json(plan, rows, failed, states))
    write_csv_rows(workdir / "sweep.csv", csv_rows(plan, rows))


def csv_rows(plan: Plan, rows: Sequence[Row]) -> Iterator[list[Any]]:
    """The heading and the rows. Numbers are written so that reading them gives the same numbers."""
    ends = ("", "_sd", "_low", "_high")
    metrics = order_metrics(name for task in tasks_of(rows) for name in metrics_of(rows, task))
    yield [
        *("arm", *(axis.name for axis in plan.axes), "seeds", "steps", "batch_size", "learning_rate"),
        *(f"{name}{end}" for name in TRAINING for end in ends[:2]),
        *("task", "variant", *(f"{name}{end}" for name in metrics for end in ends)),
    ]
    for row in rows:
        config = [row.config[name] for name in ("steps", "batch_size", "learning_rate")]
        first = [row.arm, *map(value_text, row.values), " ".join(map(str, row.seeds)), *config]
        first += [cell for name in TRAINING for cell in _cells(row.training.get(name))[:2]]
        if not row.tasks:
            yield [*first, "", "", *[""] * (len(metrics) * len(ends))]
        for task, variants in row.tasks.items():
            for variant in row.variant_names(task):
                yield [*first, task, variant, *(x for name in metrics for x in _cells(variants[variant].get(name)))]


def tasks_of(rows: Sequence[Row]) -> list[str]:
    """The tasks that any row was evaluated on."""
    return list(dict.fromkeys(task for row in rows for task in row.tasks))


def _cells(estimate: Estimate | None) -> list[Any]:
    known = (estimate.value, estimate.spread, estimate.low, estimate.high) if estimate else [None] * 4
    return ["" if each is None else each for each in known]


def scaled_keys(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return the settings that were scaled with the batch size: heads, and a row for each arm and size."""
    keys = list(dict.fromkeys(key for point in plan.points for key in point.derived_keys))
    rows = {(point.arm, point.config.batch_size): flat(point.config) for point in plan.points} if keys else {}
    arms = bool(plan.arms[0].name)
    return [*["arm"] * arms, "batch_size", *keys], [
        [*[arm] * arms, *(value_text(config[key]) for key in ("batch_size", *keys))]
        for (arm, _), config in rows.items()
    ]


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
        "Percentages are means over seeds ± their standard deviation; in brackets and bands 95 % bootstrap intervals, "
        "resampled by image. Altered: mean over the altered variants, the control left out; drop: 100 × (clean − "
        "altered) / clean of R@1, this project's definition."
    )
    return " ".join(words)


def label(variant: str) -> str:
    """A variant as tables name it."""
    return "Altered (mean)" if variant == ALTERED else variant_label(variant)


def summary_label(variant: str, name: str) -> str:
    """A column of the summary.

    >>> summary_label("clean", "r1"), summary_label("altered", "drop")
    ('R@1 clean', 'Drop altered')
    """
    return f"{metric_of(name).label} {variant}"


def training_texts(row: Row) -> list[str]:
    """Loss, images a second and MiB a device, as people read them."""
    loss, rate, memory = (row.training.get(name) for name in TRAINING)
    return [
        "–" if loss is None else f"{loss.value:.3f}",
        "–" if rate is None else f"{rate.value:,.0f}",
        "–" if memory is None else f"{memory.value / MIB:{',.1f' if memory.value >= 10 * MIB else '.3g'}}",
    ]
