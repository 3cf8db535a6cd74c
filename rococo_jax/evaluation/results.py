"""`results.json` and its tables of queries and pairs: written from the outcomes of tasks, and read back with checks.

    {"format": "rococo_jax.results", "version": 2, "model": name, "protocol": ..., "fingerprint": {...},
     "kinds": {TASK: KIND, or "mixed" if its variants have several},
     "variants": {TASK: {VARIANT: {FIELD: ..., "kind": KIND, "baseline": VARIANT, "pooling": ...,
                                   "of": [VARIANT, ...]}}},
     "tasks": {TASK: {VARIANT: {METRIC: number or null}}},
     "intervals": {TASK: {VARIANT: {METRIC: [low, high] or null}}},
     "sizes": {TASK: {VARIANT: {...}}},
     "headlines": {TASK: {"variant": ..., "metric": ..., "pooling": "items" or "parts", "source": ...}},
     "chance": {TASK: {VARIANT: {METRIC: expected value of guessing}}} if it is known,
     "data": {BENCHMARK: {...}}, "bootstrap": {...}, "notes": [...],
     "curves": {TASK: {VARIANT: data of charts}} if the kind of task has charts,
     "benchmarks": {BENCHMARK: {"request": {OPTION: ...}, "tasks": [...], "notes": [...],
                                "task_notes": {TASK: [...]}, "versions": {...}, "scoring": {KIND: number}}},
     "tables": {FILE: hash of a table beside it},
     "sha256": hash of all the rest}

Metrics are percentages from 0 to 100 unless their unit says otherwise. `drop` is null if the clean value is 0. If
a variant was run with several seeds, a metric is the mean over them, `METRIC_std` is their sample standard deviation,
and `sizes` contains the seeds.

Pooled variants have no standard deviation. `corruptions_3` is the mean over kinds of corruption, `mean` the mean over
parts, and `all` has equal weight for each item of all parts. Sizes of the last two are those of all parts together,
with their number (`parts`) and the number of parts of the benchmark (`of_parts`, if it declares them). `headlines`
contains the number that models are ranked by on a task, and its source.

Metrics that are not sums over images use fewer draws: `bootstrap: resamples_of` has their number, by task, variant and
metric. `per_query.parquet` has one row for each query or item, and seed; `pairs.parquet` one row for each pair of an
original and its altered version, each matching query, and seed (columns: `benchmarks.tasks.pairs`).

`benchmarks` contains the request of each benchmark (`Benchmark.requested`), so that a later evaluation can add to it
(`evaluation.resume`), its tasks and notes, the notes that are on a single task by task, the versions that computed it,
and the version of the scoring of each kind of task (`evaluation.conditions`).
"""

import json
import math
import os
import platform
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from rococo_jax.benchmarks.pooling import Headline, taken_names
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import Tables
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.errors import InputError, is_number, object_of
from rococo_jax.evaluation.counts import describe_variants, group_rows, rows_of_outcomes, with_bindings, with_unseen
from rococo_jax.evaluation.variant_results import chance_notes, grounding_notes, headlines_of, results_of_groups
from rococo_jax.metrics import METRICS, Metric, describe, metric_of
from rococo_jax.metrics.intervals import LEVEL, RESAMPLES, SEED
from rococo_jax.runtime import numeric_flags
from rococo_jax.storage import atomic_write, hash_json, read_json
from rococo_jax.version import __version__

FORMAT, VERSION = "rococo_jax.results", 2
# Kind of a task whose variants have several kinds: some choose texts, others images, ...
MIXED = "mixed"
_ROWS_AT_ONCE = 2**19
# Bytes; the names of a million images are still written once in each group of rows.
_LARGEST_DICTIONARY = 2**26
RESULTS, PER_QUERY, PAIRS = "results.json", "per_query.parquet", "pairs.parquet"
# Part of the results: hashes of the files beside them.
TABLES = "tables"
_TOLERANCE = 1e-4
# Description in the results of each metric of another package.
_PARTS = {"label": str, "better": str | None, "unit": str, "definition": str}


def make_fingerprint(
    *, model: Mapping[str, Any], data: Mapping[str, Any], protocol: str, versions: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that a result depends on. Results with equal `comparable` differ only in the model.

    The request is not part of it, so `comparable` does not depend on how many tasks, seeds, sets of templates,
    corruptions or sets of out-of-distribution images were requested. Neither are versions, which are recorded only:
    what decides whether two results share a table is in `evaluation.conditions`.

    Args:
        model: hashes of weights, preprocessing and tokenizer, or of stored embeddings or similarities.
        data: for each benchmark the hashes of its annotations, and of its images if they were read.
        protocol: `paper` or `strict`.
        versions: versions of the programs that computed the model's numbers, with device and processor; those of this
            process by default.
    """
    conditions = {"data": dict(data), "protocol": protocol, **({"flags": flags} if (flags := numeric_flags()) else {})}
    recorded = {"versions": dict(versions or _process_versions()), "comparable": comparable_hash(conditions)}
    return {"model": dict(model), **conditions, **recorded}


def _process_versions() -> dict[str, str]:
    versions = {"rococo_jax": __version__, "jax": jax.__version__, "numpy": np.__version__}
    return versions | {"device": jax.devices()[0].device_kind, "processor": platform.machine()}


def comparable_hash(conditions: Mapping[str, Any]) -> str:
    """Return the hash of the conditions in which two models may not differ to be compared."""
    return hash_json({name: conditions[name] for name in ("data", "protocol", "flags") if name in conditions})


def make_results(
    model: str,
    protocol: str,
    fingerprint: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    notes: Iterable[str] = (),
    chance_reason: Mapping[str, str] = types.MappingProxyType({}),
    headline: Headline | None = None,
    seen: Sequence[Bool[np.ndarray, " _"] | None] = (),
) -> dict[str, Any]:
    """Return the contents of `results.json`, computed from the rows of outcomes.

    Args:
        chance_reason: for each task the reason why no model can be better than chance; empty if one could be.
        headline: headline of the benchmark.
        seen: for each outcome the rows on images that the model was trained on; empty if that is not known.
    """
    rows = with_unseen(with_bindings(rows_of_outcomes(outcomes, seen)))
    kinds: dict[str, str] = {}
    for each in outcomes:
        kinds[each.task] = each.kind if kinds.get(each.task, each.kind) == each.kind else MIXED
    groups = group_rows(rows)
    results = results_of_groups(groups)

    def by_task(part: str) -> dict[str, dict[str, Any]]:
        nested: dict[str, dict[str, Any]] = {}
        for (task, variant), result in results.items():
            if (value := getattr(result, part)) is not None:
                nested.setdefault(task, {})[variant] = value
        return nested

    metrics = [each for outcome in outcomes for each in outcome.counted.metrics.values()]
    unknown_metrics = {each.name: each for each in metrics if each.name not in METRICS}
    describe(unknown_metrics.values())
    all_notes = list(notes)
    for task, variant in taken_names(rows):
        all_notes.append(f"{task}: no variant over all parts is called {variant!r}, which is the name of a part")
    for (task, variant), result in results.items():
        outcome = groups[task, variant][1][0].outcome
        assert outcome is not None
        why = outcome.chance_reason or chance_reason.get(task)
        all_notes += [*outcome.notes, *chance_notes(outcome, variant, result, why)]
    all_notes += grounding_notes(results)
    bootstrap = {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED, "resampled": "images"}
    fewer, curves, chance = by_task("resamples"), by_task("curves"), by_task("chance")
    headlines = headlines_of(headline, groups, results)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": model,
        "protocol": protocol,
        "fingerprint": dict(fingerprint),
        "kinds": kinds,
        "variants": describe_variants({name: groups[name] for name in results}),
        **{part: by_task(part) for part in ("tasks", "intervals", "sizes")},
        **({"headlines": headlines} if headlines else {}),
        **({"chance": chance} if chance else {}),
        "bootstrap": bootstrap | ({"resamples_of": fewer} if fewer else {}),
        "notes": list(dict.fromkeys(all_notes)),
        **({"curves": curves} if curves else {}),
        **({"metrics": {name: _described(each) for name, each in unknown_metrics.items()}} if unknown_metrics else {}),
    }


def _described(metric: Metric) -> dict[str, Any]:
    """Return the description of a metric that this package does not define."""
    return {part: getattr(metric, part) for part in _PARTS}


def per_query_table(tables: Iterable[Any]):
    """Return a `pyarrow.Table` of the rows of all outcomes; missing columns of a kind of task are null.

    A column that is dictionary-coded in one table becomes so in all; files have plain strings.
    """
    import pyarrow as pa

    tables = list(tables) or [pa.schema([("task", pa.string())]).empty_table()]
    coded = {field.name: field.type for table in tables for field in table.schema if pa.types.is_dictionary(field.type)}
    for number, table in enumerate(tables):
        kinds = [(field.name, coded.get(field.name, field.type)) for field in table.schema]
        tables[number] = table.cast(pa.schema(kinds))
    return pa.concat_tables(tables, promote_options="default")


def pair_table(outcomes: Iterable[Outcome], tables: Tables):
    """Return a `pyarrow.Table` of the pairs of all outcomes, empty if no task has pairs."""
    import pyarrow as pa

    types = {"task": pa.string(), "variant": pa.string(), "seed": pa.int64()}
    types |= dict.fromkeys(("image", "query", "right", "wrong"), pa.string())
    types |= dict.fromkeys(("difference", "preference", "blind", "grounding", "rank"), pa.float64())
    types |= {"wrong_queries": pa.int64()}
    parts = [pa.schema(types.items()).empty_table()]
    for each in outcomes:
        columns = each.pair_rows(tables)
        if columns is not None:
            count = len(columns["image"])
            named = {"task": [each.task] * count, "variant": [each.variant] * count, "seed": [each.seed] * count}
            parts.append(pa.table({**named, **columns}, schema=pa.schema(types.items())))
    return pa.concat_tables(parts)


def write_per_query(path: str | os.PathLike, table) -> None:
    """Write a table as Parquet, by rename; dictionary-encoded columns are decoded in chunks of rows.

    Equal tables give equal bytes, even if they consist of different chunks.
    """
    import pyarrow as pa
    import pyarrow.parquet

    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
    schema = pa.schema(zip(table.column_names, kinds, strict=True), metadata=table.schema.metadata)
    with (
        atomic_write(path) as temporary,
        pyarrow.parquet.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            use_dictionary=[field.name for field in schema if not pa.types.is_floating(field.type)],
            use_byte_stream_split=[field.name for field in schema if pa.types.is_floating(field.type)],
            dictionary_pagesize_limit=_LARGEST_DICTIONARY,
            write_page_checksum=True,
        ) as file,
    ):
        for start in range(0, len(table), _ROWS_AT_ONCE) or [0]:
            file.write_table(table.slice(start, _ROWS_AT_ONCE).cast(schema).combine_chunks())


def described_variants(results: Mapping[str, Any], task: str) -> dict[str, Variant]:
    """Return the fields of each variant of a task; a variant that results do not describe is an alteration."""
    described = object_of(object_of(results.get("variants")).get(task))
    return {
        name: Variant.of(object_of(described[name])) if name in described else Variant(alteration=name)
        for name in results["tasks"][task]
    }


def kind_of(results: Mapping[str, Any], task: str, variant: str) -> str:
    """Return the kind of a variant: its own, or that of its task; empty if the results do not name it."""
    described = object_of(object_of(object_of(results.get("variants")).get(task)).get(variant))
    return str(described.get("kind") or object_of(results.get("kinds")).get(task, ""))


def with_checksum(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of `results.json` with the hash of all other entries as the last one."""
    return {**results, "sha256": results_hash(results)}


def results_hash(results: Mapping[str, Any]) -> str:
    """Return the hash of all entries but `sha256`, of their values as they are read back from the file."""
    rest = {key: value for key, value in results.items() if key != "sha256"}
    return hash_json(json.loads(json.dumps(rest)))


def read_results(path: str | os.PathLike) -> dict[str, Any]:
    """Read a `results.json` of this version.

    Metrics and kinds of tasks that this version does not know are kept.

    Raises:
        InputError: the file is of another version, a part is missing or of another shape, a known metric is out of its
            range, or the file is not as it was written.
    """
    path, expected = Path(path), "a results file of `rococo evaluate` or `rococo score`"
    results = read_json(path, expected)
    if not isinstance(results, dict):
        raise InputError(path, "file", f"a JSON {type(results).__name__}", expected)
    _check_format(path, results)
    for part, kind in (("model", str), ("protocol", str), ("fingerprint", dict), ("tasks", dict), ("intervals", dict)):
        if not isinstance(results.get(part), kind):
            problem = f"a JSON {type(results[part]).__name__}" if part in results else "nothing"
            raise InputError(path, f"'{part}'", problem, {str: "a string", dict: "an object"}[kind])
    for task, variants in results["tasks"].items():
        for variant, metrics in _object(path, f"tasks: {task}", variants).items():
            _check_metrics(path, f"tasks: {task}: {variant}", _object(path, f"tasks: {task}: {variant}", metrics))
    for task, variants in results["intervals"].items():
        for variant, metrics in _object(path, f"intervals: {task}", variants).items():
            field = f"intervals: {task}: {variant}"
            for name, interval in _object(path, field, metrics).items():
                pair = isinstance(interval, list) and len(interval) == 2 and all(map(is_number, interval))
                if interval is not None and not pair:
                    raise InputError(path, f"{field}: {name}", str(interval)[:80], "[low, high] or null")
    for task, about in _object(path, "headlines", results.get("headlines", {})).items():
        about = _object(path, f"headlines: {task}", about)
        for field in ("variant", "metric", "pooling", "source"):
            if not isinstance(about.get(field), str):
                problem = repr(about[field])[:80] if field in about else "nothing"
                raise InputError(path, f"headlines: {task}: {field}", problem, "a string")
    for name, description in _object(path, "metrics", results.get("metrics", {})).items():
        parts = {part: _object(path, f"metrics: {name}", description).get(part) for part in _PARTS}
        for part, kind in _PARTS.items():
            if not isinstance(parts[part], kind):
                raise InputError(path, f"metrics: {name}: {part}", repr(parts[part])[:80], "a string")
        describe([Metric(name, **parts, origin=None)])
    # Files that other programs write have no hash.
    if "sha256" in results and results["sha256"] != results_hash(results):
        raise InputError(path, "sha256", "values changed after they were written", "the file as it was written")
    return results


def _check_format(path: Path, results: dict[str, Any]) -> None:
    if results.get("format") != FORMAT:
        raise InputError(path, "format", repr(results["format"]) if "format" in results else "nothing", FORMAT)
    version = results.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise InputError(path, "version", repr(version), f"{VERSION}, which this release reads")
    for part in ("kinds", "data"):
        _object(path, part, results.get(part, {}))


def _object(path: Path, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(path, field, f"a JSON {type(value).__name__}", "an object")
    return value


def _check_metrics(path: Path, field: str, metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if name not in METRICS or (value is None and METRICS[name].function is None):
            continue  # a drop is null where the baseline is 0
        low, high = metric_of(name).bounds
        if not is_number(value) or not low - _TOLERANCE <= value <= high + _TOLERANCE:
            expected = f"a number from {low:g} to {high:g}" if math.isfinite(low) else "a number"
            raise InputError(path, f"{field}: {name}", value, expected)
