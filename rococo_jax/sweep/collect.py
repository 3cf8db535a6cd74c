"""Collect the rows of a sweep's table from its folders: one row per arm and value of each axis, over all seeds.

    value        the mean over seeds
    spread       the sample standard deviation over seeds, None for a single one
    low, high    95 % interval of the mean over seeds, for other seeds and other images (`report.across_seeds`); None
                 where nothing was evaluated, where the queries do not tell the metric, or, for `drop`, where in some
                 draw no query of the baseline is right

Each kind of task has its metrics, as in the report. `drop` is the mean of the runs' own drops. Where variants are
alterations (RoCOCO), the variant `altered` is the mean over them, the control and corruptions left out. Images a second
are the median over a run's logged steps but the first; bytes are those of the compiled step.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.errors import is_number, object_of
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, described_variants, read_results
from rococo_jax.evaluation.stored_counts import CountsByVariant, read_image_counts
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.image_counts import BASELINE, ImageCounts, beside_baseline
from rococo_jax.report.across_seeds import interval, over_draws, spread
from rococo_jax.report.collection import Estimate
from rococo_jax.report.sections import TaskSection, section_of_kind
from rococo_jax.report.tables import Lead
from rococo_jax.report.vocabulary import order_metrics, order_variants
from rococo_jax.sweep.plan import Plan, Point, value_text
from rococo_jax.sweep.running import EVALUATION, is_evaluated, is_trained
from rococo_jax.training.log import METRICS as STEPS

ALTERED = "altered"
TRAINING = ("loss", "images_per_second", "memory_bytes_per_device")

# Runs' values, and the same on every draw of images (draws runs) where that is defined.
_Drawn = tuple[np.ndarray, np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of one setting of a sweep over its finished seeds.

    Attributes:
        arm: its name, or "".
        values: of each axis.
        config: steps, batch size and learning rate.
        training: estimates of `TRAINING`.
        tasks: task -> variant -> metric -> estimate; empty where nothing was evaluated.
        kinds: task -> its kind.
        headlines: task -> variant and metric that rank models, where results declare them.
        coverage: (task, variant) -> how many parts it has, to be read after its name, where some are absent.
        variants: task -> the fields of each variant, by name.
        drawn: (task, variant, metric) -> each seed's value, and the same on every draw of images, where it is defined.
    """

    arm: str
    values: tuple[Any, ...]
    seeds: tuple[int, ...]
    config: Mapping[str, int | float]
    training: Mapping[str, Estimate]
    tasks: Mapping[str, Mapping[str, Mapping[str, Estimate]]]
    kinds: Mapping[str, str]
    headlines: Mapping[str, Lead] = dataclasses.field(default_factory=dict)
    coverage: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Variant]] = dataclasses.field(default_factory=dict)
    drawn: Mapping[tuple[str, str, str], _Drawn] = dataclasses.field(default_factory=dict)

    def section(self, task: str) -> TaskSection:
        """Section of a task."""
        return section_of_kind(self.kinds[task], self.headlines.get(task))

    def variant_names(self, task: str) -> list[str]:
        """The variants of a task in reading order."""
        return order_variants(self.tasks.get(task, {}), self.variants.get(task, {}))

    def estimate(self, task: str, variant: str, name: str) -> Estimate | None:
        """The estimate of a metric where the row has it; without a task one of training."""
        return self.tasks.get(task, {}).get(variant, {}).get(name) if task else self.training.get(name)


def collect(plan: Plan, workdir: Path) -> list[Row]:
    """The rows of what is done, in the order of the arms and of the first axis."""
    groups: dict[tuple, list[Point]] = {}
    for arm in plan.arms:
        for point in plan.points:
            if point.arm == arm.name:
                groups.setdefault((point.arm, point.values), []).append(point)
    rows = [_row(plan, workdir, points) for points in groups.values()]
    return [row for row in rows if row is not None]


def sections_of(rows: Sequence[Row]) -> dict[str, TaskSection]:
    """Return the section of each task of the rows."""
    return {task: row.section(task) for row in reversed(rows) for task in row.kinds}


def summary_columns(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return the main columns as task, variant and metric, for every task of any row."""
    columns = []
    for task, section in sections_of(rows).items():
        variant, metric = section.lead
        variants_of_rows = [row.tasks[task] for row in rows if task in row.tasks]
        variant = variant if any(variant in each for each in variants_of_rows) else next(iter(variants_of_rows[0]))
        names = metrics_of([row for row in rows if task in row.tasks], task)
        expected = [(variant, name) for name in ([metric] if metric else names)]
        expected += [(ALTERED, name) for name in names] if section.alters else []
        columns += [
            (task, *each)
            for each in expected
            if any(each[1] in variants.get(each[0], {}) for variants in variants_of_rows)
        ]
    return columns


def curve_name(plan: Plan, row: Row) -> str:
    """The arm, and the values of all axes but the first."""
    others = [f"{axis.short} {value_text(value)}" for axis, value in zip(plan.axes[1:], row.values[1:], strict=True)]
    return ", ".join([row.arm] * bool(row.arm) + others)


def curves_of(plan: Plan, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each curve over the first axis, by its name."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(curve_name(plan, row), []).append(row)
    return curves


def metrics_of(rows: Sequence[Row], task: str) -> list[str]:
    """The metrics of a task that any row has, in reading order."""
    return order_metrics(name for row in rows for metrics in row.tasks.get(task, {}).values() for name in metrics)


def _row(plan: Plan, workdir: Path, points: Sequence[Point]) -> Row | None:
    done = [point for point in points if is_trained(plan.folder(workdir, point))]
    if not done:
        return None
    folders = [plan.folder(workdir, point) for point in done]
    logged = [training_values(folder) for folder in folders]
    training = {
        name: _estimate(np.array([each[name] for each in logged], float))
        for name in TRAINING
        if all(each.get(name) is not None for each in logged)
    }
    first = done[0].config
    config = {"steps": first.steps, "batch_size": first.batch_size, "learning_rate": first.optimizer.learning_rate}
    about_tasks: tuple[Any, ...] = ({}, {})
    of_metrics: dict[tuple[str, str, str], _Drawn] = {}
    if all(map(is_evaluated, folders)):
        results = [read_results(folder / EVALUATION / RESULTS) for folder in folders]
        kinds = {task: results[0]["kinds"].get(task, "") for task in results[0]["tasks"]}
        paths = [folder / EVALUATION / PER_QUERY for folder in folders]
        runs = [read_image_counts(path, of_run) for path, of_run in zip(paths, results, strict=True)]
        drawn = {task: drawn_of_task(results, runs, task) for task in kinds}
        tasks = {task: estimates_of_draws(results, task, drawn[task]) for task in kinds}
        variants = {task: described_variants(results[0], task) for task in kinds}
        about_tasks = tasks, kinds, headlines_of(results[0]), coverage_of(results[0]), variants
        of_metrics = {
            (task, variant, name): pair
            for task, of_task in drawn.items()
            for variant, metrics in of_task.items()
            for name, pair in metrics.items()
        }
    return Row(
        done[0].arm,
        done[0].values,
        tuple(point.seed for point in done),
        config,
        training,
        *about_tasks,
        drawn=of_metrics,
    )


def headlines_of(results: Mapping[str, Any]) -> dict[str, Lead]:
    """Return variant and metric of each headline that results declare."""
    return {task: (about["variant"], about["metric"]) for task, about in results.get("headlines", {}).items()}


def coverage_of(results: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return a phrase for each variant of which some parts are absent."""
    sizes = results.get("sizes", {})
    phrases = {(task, name): coverage_phrase(size) for task, of_task in sizes.items() for name, size in of_task.items()}
    return {name: phrase for name, phrase in phrases.items() if phrase}


def training_values(folder: Path) -> dict[str, float | None]:
    """Return numbers from a run's log: the final loss, images per second, bytes of a step per device."""
    lines = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    rates = [line["images_per_second"] for line in lines[1:] or lines]
    return {
        "loss": lines[-1]["loss"],
        "images_per_second": float(np.median(rates)),
        "memory_bytes_per_device": lines[-1].get("memory_bytes_per_device"),
    }


# Variant -> metric -> each seed's value, and the same on draws of images.
DrawnOfTask = dict[str, dict[str, _Drawn]]


def estimates_of_task(
    results: Sequence[Mapping[str, Any]], runs: Sequence[CountsByVariant], task: str
) -> dict[str, dict[str, Estimate]]:
    """Variant -> metric -> estimate of one task, over results of several seeds and their counts by image."""
    return estimates_of_draws(results, task, drawn_of_task(results, runs, task))


def drawn_of_task(results: Sequence[Mapping[str, Any]], runs: Sequence[CountsByVariant], task: str) -> DrawnOfTask:
    """Return the values of each seed and on draws of images; `altered` is the mean over the altered variants."""
    section = section_of_kind(results[0]["kinds"].get(task, ""), headlines_of(results[0]).get(task))
    expected = (*section.compared, "drop") if section.compared else None
    drawn: DrawnOfTask = {}
    for variant, metrics in results[0]["tasks"][task].items():
        names = expected or order_metrics(metrics)
        names = [name for name in names if all(is_number(each["tasks"][task][variant].get(name)) for each in results)]
        drawn[variant] = {name: _drawn(results, runs, task, variant, name, section) for name in names}
    described = described_variants(results[0], task)
    altered = [drawn[name] for name, variant in described.items() if section.alters and variant.is_attack]
    if altered:
        shared = [name for name in expected or () if all(name in each for each in altered)]
        drawn[ALTERED] = {name: _mean([each[name] for each in altered]) for name in shared}
    return drawn


def estimates_of_draws(
    results: Sequence[Mapping[str, Any]], task: str, drawn: DrawnOfTask
) -> dict[str, dict[str, Estimate]]:
    """Return mean, spread and interval of each metric; of a single seed the interval is that of its results."""
    estimates = {
        variant: {name: _estimate_of_metric(name, *pair) for name, pair in metrics.items()}
        for variant, metrics in drawn.items()
    }
    for variant in results[0]["tasks"][task] if len(results) == 1 else ():
        bounds = results[0]["intervals"].get(task, {}).get(variant, {})
        for name, estimate in estimates[variant].items():
            low, high = bounds.get(name) or (None, None)
            estimates[variant][name] = dataclasses.replace(estimate, low=low, high=high)
    return estimates


def _drawn(
    results: Sequence[Mapping[str, Any]],
    runs: Sequence[CountsByVariant],
    task: str,
    variant: str,
    metric: str,
    section: TaskSection,
) -> _Drawn:
    """Each run's value as its results have it, and its values over draws of images."""
    each = np.array([result["tasks"][task][variant][metric] for result in results], float)
    is_drop = metric == "drop"
    counted = section.lead[1] if is_drop else metric
    counts = _counts_of(runs, task, variant, counted)
    if counts is None:
        # A metric that is no function of sums.
        return each, None
    if not is_drop:
        return each, over_draws(counts, metric)[1]
    baseline = object_of(object_of(object_of(results[0].get("variants")).get(task)).get(variant)).get("baseline")
    of_baseline = _counts_of(runs, task, str(baseline), counted)
    if of_baseline is None:
        return each, None
    both = [beside_baseline(*pair, counted) for pair in zip(counts, of_baseline, strict=True)]
    values, clean = over_draws(both, counted)[1], over_draws(both, BASELINE)[1]
    return each, 100 * (1 - values / clean) if clean.all() else None


def _counts_of(runs: Sequence[CountsByVariant], task: str, variant: str, metric: str) -> list[ImageCounts] | None:
    """Return the counts of each run; None where one has no such metric."""
    counts = [run[task, variant] for run in runs if (task, variant) in run and metric in run[task, variant].metrics]
    return counts if len(counts) == len(runs) else None


def _mean(of_variants: Sequence[_Drawn]) -> _Drawn:
    values = np.mean([values for values, _ in of_variants], axis=0)
    drawn = [drawn for _, drawn in of_variants]
    return values, None if any(each is None for each in drawn) else np.mean(drawn, axis=0)


def _estimate_of_metric(name: str, values: np.ndarray, drawn: np.ndarray | None) -> Estimate:
    """The estimate of a metric, whose interval ends where its range does: few seeds make intervals wider than that."""
    estimate, (lowest, highest) = _estimate(values, drawn), metric_of(name).bounds
    if not estimate.has_interval:
        return estimate
    return dataclasses.replace(estimate, low=max(estimate.low, lowest), high=min(estimate.high, highest))


def _estimate(values: np.ndarray, drawn: np.ndarray | None = None) -> Estimate:
    low, high = (None, None) if drawn is None else interval(values, drawn)
    return Estimate(float(values.mean()), low, high, spread(values))
