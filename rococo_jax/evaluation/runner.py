"""Evaluate one model: score every task of every benchmark, add baselines and unseen variants, write the results.

Several processes do it together: each embeds and scores its share, and process 0 writes. Images, annotations and models
must be there for each of them; no other file need be shared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.caption_baselines import TrainingCaptions, baselines_part, captions_of_results
from rococo_jax.evaluation.conditions import FILES, request_of, scoring_of
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.examples import collect_examples
from rococo_jax.evaluation.inputs import canonical_place
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.results import kind_of, make_fingerprint, make_results, pair_table, per_query_table
from rococo_jax.evaluation.resume import make_plan, stored_results, with_request
from rococo_jax.evaluation.sections import Evaluated, join, part_of, with_columns_of, write_evaluated
from rococo_jax.evaluation.seen_images import refuse_training_images, seen_items
from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
from rococo_jax.progress import say
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
) -> Evaluated:
    """Evaluate one model on all tasks of all benchmarks. All processes must call it.

    Args:
        model: of any kind.
        benchmarks: opened with the same settings.
        settings: what is requested.
        cache: where embeddings are kept.
        training: captions for the n-gram baselines.
        examples: also choose errors to show, and make their pictures.

    Raises:
        InputError: the model cannot be evaluated with the settings, or an image cannot be read.
    """
    model.check(benchmarks, settings)
    refuse_training_images(model, benchmarks, settings)
    notes, parts = tuple(model.notes), []
    for benchmark in benchmarks:
        # Notes on what the model does with one benchmark are that benchmark's.
        model.notes = [*notes]
        parts.append(_evaluate(model, benchmark, settings, cache, training, examples))
    conditions = fingerprint(model, benchmarks, settings)
    for benchmark, part in zip(benchmarks, parts, strict=True):
        data = {benchmark.name: conditions["data"][benchmark.name]}
        part.results["fingerprint"] = {**conditions, "data": data}
        kinds = [kind_of(part.results, task, name) for task, names in part.results["tasks"].items() for name in names]
        part.results["benchmarks"][benchmark.name] |= {
            "versions": conditions["versions"],
            "scoring": scoring_of(kinds),
        }
    return join(parts)


def _evaluate(
    model: Model,
    benchmark: Benchmark,
    settings: Settings,
    cache: EmbeddingCache,
    training: TrainingCaptions | None,
    examples: bool,
) -> Evaluated:
    """Evaluate one model on one benchmark; the result has no fingerprint yet."""
    as_read = model.adapt_benchmark(benchmark)
    scored = model.outcomes(as_read, settings, cache)
    items = seen_items(model, as_read, scored)
    reasons = ", ".join(filter(None, (each.chance_reason for each in as_read.excluded)))
    results = make_results(
        model.name,
        settings.protocol,
        {},
        scored,
        dict.fromkeys([*as_read.notes, *items.notes, *model.notes]),
        dict.fromkeys((outcome.task for outcome in scored), reasons),
        benchmark.headline,
        items.rows,
    )
    results["baselines"] = baselines_part(as_read, training)
    if items.counts:
        results["training_images"] = dict(items.counts)
    data = {benchmark.name: dict(benchmark.data)} if benchmark.data else {}
    results |= {name: value for name, value in (("data", data), ("about", model.facts())) if value}
    about = {"request": request_of(benchmark), "tasks": list(results["kinds"]), "notes": results["notes"]}
    results["benchmarks"] = {benchmark.name: about}
    selected = collect_examples(as_read, scored) if examples and jax.process_index() == 0 else []
    rows = [row_table(benchmark.name, each, as_read) for each in rows_of_outcomes(scored, items.rows)]
    table = with_columns_of(benchmark.name, per_query_table(rows))
    return Evaluated(results, table, selected, pair_table(scored, as_read))


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
        opened = [with_request(benchmark, plan.requests[benchmark.name], settings) for benchmark in requested]
        return opened, training or captions_of_results(plan.stored or {})

    opened, captions = run_on_all_processes("benchmarks", prepare)
    before = cache.computed, cache.unidentified, cache.read
    evaluated = evaluate_model(model, opened, settings, cache, captions, examples=True)
    if first:
        after = cache.computed, cache.unidentified, cache.read
        if counts := _embedding_counts(*np.subtract(after, before).tolist()):
            say(f"{model.name}: {counts}")

    def write() -> dict[str, Any]:
        return write_evaluated(folder, _with_stored(evaluated, stored_results(folder, plan), plan.unchanged))

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


def _with_stored(evaluated: Evaluated, stored: Evaluated | None, unchanged: Sequence[str]) -> Evaluated:
    """Join new results with those of the benchmarks that are kept."""
    if stored is None:
        return evaluated
    sources = {**dict.fromkeys(unchanged, stored), **dict.fromkeys(evaluated.results["benchmarks"], evaluated)}
    joined = join([part_of(sources[name], name) for name in sorted(sources, key=canonical_place)])
    of_model = {name: evaluated.results[name] for name in ("model", "about") if name in evaluated.results}
    joined.results.update(of_model)
    return joined
