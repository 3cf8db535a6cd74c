"""Evaluate one model: score every task of every benchmark, add baselines and unseen variants, write the results.

Several processes do it together: each embeds and scores its share, and process 0 writes. Images, annotations and models
must be there for each of them; no other file need be shared.
"""

import dataclasses
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Task
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.caption_baselines import TrainingCaptions, baselines_part, captions_of_results
from rococo_jax.evaluation.conditions import FILES, request_of, scoring_of
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.examples import collect_examples
from rococo_jax.evaluation.inputs import canonical_place
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.results import kind_of, make_fingerprint, make_results, pair_table, per_query_table
from rococo_jax.evaluation.resume import make_plan, stored_results, with_request
from rococo_jax.evaluation.sections import (
    NO_TASK,
    Evaluated,
    Key,
    join,
    of_benchmark,
    part_of,
    results_of,
    with_columns_of,
    write_evaluated,
)
from rococo_jax.evaluation.seen_images import refuse_training_images, seen_items
from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
from rococo_jax.progress import report_finished, say
from rococo_jax.storage import hash_json


def fingerprint(model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> dict[str, Any]:
    """Return all conditions that decide the results of an evaluation; what is requested is none of them."""
    described = model.describe()
    described |= {key: hash_json(value) for key, value in described.items() if isinstance(value, dict) and key != FILES}
    if model.training_images is not None:
        # They decide which items are unseen.
        described["training_images"] = hash_json(sorted(model.training_images.keys))
    data = {benchmark.name: benchmark.fingerprint() for benchmark in benchmarks}
    return make_fingerprint(model=described, data=data, protocol=settings.protocol, versions=model.versions)


def evaluate_model(
    model: Model,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None = None,
    examples: bool = False,
    stored_keys: Set[Key] = frozenset(),
) -> Evaluated:
    """Evaluate one model on all tasks of all benchmarks. All processes must call it.

    Args:
        model: of any kind.
        benchmarks: opened with the same settings.
        settings: what is requested.
        cache: where embeddings are kept.
        training: captions for the n-gram baselines.
        examples: also choose errors to show, and make their pictures.
        stored_keys: task, variant and seed of stored results. Tasks of which they have everything are not scored.

    Raises:
        InputError: the model cannot be evaluated with the settings, or an image cannot be read.
    """
    model.check(benchmarks, settings)
    refuse_training_images(model, benchmarks, settings)
    notes, parts = tuple(model.notes), []
    for benchmark in benchmarks:
        # Notes on what the model does with one benchmark are that benchmark's.
        model.notes = [*notes]
        parts += _evaluate(model, benchmark, settings, cache, training, examples, stored_keys)
        report_finished(benchmark.input_count)
    conditions = fingerprint(model, benchmarks, settings)
    for part in parts:
        ((name, about),) = part.results["benchmarks"].items()
        part.results["fingerprint"] = {**conditions, "data": {name: conditions["data"][name]}}
        kinds = [kind_of(part.results, task, name) for task, names in part.results["tasks"].items() for name in names]
        part.results["benchmarks"] = {name: about | {"versions": conditions["versions"], "scoring": scoring_of(kinds)}}
    return join(parts)


def _evaluate(
    model: Model,
    benchmark: Benchmark,
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None,
    examples: bool,
    stored_keys: Set[Key],
) -> list[Evaluated]:
    """Evaluate one model on the tasks of one benchmark, a part each; the results have no fingerprint yet."""
    as_read = model.adapt_benchmark(benchmark)
    reasons = ", ".join(filter(None, (each.chance_reason for each in as_read.excluded)))
    missing = _missing_tasks(as_read, set() if reasons else stored_keys)
    scored = model.outcomes(dataclasses.replace(as_read, tasks=missing), settings, cache)
    items = seen_items(model, as_read, scored)
    shared = {
        "baselines": baselines_part(as_read, training),
        "data": {benchmark.name: dict(benchmark.data)} if benchmark.data else {},
        "about": model.facts(),
    }
    about = {
        "request": request_of(benchmark),
        "tasks": list(dict.fromkeys(task.name for task in as_read.tasks)),
        "notes": list(dict.fromkeys([*as_read.notes, *items.notes, *model.notes])),
    }
    parts = []
    for task in dict.fromkeys(outcome.task for outcome in scored) or [NO_TASK]:
        outcomes = [outcome for outcome in scored if outcome.task == task]
        seen = [rows for outcome, rows in zip(scored, items.rows, strict=False) if outcome.task == task]
        results = make_results(
            model.name,
            settings.protocol,
            {},
            outcomes,
            items.task_notes.get(task, ()),
            {task: reasons},
            benchmark.headline,
            seen,
        )
        if task in items.counts:
            results["training_images"] = {task: items.counts[task]}
        results |= {name: value for name, value in shared.items() if value}
        results["benchmarks"] = {benchmark.name: about | {"task_notes": {task: results["notes"]}}}
        selected = collect_examples(as_read, outcomes) if examples and jax.process_index() == 0 else []
        rows = [row_table(benchmark.name, each, as_read) for each in rows_of_outcomes(outcomes, seen)]
        table = with_columns_of(task, per_query_table(rows))
        parts.append(Evaluated(results, table, selected, pair_table(outcomes, as_read)))
    return parts


def _missing_tasks(benchmark: Benchmark, stored_keys: Set[Key]) -> tuple[Task, ...]:
    """Return the tasks of which a variant or seed is not stored; all if none is missing."""
    missing = {task.name for task in benchmark.tasks if (task.name, task.variation.name, task.seed) not in stored_keys}
    return tuple(task for task in benchmark.tasks if not missing or task.name in missing)


def evaluate_into(
    folder: Path,
    model: Model,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None = None,
) -> tuple[dict[str, Any], bool]:
    """Evaluate as `evaluate_model` and write the results into `folder`; add what is missing to results there.

    The files are those of one evaluation of all that was ever requested. See `evaluation.resume`.

    Returns:
        The results in the folder, and whether anything was computed.

    Raises:
        InputError: `folder` holds results of another model, protocol or data set, or as `evaluate_model`.
    """
    benchmarks = sorted(benchmarks, key=lambda benchmark: canonical_place(benchmark.name))
    refuse_training_images(model, benchmarks, settings)
    expected = run_on_all_processes("fingerprint", lambda: fingerprint(model, benchmarks, settings))
    plan = broadcast_from_process_0(
        "results in the folder", lambda: make_plan(folder, model.name, expected, benchmarks, training)
    )
    first = jax.process_index() == 0
    for line in plan.lines if first else ():
        say(line)
    if not plan.requests:
        return plan.stored, False

    def prepare() -> tuple[list[Benchmark], TrainingCaptions | None]:
        requested = [benchmark for benchmark in benchmarks if benchmark.name in plan.requests]
        with_requests = [with_request(benchmark, plan.requests[benchmark.name], settings) for benchmark in requested]
        return with_requests, training or captions_of_results(plan.stored or {})

    requested_benchmarks, captions = run_on_all_processes("benchmarks", prepare)
    before = cache.computed, cache.unidentified, cache.read
    evaluated = evaluate_model(
        model, requested_benchmarks, settings, cache, captions, examples=True, stored_keys=plan.keys
    )
    if first:
        after = cache.computed, cache.unidentified, cache.read
        if counts := _embedding_counts(*np.subtract(after, before).tolist()):
            say(f"{model.name}: {counts}")

    def write() -> dict[str, Any]:
        return write_evaluated(folder, _with_stored(evaluated, stored_results(folder, plan), plan.kept))

    return broadcast_from_process_0("results", write), True


def _embedding_counts(computed: int, unidentified: int, read: int) -> str:
    """Describe how many items were embedded, not cached and read; return an empty text if there were none."""
    if not computed and not read:
        return ""
    if unidentified:
        hint = "add a method fingerprint() to the model, and the next evaluation reads them from the cache"
        count = "" if unidentified == computed else f"{unidentified:,} of them "
        return f"{computed:,} images and texts embedded, {count}not cached (no fingerprint): {hint}"
    return f"{computed:,} images and texts embedded, {read:,} read from the cache"


def _with_stored(evaluated: Evaluated, stored: Evaluated | None, kept: Sequence[str]) -> Evaluated:
    """Join new results with those of the tasks that are kept."""
    if stored is None:
        return evaluated
    new = evaluated.results["benchmarks"]
    benchmarks = {**{name: stored.results["benchmarks"][name] for name in kept}, **new}
    parts = []
    for name in sorted(benchmarks, key=canonical_place):
        for task in benchmarks[name]["tasks"] or [NO_TASK]:
            is_new = task in evaluated.results["kinds"] or (task == NO_TASK and name in new)
            part = part_of(evaluated if is_new else stored, name, task)
            if name in new and not is_new:
                newer = results_of(evaluated.results, name, [task])
                part = part._replace(results=of_benchmark(part.results, newer))
            parts.append(part)
    joined = join(parts)
    joined.results.update({name: evaluated.results[name] for name in ("model", "about") if name in evaluated.results})
    return joined
