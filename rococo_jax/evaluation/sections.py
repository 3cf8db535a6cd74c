"""The contents of a results folder, joined from those of single tasks and divided into them again.

The results of a task do not depend on the other tasks of an evaluation. So the results of several are joined from those
of each, and a later evaluation can keep some of them and replace or add others: the joined files are the same bytes as
those of one evaluation of all.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.errors import InputError
from rococo_jax.evaluation.examples import EXAMPLES, Example, read_examples, write_examples
from rococo_jax.evaluation.results import (
    PAIRS,
    PER_QUERY,
    RESULTS,
    TABLES,
    comparable_hash,
    per_query_table,
    with_checksum,
    write_per_query,
)
from rococo_jax.evaluation.table_metadata import numbers_hash, numbers_of, written_with
from rococo_jax.storage import hash_file, read_table, write_json

# Parts of results.json that have an entry for each task and variant, for each task, and for each benchmark.
BY_VARIANT = (
    *(("variants",), ("tasks",), ("intervals",), ("sizes",), ("chance",), ("bootstrap", "resamples_of"), ("curves",)),
)
BY_TASK = (*BY_VARIANT, ("kinds",), ("headlines",), ("baselines", "tasks"), ("training_images",))
BY_BENCHMARK = (("fingerprint", "data"), ("data",), ("benchmarks",))
# Parts that are absent where they would be empty.
_OPTIONAL = (
    ("headlines",),
    ("chance",),
    ("bootstrap", "resamples_of"),
    ("curves",),
    ("metrics",),
    ("training_images",),
    ("data",),
)
# Parts that describe files, and not the evaluation.
_OF_FILES = (TABLES, "sha256")
# Key of the metadata of per_query.parquet: the columns of each task, in order.
_COLUMNS = b"rococo_jax.columns"


# Name of the part of a benchmark of which nothing can be scored with a model.
NO_TASK = ""
# Task, variant and seed.
Key = tuple[str, str, int | None]


class Evaluated(NamedTuple):
    """The contents of the files of one model's evaluation."""

    results: dict[str, Any]
    per_query: Any
    examples: list[Example]
    pairs: Any


def with_columns_of(task: str, table: Any) -> Any:
    """Return the rows of one task for `per_query.parquet`, with the names of its columns in their metadata."""
    return _with_columns(table, {task: table.column_names})


def join(parts: Sequence[Evaluated]) -> Evaluated:
    """Join the results of tasks, one part each."""
    columns = {name: names for part in parts for name, names in _columns_of(part.per_query).items()}
    return Evaluated(
        join_results([part.results for part in parts]),
        _with_columns(per_query_table([part.per_query for part in parts]), columns),
        [example for part in parts for example in part.examples],
        per_query_table([part.pairs for part in parts]),
    )


def join_results(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the contents of `results.json` of tasks, one part each, without hashes of files."""
    joined: dict[str, Any] = {}
    of_benchmarks: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        joined = merge(joined, part)
        for name, about in part["benchmarks"].items():
            of_benchmarks.setdefault(name, []).append(about)
    benchmarks = {name: _join_benchmark(abouts) for name, abouts in of_benchmarks.items()}
    conditions = joined["fingerprint"]
    joined["benchmarks"] = benchmarks
    joined["notes"] = list(dict.fromkeys(note for each in benchmarks.values() for note in each["notes"]))
    joined["fingerprint"] = conditions | {
        "versions": _versions_of(benchmarks.values()) or conditions["versions"],
        "comparable": comparable_hash(conditions),
    }
    for name in _OF_FILES:
        joined.pop(name, None)
    return joined


def _join_benchmark(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the part `benchmarks` of one benchmark from those of its tasks, whose `notes` are on no single task."""
    task_notes = {task: notes for part in parts for task, notes in part["task_notes"].items()}
    scoring = {kind: version for part in parts for kind, version in part["scoring"].items()}
    return {
        **parts[0],
        "notes": list(dict.fromkeys([*parts[0]["notes"], *(note for notes in task_notes.values() for note in notes)])),
        "task_notes": task_notes,
        "versions": _versions_of(parts),
        "scoring": dict(sorted(scoring.items())),
    }


def _versions_of(benchmarks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the versions that computed benchmarks; several versions of a program are listed."""
    versions: dict[str, list[str]] = {}
    for about in benchmarks:
        for program, version in about.get("versions", {}).items():
            versions.setdefault(program, []).append(version)
    return {program: ", ".join(dict.fromkeys(names)) for program, names in versions.items()}


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two objects and their nested objects; any other value is that of the second."""
    both = dict(one)
    for key, value in other.items():
        are_objects = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merge(both[key], value) if are_objects else value
    return both


def part_of(evaluated: Evaluated, benchmark: str, task: str) -> Evaluated:
    """Return the results of one task alone, as they were before they were joined."""
    columns = _columns_of(evaluated.per_query)[task]
    return Evaluated(
        results_of(evaluated.results, benchmark, [task]),
        _with_columns(_rows_of(evaluated.per_query, task).select(columns), {task: columns}),
        [example for example in evaluated.examples if example.task == task],
        _rows_of(evaluated.pairs, task),
    )


def results_of(results: Mapping[str, Any], benchmark: str, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the contents of `results.json` of tasks of one benchmark alone, without hashes of files."""
    part = {key: value for key, value in results.items() if key not in _OF_FILES}
    names = {metric for task in tasks for metrics in part["tasks"].get(task, {}).values() for metric in metrics}
    part = change_part(part, ("metrics",), only(names))
    for path in BY_TASK:
        part = change_part(part, path, only(tasks))
    for path in BY_BENCHMARK:
        part = change_part(part, path, only([benchmark]))
    about = results["benchmarks"][benchmark]
    task_notes = about.get("task_notes", {})
    of_tasks = {note for notes in task_notes.values() for note in notes}
    part["benchmarks"] = {
        benchmark: {
            **about,
            "notes": [note for note in about["notes"] if note not in of_tasks],
            "task_notes": {task: notes for task, notes in task_notes.items() if task in tasks},
        }
    }
    versions = about.get("versions") or part["fingerprint"]["versions"]
    return part | {"fingerprint": part["fingerprint"] | {"versions": versions}}


def of_benchmark(results: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Return results of a task with all that describes its benchmark and the model from newer ones of another task."""
    parts = ("model", "about", "fingerprint", "data", "baselines", "benchmarks")
    (name, about), *_ = newer["benchmarks"].items()
    stored = results["benchmarks"][name]
    about = about | {key: stored[key] for key in ("task_notes", "versions", "scoring") if key in stored}
    return {**results, **{part: newer[part] for part in parts if part in newer}, "benchmarks": {name: about}}


def change_part(
    results: Mapping[str, Any], path: tuple[str, ...], change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return results with the object at `path` changed, and without it if it is optional and empty then."""

    def changed(value: Mapping[str, Any], rest: tuple[str, ...]) -> dict[str, Any]:
        if not rest:
            return change(value)
        inner = {rest[0]: changed(value[rest[0]], rest[1:])} if rest[0] in value else {}
        result = {**value, **inner}
        if len(rest) == 1 and path in _OPTIONAL and not result.get(rest[0]):
            result.pop(rest[0], None)
        return result

    return changed(results, path)


def only(names: Collection[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the change that keeps the entries of these names."""
    return lambda value: {name: each for name, each in value.items() if name in names}


def _rows_of(table: Any, task: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return table.filter(pc.equal(pc.cast(table["task"], pa.string()), task))


def keys_of(evaluated: Evaluated) -> set[Key]:
    """Return task, variant and seed of everything that the rows are of."""
    names = ["task", "variant", "seed"]
    if not len(evaluated.per_query):
        return set()
    return {tuple(key.values()) for key in evaluated.per_query.select(names).group_by(names).aggregate([]).to_pylist()}


def _with_columns(table: Any, columns: Mapping[str, Sequence[str]]) -> Any:
    return table.replace_schema_metadata({_COLUMNS: json.dumps(columns)})


def _columns_of(table: Any) -> dict[str, list[str]]:
    return json.loads((table.schema.metadata or {}).get(_COLUMNS, b"{}"))


def read_evaluated(folder: Path, results: dict[str, Any]) -> Evaluated | None:
    """Read the files beside a `results.json` of these contents.

    Returns None if one is missing or damaged, or was written with other results.
    """
    if not are_written_with(folder, results):
        return None
    try:
        tables = {name: read_table(folder / name, "a table of results") for name in (PER_QUERY, PAIRS)}
        examples = read_examples(folder)
    except InputError:
        return None
    evaluated = Evaluated(results, tables[PER_QUERY], examples, tables[PAIRS])
    return evaluated if results["tasks"].keys() <= _columns_of(evaluated.per_query).keys() else None


def are_written_with(folder: Path, results: Mapping[str, Any]) -> bool:
    """Whether all tables beside a `results.json` exist and were written with it.

    Their rows are not read.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        schemas = [pyarrow.parquet.read_schema(folder / name) for name in (PER_QUERY, PAIRS, EXAMPLES)]
    except (OSError, pa.ArrowException):
        return False
    numbers = numbers_hash(results)
    return all(numbers_of(schema) == numbers for schema in schemas)


def write_evaluated(folder: Path, evaluated: Evaluated) -> dict[str, Any]:
    """Write all files of an evaluation, each by rename and `results.json` last, and return its contents."""
    numbers = numbers_hash(evaluated.results)
    write_per_query(folder / PER_QUERY, written_with(evaluated.per_query, numbers))
    write_per_query(folder / PAIRS, written_with(evaluated.pairs, numbers))
    write_examples(folder, evaluated.examples, numbers)
    hashes = {name: hash_file(folder / name) for name in (PER_QUERY, PAIRS, EXAMPLES)}
    results = with_checksum({**evaluated.results, TABLES: hashes})
    # Last: tables that were written with other results are not kept.
    write_json(folder / RESULTS, results)
    return results
