"""Evaluate one model: score every task of every benchmark, add what companions say, write the results.

Several processes do it together: each embeds and scores its share, and process 0 writes. Images, annotations and models
must be there for each of them; no other file need be shared.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.companions import Companion, Scored
from rococo_jax.evaluation.examples import Example, collect_examples, write_examples
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.per_image import PER_IMAGE, per_image_table
from rococo_jax.evaluation.results import (
    PAIRS,
    PER_QUERY,
    RESULTS,
    is_whole_per_query,
    make_fingerprint,
    make_results,
    pair_table,
    per_query_table,
    read_results,
    with_checksum,
    with_columns,
    write_per_query,
)
from rococo_jax.processes import broadcast_from_process_0, run_on_all_processes
from rococo_jax.progress import say
from rococo_jax.storage import hash_json, write_json


class Evaluated(NamedTuple):
    """The contents of the files of one model's evaluation."""

    results: dict[str, Any]
    per_query: Any
    examples: list[Example]
    pairs: Any
    per_image: Any


def fingerprint(model: Model, benchmarks: Sequence[Benchmark], settings: Settings) -> dict[str, Any]:
    """All that decides an evaluation's results."""
    described = model.describe()
    described = {key: hash_json(value) if isinstance(value, dict) else value for key, value in described.items()}
    data = {benchmark.name: benchmark.fingerprint() for benchmark in benchmarks}
    return make_fingerprint(model=described, data=data, protocol=settings.protocol, versions=model.versions)


def evaluate_model(
    model: Model,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    companions: Sequence[Companion] = (),
    examples: bool = False,
) -> Evaluated:
    """One model on all tasks of all benchmarks. All processes must call it.

    Args:
        model: of any kind.
        benchmarks: opened with the same settings.
        settings: what is asked.
        cache: where embeddings are kept.
        companions: what stands beside the outcomes.
        examples: also choose errors to show, and make their pictures.

    Raises:
        InputError: the model or a companion refuses the settings, or an image cannot be read.
    """
    model.check(benchmarks, settings)
    for companion in companions:
        companion.check(model, benchmarks, settings)
    outcomes, tables, pairs, per_image, shown, why_chance = [], [], [], [], [], {}
    as_read = [model.as_read(benchmark) for benchmark in benchmarks]
    notes = [note for benchmark in as_read for note in benchmark.notes]
    parts: list[list[Mapping[str, Any]]] = [[] for _ in companions]
    for benchmark in as_read:
        scored = model.outcomes(benchmark, settings, cache)
        reasons = ", ".join(filter(None, (each.why_chance for each in benchmark.lost)))
        why_chance |= dict.fromkeys((outcome.task for outcome in scored), reasons)
        rows = [outcome.rows(benchmark) for outcome in scored]
        outcomes += scored
        pairs.append(pair_table(scored, benchmark))
        per_image.append(per_image_table(scored, rows, benchmark))
        for companion, of_companion in zip(companions, parts, strict=True):
            beside = companion.beside(Scored(model, benchmark, scored, settings, cache))
            outcomes += beside.outcomes
            notes += beside.notes
            rows = with_columns(rows, beside.columns)
            of_companion.append(beside.part)
        tables += rows
        if examples and jax.process_index() == 0:
            shown += collect_examples(benchmark, scored)
    results = make_results(
        model.name,
        settings.protocol,
        fingerprint(model, benchmarks, settings),
        outcomes,
        dict.fromkeys([*notes, *model.notes]),
        why_chance,
    )
    for part in (part for of_companion in parts for part in of_companion):
        results = _merged(results, part)
    data = {benchmark.name: dict(benchmark.data) for benchmark in benchmarks if benchmark.data}
    beside_results = {"data": data, "about": model.facts()}
    results |= {name: value for name, value in beside_results.items() if value}
    return Evaluated(results, per_query_table(tables), shown, per_query_table(pairs), per_query_table(per_image))


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one, nested objects too; elsewhere the other's value."""
    merged = dict(one)
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def evaluate_into(
    folder: Path,
    model: Model,
    benchmarks: Sequence[Benchmark],
    settings: Settings,
    cache: EmbeddingCache,
    companions: Sequence[Companion] = (),
) -> tuple[dict[str, Any], bool]:
    """As `evaluate_model`, with the results written into `folder`. Results that are there already are returned.

    Returns:
        The results, and whether they were made now.

    Raises:
        InputError: `folder` holds the results of another model, protocol or data set.
    """
    expected = run_on_all_processes("fingerprint", lambda: fingerprint(model, benchmarks, settings))
    done = broadcast_from_process_0(
        "results that are there", lambda: _results_in(folder, model.name, expected, companions)
    )
    if done is not None:
        return done, False
    before = cache.computed, cache.read
    evaluated = evaluate_model(model, benchmarks, settings, cache, companions, examples=True)
    if jax.process_index() == 0:
        computed, read = cache.computed - before[0], cache.read - before[1]
        say(f"{model.name}: {computed:,} images and texts embedded, {read:,} read from the cache")
    results = with_checksum(evaluated.results)

    def write() -> None:
        write_per_query(folder / PER_QUERY, evaluated.per_query)
        write_per_query(folder / PAIRS, evaluated.pairs)
        write_per_query(folder / PER_IMAGE, evaluated.per_image)
        write_examples(folder, evaluated.examples)
        # Last: results.json tells that the rest is there.
        write_json(folder / RESULTS, results)

    broadcast_from_process_0("results", write)
    return results, True


def _results_in(
    folder: Path, name: str, expected: dict[str, Any], companions: Sequence[Companion]
) -> dict[str, Any] | None:
    """Finished results of the same model, data and protocol; None where they must be made, from cached embeddings."""
    path = folder / RESULTS
    if not path.exists():
        return None
    results = read_results(path)
    existing = results["fingerprint"]
    complete = all(is_whole_per_query(folder / name) for name in (PER_QUERY, PAIRS, PER_IMAGE))
    if existing == expected and complete and all(companion.is_in(results) for companion in companions):
        # An encoder without a fingerprint may have changed since.
        return None if "fingerprint" in expected["model"] and expected["model"]["fingerprint"] is None else results
    different = [key for key in expected if existing.get(key) != expected[key]]
    if different == ["versions", "comparable"] or not different:
        return None
    what = f"results of {results['model']!r} that differ in {', '.join(k for k in different if k != 'comparable')}"
    raise InputError(path, "fingerprint", what, f"results of {name!r} as asked for, or another output folder")
