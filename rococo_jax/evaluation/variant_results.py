"""Variant results of a task: metrics, intervals and sizes over its seeds, kinds, parts or items."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.benchmarks.pooling import OURS, Headline, Pool
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.evaluation.counts import CountedRows, Groups, counts_of
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.grounding import PAIRS
from rococo_jax.metrics.intervals import Interval


@dataclasses.dataclass(frozen=True)
class VariantResult:
    """Entries of one variant of a task in `results.json`, by section; None for a section without an entry."""

    tasks: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    sizes: Mapping[str, Any]
    curves: Mapping[str, Any] | None
    resamples: Mapping[str, int] | None
    chance: Mapping[str, float] | None
    why_no_grounding: str | None


def headlines_of(
    headline: Headline | None, groups: Groups, results: Mapping[tuple[str, str], VariantResult]
) -> dict[str, dict[str, str]]:
    """Return the headline of each task, as `results.json` has it.

    Without the declared variant, such as of one part alone, it is that of the first variant; without the declared
    metric it is the first one; a task with neither has none. If parts have several kinds, it is that of the first kind.
    """
    headlines: dict[str, dict[str, str]] = {}
    for task in dict.fromkeys(task for task, _ in results) if headline is not None else ():
        variants = [variant for of_task, variant in results if of_task == task]
        names = {variant: _name_without_kind(*groups[task, variant], variant) for variant in variants}
        declared = next((each for name in headline.variants for each in variants if names[each] == name), None)
        variant = declared or variants[0]
        pool, rows = groups[task, variant]
        counted, source = rows[0].counted, headline.source
        metric = headline.metric or counted.primary
        if metric not in results[task, variant].tasks and declared:
            source = f"{OURS}: {metric} was not measured"
            metric = counted.primary
        if results[task, variant].tasks.get(metric) is not None:
            pooling = "parts" if pool is not None and pool.pooling == "parts" else "items"
            headlines[task] = {"variant": variant, "metric": metric, "pooling": pooling, "source": source}
    return headlines


def _name_without_kind(pool: Pool | None, rows: Sequence[CountedRows], variant: str) -> str:
    return variant if pool is None else variant.removeprefix(f"{rows[0].kind}/")


def results_of_groups(groups: Groups) -> dict[tuple[str, str], VariantResult]:
    """Return the results of each variant; parts of different kinds may have no metric in common, and then none."""
    unaltered = {name: rows[0] for name, (pool, rows) in groups.items() if pool is None and rows[0].seed is None}
    results = {
        (task, variant): variant_result(variant, rows, pool, unaltered.get((task, rows[0].baseline)))
        for (task, variant), (pool, rows) in groups.items()
    }
    return {name: result for name, result in results.items() if result.tasks}


def variant_result(
    variant: str, rows: Sequence[CountedRows], pool: Pool | None, baseline: CountedRows | None
) -> VariantResult:
    """Return the results of one variant: means over its seeds, kinds or parts, or numbers over all of their items."""
    first, counts = rows[0], counts_of(rows, pool)
    if variant == first.baseline or (pool is not None and pool.pooling == "items"):
        baseline = None
    metrics = counts.values(baseline and baseline.counted, over_seeds=pool is None)
    bounds, resamples = counts.intervals(baseline and baseline.counted), counts.resamples
    curves = first.outcome.curves(first.columns) if first.outcome and pool is None and len(rows) == 1 else None
    chance = chance_of(rows, pool, metrics)
    sizes = sizes_of(rows, pool)
    return VariantResult(metrics, bounds, sizes, curves or None, resamples, chance or None, why_no_grounding(rows))


def why_no_grounding(rows: Sequence[CountedRows]) -> str | None:
    """Return why rows that could have pairs have no grounding metrics; None if they have them, or could not."""
    left_out = (each.outcome.left_out for each in rows if each.outcome is not None)
    if why := next(filter(None, left_out), None):
        return why
    has_pairs = ["grounding" in each.counted.metrics for each in rows]
    if all(has_pairs):
        return None
    if any(has_pairs):
        return "only some of its parts have pairs with unrelated images or captions"
    return "no image or caption is unrelated to a pair" if PAIRS in rows[0].columns else None


def chance_of(rows: Sequence[CountedRows], pool: Pool | None, metrics: Collection[str]) -> dict[str, float]:
    """Return what guessing is expected to have in each metric, where that is known of all rows."""
    levels = [each.outcome.chance for each in rows if each.outcome is not None]
    if len(levels) < len(rows):
        return {}
    weights = [len(each.unit) if pool is not None and pool.pooling == "items" else 1 for each in rows]
    return {
        name: float(np.average([each[name] for each in levels], weights=weights))
        for name in metrics
        if all(name in each for each in levels)
    }


def sizes_of(rows: Sequence[CountedRows], pool: Pool | None) -> dict[str, Any]:
    """Return the sizes of a variant: its seeds, and of several parts the sums, but each image once."""
    first = rows[0]
    sizes: dict[str, Any] = dict(first.sizes)
    if first.seed is not None:
        sizes["seeds"] = [each.seed for each in rows]
    if pool is None or pool.pooling == "kinds":
        return sizes
    sizes = {name: sum(each.sizes.get(name, 0) for each in rows) for name in first.sizes}
    if "images" in sizes:
        sizes["images"] = len(np.unique(np.concatenate([each.image for each in rows])))
    sizes["parts"] = len(rows)
    return sizes if pool.of_parts is None else sizes | {"of_parts": pool.of_parts}


def grounding_notes(results: Mapping[tuple[str, str], VariantResult]) -> list[str]:
    """Note which tasks and variants have no grounding metrics, once for each task and reason."""
    variants_of: dict[tuple[str, str], list[str]] = {}
    for (task, variant), result in results.items():
        if result.why_no_grounding is not None:
            variants_of.setdefault((task, result.why_no_grounding), []).append(variant)
    notes = []
    for (task, why), variants in variants_of.items():
        is_whole_task = len(variants) > 1 and len(variants) == sum(other == task for other, _ in results)
        subjects = [task] if is_whole_task else [task, *variants]
        notes.append(f"{', '.join(subjects)}: no preference, blind and grounding, because {why}")
    return notes


def chance_notes(outcome: Outcome, variant: str, result: VariantResult, why: str | None) -> list[str]:
    """Note an unaltered variant that cannot be told from chance: its interval reaches down to it."""
    why = why or (
        "possible reasons are too few images, an untrained model, or weights, images or tokens that are not read as in "
        "its training"
    )
    headlines = []
    for name, level in outcome.chance.items() if variant == CLEAN else ():
        interval, value = result.intervals.get(name), result.tasks.get(name)
        if interval and value is not None and interval[0] <= level:
            headlines.append(f"{metric_of(name).label} {value:.1f} cannot be told from chance ({level:.3g})")
    return [f"{outcome.task}: {', '.join(headlines)}: {why}; its drops are not meaningful"] if headlines else []
