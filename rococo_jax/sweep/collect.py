"""Collect the rows of a sweep's table from its folders: one row per arm and value of each axis, over all seeds.

    value        the mean over seeds
    spread       the sample standard deviation over seeds, None for a single one
    low, high    95 % interval of the mean over seeds, for other seeds and other images (`report.across_seeds`); None
                 if nothing was evaluated, if the metric cannot be computed from counts, or, for `drop`, if no query of
                 the baseline is correct in some draw

Each kind of task has its metrics, as in the report. `drop` is the mean of the runs' drops. If variants are alterations
(RoCOCO), the variant `altered` is the mean over them, without the control and corruptions. Images per second are the
median over a run's logged steps except the first; bytes are those of the compiled step.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.errors import is_number, object_of
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, described_variants, read_results
from rococo_jax.evaluation.stored_counts import CountsByVariant, read_counts
from rococo_jax.evaluation.summary import note_lines
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.report.across_seeds import interval, over_draws, spread
from rococo_jax.report.collection import Estimate
from rococo_jax.report.sections import TaskSection, section_of_kind
from rococo_jax.report.vocabulary import order_metrics, order_variants
from rococo_jax.sweep.plan import Plan, Point, value_text
from rococo_jax.sweep.running import EVALUATION, is_evaluated, is_trained
from rococo_jax.training.log import METRICS as STEPS

ALTERED = "altered"
TRAINING = ("loss", "images_per_second", "memory_bytes_per_device")


@dataclasses.dataclass(frozen=True)
class OverSeeds(Estimate):
    """The mean of a metric over the seeds of a setting; of a single seed the interval is that of its results.

    Attributes:
        values: value of each seed.
        resampled: the same on every bootstrap draw of images; None if the metric cannot be computed from counts.
    """

    values: Float[np.ndarray, " seeds"] | None = dataclasses.field(default=None, compare=False)
    resampled: Float[np.ndarray, "draws seeds"] | None = dataclasses.field(default=None, compare=False)


# Variant -> metric -> estimate, of a task.
TaskEstimates = dict[str, dict[str, OverSeeds]]


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of one setting of a sweep over its finished seeds.

    Attributes:
        arm: name of the arm, or "".
        values: value of each axis.
        seeds: the finished seeds.
        config: steps, batch size and learning rate.
        training: estimates of `TRAINING`.
        tasks: estimates of each task; empty if nothing was evaluated.
        results: the results of each run.
    """

    arm: str
    values: tuple[Any, ...]
    seeds: tuple[int, ...]
    config: Mapping[str, int | float]
    training: Mapping[str, Estimate]
    tasks: Mapping[str, TaskEstimates] = dataclasses.field(default_factory=dict)
    results: Sequence[Mapping[str, Any]] = ()

    @property
    def coverage(self) -> dict[tuple[str, str], str]:
        """(task, variant) -> phrase with the number of its parts, if some are absent."""
        return coverage_of(self.results[0]) if self.results else {}

    def section(self, task: str) -> TaskSection:
        """Return the section of a task."""
        return _section_of(self.results[0], task)

    def variant_names(self, task: str) -> list[str]:
        """Return the variants of a task in reading order."""
        variants = self.tasks.get(task, {})
        return order_variants(variants, described_variants(self.results[0], task)) if variants else []

    def estimate(self, task: str, variant: str, name: str) -> Estimate | None:
        """Return the estimate of a metric if the row has it; without a task, one of training."""
        return self.tasks.get(task, {}).get(variant, {}).get(name) if task else self.training.get(name)


def collect(plan: Plan, workdir: Path) -> list[Row]:
    """Return the rows of the finished runs, in the order of the arms and of the first axis."""
    groups: dict[tuple, list[Point]] = {}
    for arm in plan.arms:
        for point in plan.points:
            if point.arm == arm.name:
                groups.setdefault((point.arm, point.values), []).append(point)
    rows = [_row(plan, workdir, points) for points in groups.values()]
    return [row for row in rows if row is not None]


def sections_of(rows: Sequence[Row]) -> dict[str, TaskSection]:
    """Return the section of each task of the rows."""
    return {task: row.section(task) for row in reversed(rows) for task in row.tasks}


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
    """Return the arm, and the values of all axes but the first."""
    phrases = [f"{axis.short} {value_text(value)}" for axis, value in zip(plan.axes[1:], row.values[1:], strict=True)]
    return ", ".join([row.arm, *phrases] if row.arm else phrases)


def curves_of(plan: Plan, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each curve over the first axis, by the curve's name."""
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(curve_name(plan, row), []).append(row)
    return curves


def metrics_of(rows: Sequence[Row], task: str) -> list[str]:
    """Return the metrics of a task that any row has, in reading order."""
    return order_metrics(name for row in rows for metrics in row.tasks.get(task, {}).values() for name in metrics)


def _row(plan: Plan, workdir: Path, points: Sequence[Point]) -> Row | None:
    """Return the row of a setting over its finished seeds; None if there are none."""
    finished = [point for point in points if is_trained(plan.folder(workdir, point))]
    if not finished:
        return None
    folders = [plan.folder(workdir, point) for point in finished]
    logged = [training_values(folder) for folder in folders]
    training = {
        name: _over_seeds(np.array([each[name] for each in logged], float))
        for name in TRAINING
        if all(each.get(name) is not None for each in logged)
    }
    first = finished[0].config
    config = {"steps": first.steps, "batch_size": first.batch_size, "learning_rate": first.optimizer.learning_rate}
    seeds = tuple(point.seed for point in finished)
    row = Row(finished[0].arm, finished[0].values, seeds, config, training)
    if not all(map(is_evaluated, folders)):
        return row
    results = [read_results(folder / EVALUATION / RESULTS) for folder in folders]
    counts = [
        read_counts(folder / EVALUATION / PER_QUERY, of_run) for folder, of_run in zip(folders, results, strict=True)
    ]
    tasks = {task: estimates_of_task(results, counts, task) for task in results[0]["tasks"]}
    return dataclasses.replace(row, tasks=tasks, results=results)


def notes_of(rows: Sequence[Row], task: str | None = None) -> list[str]:
    """Return the notes of the runs' results, each once, with the runs that it is about if these are not all.

    Args:
        task: only notes on the benchmark of this task.
    """
    runs = [run for row in rows for run in row.results]
    if task is not None:
        benchmarks = [
            {name: each for name, each in run.get("benchmarks", {}).items() if task in each["tasks"]} for run in runs
        ]
        runs = [{**run, "benchmarks": about} for run, about in zip(runs, benchmarks, strict=True)]
    return note_lines(runs)


def _section_of(results: Mapping[str, Any], task: str) -> TaskSection:
    """Return the section of a task, with the headline that results declare."""
    headline = results.get("headlines", {}).get(task)
    return section_of_kind(results["kinds"].get(task, ""), headline and (headline["variant"], headline["metric"]))


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


def estimates_of_task(
    results: Sequence[Mapping[str, Any]], counts: Sequence[CountsByVariant], task: str
) -> TaskEstimates:
    """Return estimates over the runs of a setting; `altered` is the mean over the altered variants."""
    section = _section_of(results[0], task)
    compared = (*section.compared, "drop") if section.compared else None
    estimates: TaskEstimates = {}
    for variant, metrics in results[0]["tasks"][task].items():
        names = compared or order_metrics(metrics)
        names = [name for name in names if all(is_number(each["tasks"][task][variant].get(name)) for each in results)]
        estimates[variant] = {name: _estimate(results, counts, task, variant, name, section) for name in names}
    described = described_variants(results[0], task)
    altered = [estimates[name] for name, variant in described.items() if section.alters and variant.is_attack]
    if altered:
        shared = [name for name in compared or () if all(name in each for each in altered)]
        estimates[ALTERED] = {name: _mean([each[name] for each in altered], name) for name in shared}
    return estimates


def _estimate(
    results: Sequence[Mapping[str, Any]],
    counts: Sequence[CountsByVariant],
    task: str,
    variant: str,
    metric: str,
    section: TaskSection,
) -> OverSeeds:
    values = np.array([each["tasks"][task][variant][metric] for each in results], float)
    if metric == "drop":
        described = object_of(object_of(object_of(results[0].get("variants")).get(task)).get(variant))
        resampled = _resampled_drop(counts, task, variant, str(described.get("baseline")), section.lead[1])
    else:
        of_variant = _counts_of(counts, task, variant, metric)
        resampled = None if of_variant is None else over_draws(of_variant, metric)[1]
    estimate = _over_seeds(values, resampled, metric)
    if len(results) > 1:
        return estimate
    low, high = results[0]["intervals"].get(task, {}).get(variant, {}).get(metric) or (None, None)
    return dataclasses.replace(estimate, low=low, high=high)


def _resampled_drop(
    counts: Sequence[CountsByVariant], task: str, variant: str, baseline: str, metric: str
) -> Float[np.ndarray, "draws seeds"] | None:
    """Return the relative drop of a metric, in percent, on draws of images; None if it is not defined on all draws."""
    of_variant = _counts_of(counts, task, variant, metric)
    of_baseline = _counts_of(counts, task, baseline, metric)
    if of_variant is None or of_baseline is None:
        return None
    units = np.union1d(of_variant[0].units, of_baseline[0].units)
    altered, clean = (over_draws(each, metric, units)[1] for each in (of_variant, of_baseline))
    return 100 * (1 - altered / clean) if clean.all() else None


def _counts_of(counts: Sequence[CountsByVariant], task: str, variant: str, metric: str) -> list[Counts] | None:
    """Return the counts of each run; None if one has no such metric."""
    of_variant = [run[task, variant] for run in counts if (task, variant) in run]
    with_metric = [each for each in of_variant if metric in each.metrics]
    return with_metric if len(with_metric) == len(counts) else None


def _mean(of_variants: Sequence[OverSeeds], metric: str) -> OverSeeds:
    """Return the mean over several variants."""
    resampled = [each.resampled for each in of_variants]
    is_complete = all(each is not None for each in resampled)
    values = np.mean([each.values for each in of_variants], axis=0)
    return _over_seeds(values, np.mean(resampled, axis=0) if is_complete else None, metric)


def _over_seeds(values: np.ndarray, resampled: np.ndarray | None = None, metric: str = "") -> OverSeeds:
    low, high = (None, None) if resampled is None else interval(values, resampled, metric_of(metric).bounds)
    return OverSeeds(float(values.mean()), low, high, spread(values), values=values, resampled=resampled)
