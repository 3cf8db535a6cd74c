"""The tests of one task: counts of each model and of the reference by image, and the differences between them.

`rococo compare` tests the primary numbers unless others are requested, and corrects them together: the metric that
ranks models on a task, and R@1, FR@1, grounding and blind of each altered variant and of each part whose items choose
between true and altered captions. The control is no altered variant.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.benchmarks.variants import CLEAN, Variant
from rococo_jax.errors import object_of
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.paired import Pair, PairedDifference, paired_differences
from rococo_jax.report.collection import Group, Run, by_kind
from rococo_jax.report.difference import Difference
from rococo_jax.report.sections import ordered, section_of, section_of_kind
from rococo_jax.report.sections.generic import pooled_variants
from rococo_jax.report.vocabulary import order_metrics

# Primary in every altered variant, beside the metric that ranks models.
PRIMARY = ("r1", "fr1", "grounding", "blind")
# Without meaning for a model that finds no more than chance without the alteration.
_NEEDS_SKILL = frozenset(("fr1", "grounding", "drop", "drop_points"))
_ROUNDING = 1e-6  # points, between the same count of hits divided in another order


def primary_metrics(
    runs: Sequence[Run], task: str, counted: Mapping[str, Collection[str]]
) -> frozenset[tuple[str, str]]:
    """Return variant and metric of the primary numbers of a task.

    The metric that ranks models is primary in its variant or, if that has no counts, in every altered variant and part.
    If it has no counts anywhere, the usual one of the kind of task replaces it. Each kind of a task with several has
    its own ranking metric.

    Args:
        counted: metrics with counts of single queries or items, by variant; all but single corruptions.
    """
    leads: list[tuple[str, str, set[str]]] = []  # variant and metric of a kind, and the variants with that metric
    pooled: set[str] = set()
    for kind, of_kind in by_kind(runs, task).items():
        section = section_of(of_kind, task)
        lead_variant, lead_metric = section.ranked_by
        of_this = {name: counted[name] for name in counted if any(name in run.tasks[task] for run in of_kind)}
        if all(lead_metric not in metrics for metrics in of_this.values()):
            usual = section_of_kind(kind).lead[1]
            lead_metric = usual if any(usual in metrics for metrics in of_this.values()) else lead_metric
        leads.append((lead_variant, lead_metric, {name for name, metrics in of_this.items() if lead_metric in metrics}))
        pooled |= pooled_variants(section, of_kind, task)
    described = {name: variant for run in reversed(runs) for name, variant in run.described.get(task, {}).items()}
    altered = {name for name in counted if _is_altered_or_part(described[name], name in pooled)}
    leading = {
        (name, metric)
        for variant, metric, with_metric in leads
        for name in ({variant} if variant in with_metric else with_metric & altered)
    }
    return frozenset(leading | {(name, metric) for name in altered for metric in PRIMARY if metric in counted[name]})


def _is_altered_or_part(variant: Variant, is_pooled: bool) -> bool:
    """Whether a variant is an attack or a part of a benchmark, whose items choose between true and altered captions.

    The control, variants over some of the items and variants that are pooled over parts are none.
    """
    is_part = variant.is_altered and not (variant.alteration or variant.is_subset or is_pooled)
    return variant.is_attack or is_part


class TaskTests:
    """Counts of each model and of the reference by variant, and which tests are primary.

    Args:
        base: the reference, unless it lacks the task or its counts and another model has them.
        metrics: names of the primary metrics; empty for the usual ones.

    Attributes:
        runs: the models that measured the task, in the order of the leaderboard.
    """

    def __init__(self, group: Group, task: str, base: Run, metrics: Sequence[str]):
        self.task, self.runs = task, tuple(ordered(group.runs, task))
        with_task = [run for run in group.runs if task in run.tasks]
        with_counts = [run for run in with_task if any(of_task == task for of_task, _ in run.counts)]
        candidates = with_counts or with_task
        self.reference = base if base in candidates else candidates[0]
        self.compared = [run for run in group.runs if task in run.tasks and run is not self.reference]
        names = [(run, name) for run in self.compared for name in (*run.variants(task), *run.mean_corruptions(task))]
        pairs = [(each, _shared_counts(each[0], self.reference, task, each[1])) for each in names]
        self.variants = [each for each, counts in pairs if counts is not None]
        self.counts = [counts for _, counts in pairs if counts is not None]
        counted: dict[str, set[str]] = {}
        for (_, variant), (model, _) in zip(self.variants, self.counts, strict=True):
            counted.setdefault(variant, set()).update(model.metrics)
        self._requested, self._primary = metrics, primary_metrics(self.runs, task, counted)

    def is_primary(self, place: int, metric: str) -> bool:
        """Whether a test belongs to the family that is corrected together, by the place of its variant."""
        return metric in self._requested if self._requested else (self.variants[place][1], metric) in self._primary

    def differences(
        self, by_variant: Sequence[Mapping[str, PairedDifference]], margin: float | None
    ) -> tuple[Difference, ...]:
        """Return the records of the differences of each variant."""
        return tuple(
            self._difference(run, variant, metric, paired[metric], self.is_primary(place, metric), margin)
            for place, ((run, variant), paired) in enumerate(zip(self.variants, by_variant, strict=True))
            for metric in order_metrics(paired)
        )

    def _difference(
        self, run: Run, variant: str, metric: str, paired: PairedDifference, is_primary: bool, margin: float | None
    ) -> Difference:
        verdict = None
        if is_primary:
            pair = (run, self.reference)
            no_skill = metric in _NEEDS_SKILL and any(is_at_chance(each, self.task, variant) for each in pair)
            verdict = "at chance" if no_skill else paired.verdict(metric_of(metric), margin)
        value, reference_value = (each.estimate(self.task, variant, metric).value for each in (run, self.reference))
        return Difference(
            model=run.label,
            reference=self.reference.label,
            benchmark=run.benchmark_of(self.task),
            task=self.task,
            variant=variant,
            metric=metric,
            value=value,
            reference_value=reference_value,
            points=paired.points,
            low=paired.low if np.isfinite(paired.low) else None,
            high=paired.high if np.isfinite(paired.high) else None,
            p=paired.p,
            p_corrected=paired.p_corrected,
            mde=paired.mde,
            images=paired.images,
            is_primary=is_primary,
            verdict=verdict,
            coverage=coverage_phrase(run.sizes(self.task).get(variant, {})),
            spread=paired.spread,
            critical=paired.critical,
        )


def differences_of(tasks: Sequence[TaskTests], margin: float | None = None) -> list[tuple[Difference, ...]]:
    """Return the differences of each task; the primary ones of all these tasks are one family."""
    owner = [(task, place) for task in tasks for place in range(len(task.counts))]

    def in_family(number: int, metric: str) -> bool:
        task, place = owner[number]
        return task.is_primary(place, metric)

    paired = iter(paired_differences([pair for task in tasks for pair in task.counts], in_family))
    return [task.differences([next(paired) for _ in task.counts], margin) for task in tasks]


def is_at_chance(run: Run, task: str, variant: str) -> bool:
    """Whether a model cannot be told from chance on the unaltered variant: its interval reaches down to chance."""
    described = object_of(object_of(object_of(run.results.get("variants")).get(task)).get(variant))
    unaltered = described.get("baseline", CLEAN)
    return any(reaches_chance(run, task, unaltered, name) for name in run.tasks[task].get(unaltered, {}))


def reaches_chance(run: Run, task: str, variant: str, metric: str) -> bool:
    """Whether the interval of a metric contains what guessing has, or is below it."""
    chance, estimate = run.chance(task, variant, metric), run.estimate(task, variant, metric)
    return chance is not None and estimate.low is not None and estimate.low <= chance


def _shared_counts(run: Run, reference: Run, task: str, variant: str) -> Pair | None:
    """Return the counts of a model, with the metrics that can be compared, and of the reference; None without any."""
    one, other = (_agreeing_counts(each, task, variant) for each in (run, reference))
    if one is None or other is None:
        return None
    is_altered = run.described[task][variant].is_altered
    metrics = [
        name
        for name in one.metrics
        if name in other.metrics and has_best_value(name, is_altered) and one.has_same_entries(other, name)
    ]
    return (one.only(metrics), other.only(metrics)) if metrics else None


def has_best_value(metric: str, is_altered: bool) -> bool:
    """Whether one value of a metric is best; without altered items in the gallery, false recall is always 0."""
    about = metric_of(metric)
    return (about.better is not None or about.neutral is not None) and (is_altered or metric != "fr1")


def _agreeing_counts(run: Run, task: str, variant: str) -> Counts | None:
    """Return the counts, or None if they belong to other results: a metric of them differs from `results.json`."""
    counts = run.counts.get((task, variant))
    if counts is None:
        return None
    stored = {name: value for name in counts.metrics if (value := run.estimate(task, variant, name).value) is not None}
    return counts.only(stored) if agrees(counts, stored) else None


def agrees(counts: Counts, stored: Mapping[str, float]) -> bool:
    """Whether counts give the values of metrics that `results.json` has."""
    return all(abs(value - counts.value(name)) < _ROUNDING for name, value in stored.items())
