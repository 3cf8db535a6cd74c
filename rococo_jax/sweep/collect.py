"""From the folders of a sweep to the rows of its table: a row an arm and value of each axis, over all its seeds.

    value        the mean over seeds
    sd           the sample standard deviation over seeds, null for a single one
    interval     95 % bootstrap over images of the mean over seeds, null where nothing was evaluated or, for `drop`,
                 where in some draw no query of the clean gallery finds its own

`drop` is the mean of the runs' own drops. The variant `altered` is the mean over the altered variants of a task, the
control and corruptions left out. Images a second are the median over a run's logged steps but the first; bytes are
those of the compiled step (`training/meter.py`).
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.settings import CONTROL
from rococo_jax.evaluation.across_seeds import PerImage, draws_of, interval, over_draws, read_per_image, spread
from rococo_jax.evaluation.results import RESULTS, read_results
from rococo_jax.report.variant_families import is_about_corruption
from rococo_jax.report.vocabulary import CLEAN
from rococo_jax.sweep.plan import Plan, Point
from rococo_jax.sweep.running import EVALUATION, is_evaluated, is_trained
from rococo_jax.training.run_log import METRICS as STEPS

ALTERED = "altered"
METRICS = ("r1", "fr1", "drop")
TRAINING = ("loss", "images_per_second", "memory_bytes_per_device")

# Runs' values, and the same on every draw of images (draws runs) where that is defined.
_Drawn = tuple[np.ndarray, np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A mean over seeds, its spread over them, and its interval over images."""

    value: float
    sd: float | None = None
    interval: list[float] | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting of a sweep over those of its seeds that are done.

    Attributes:
        arm: its name, or "".
        values: of each axis.
        seeds: those that are done.
        config: steps, batch size and learning rate.
        training: figures of `TRAINING`.
        tasks: task -> variant -> metric -> figure; empty where nothing was evaluated.
    """

    arm: str
    values: tuple[Any, ...]
    seeds: tuple[int, ...]
    config: Mapping[str, int | float]
    training: Mapping[str, Figure]
    tasks: Mapping[str, Mapping[str, Mapping[str, Figure]]]


def collect(plan: Plan, workdir: Path) -> list[Row]:
    """The rows of what is done, in the order of the arms and of the first axis."""
    groups: dict[tuple, list[Point]] = {}
    for arm in plan.arms:
        for point in plan.points:
            if point.arm == arm.name:
                groups.setdefault((point.arm, point.values), []).append(point)
    per_image: dict[str, PerImage] = {}
    rows = [_row(plan, workdir, points, per_image) for points in groups.values()]
    return [row for row in rows if row is not None]


def _row(plan: Plan, workdir: Path, points: Sequence[Point], per_image: dict[str, PerImage]) -> Row | None:
    done = [point for point in points if is_trained(plan.folder(workdir, point))]
    if not done:
        return None
    folders = [plan.folder(workdir, point) for point in done]
    logged = [training_figures(folder) for folder in folders]
    training = {
        name: _figure(np.array([each[name] for each in logged], float))
        for name in TRAINING
        if all(each.get(name) is not None for each in logged)
    }
    first = done[0].config
    config = {"steps": first.steps, "batch_size": first.batch_size, "learning_rate": first.optimizer.learning_rate}
    tasks = {}
    if all(map(is_evaluated, folders)):
        for folder in folders:
            if str(folder) not in per_image:
                per_image[str(folder)] = read_per_image(folder / EVALUATION)
        results = [read_results(folder / EVALUATION / RESULTS) for folder in folders]
        tasks = _tasks(results, [per_image[str(folder)] for folder in folders])
    return Row(done[0].arm, done[0].values, tuple(point.seed for point in done), config, training, tasks)


def training_figures(folder: Path) -> dict[str, float | None]:
    """What a run's log says: the loss at the end, images a second, bytes of the step on a device."""
    lines = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    rates = [line["images_per_second"] for line in lines[1:] or lines]
    return {
        "loss": lines[-1]["loss"],
        "images_per_second": float(np.median(rates)),
        "memory_bytes_per_device": lines[-1].get("memory_bytes_per_device"),
    }


def _tasks(results: Sequence[Mapping[str, Any]], runs: Sequence[PerImage]) -> dict[str, dict[str, dict[str, Figure]]]:
    draws = draws_of(runs)
    tasks = {}
    for task, variants in results[0]["tasks"].items():
        drawn = {
            variant: {
                metric: _drawn(results, runs, task, variant, metric, draws)
                for metric in METRICS
                if all(each["tasks"][task][variant].get(metric) is not None for each in results)
            }
            for variant in variants
        }
        altered = [
            drawn[variant]
            for variant in variants
            if variant not in (CLEAN, CONTROL) and not is_about_corruption(variant)
        ]
        if altered:
            shared = [metric for metric in METRICS if all(metric in each for each in altered)]
            drawn[ALTERED] = {metric: _mean([each[metric] for each in altered]) for metric in shared}
        tasks[task] = {
            variant: {metric: _figure(*pair) for metric, pair in metrics.items()} for variant, metrics in drawn.items()
        }
    return tasks


def _drawn(
    results: Sequence[Mapping[str, Any]],
    runs: Sequence[PerImage],
    task: str,
    variant: str,
    metric: str,
    draws: np.ndarray,
) -> _Drawn:
    """Each run's value as its results have it, and its values over draws of images."""
    each = np.array([result["tasks"][task][variant][metric] for result in results], float)
    if (task, variant) not in runs[0].hits:
        # A mean over other variants, of which there are no queries.
        return each, None
    if metric != "drop":
        return each, over_draws(runs, (task, variant), metric, draws)[1]
    if (task, CLEAN) not in runs[0].hits or is_about_corruption(variant):
        return each, None
    clean = over_draws(runs, (task, CLEAN), "r1", draws)[1]
    if not clean.all():
        return each, None
    return each, 100 * (1 - over_draws(runs, (task, variant), "r1", draws)[1] / clean)


def _mean(of_variants: Sequence[_Drawn]) -> _Drawn:
    values = np.mean([values for values, _ in of_variants], axis=0)
    drawn = [drawn for _, drawn in of_variants]
    return values, None if any(each is None for each in drawn) else np.mean(drawn, axis=0)


def _figure(values: np.ndarray, drawn: np.ndarray | None = None) -> Figure:
    return Figure(float(values.mean()), spread(values), None if drawn is None else interval(drawn.mean(1)))
