"""Conditions that decide a number: results of a benchmark are comparable if they were measured under equal ones.

The conditions of all variants of a benchmark are the protocol, flags of the numeric libraries that change arithmetic,
and the hashes of the data with the settings that restrict it (`--only`, `--limit`, ...). Those of a single variant are
the version of the scoring of its kind of task (`SCORING`), the contents of files that were requested for it, and the
seeds or kinds of corruption that it is the mean over. Only contents are compared: names of benchmarks and of files are
no conditions, nor is what else a results file contains. Versions of programs, the device and the processor are
recorded, and decide nothing.

An evaluation that adds to existing results compares what it requests with what is stored. Additions to a request
(`Benchmark.requested`) are not conditions, but the contents of everything that both requests name are.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.variants import ALL_KINDS, Variant
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.results import described_variants, kind_of

# Option -> names or numbers; or name -> {"from": source, "sha256": of the contents}.
Request = Mapping[str, Any]
# Part of a model of stored numbers: its files by name. Further files add numbers and change none.
FILES = "files"
# Conditions that are the same for all benchmarks of a folder.
_OF_THE_RUN = "rerank"
_MOST_FIELDS, _LONGEST_VALUE = 4, 20
# Version of the scoring of each kind of task; 1 for the kinds of other packages. It is raised, with a line in
# CHANGELOG.md, when equal inputs may give another number by more than 1e-4 points.
SCORING: Mapping[str, int] = {
    **dict.fromkeys(("rank", "choice", "image_choice", "group_choice", "text_choice"), 1),
    **dict.fromkeys(("classify", "shape", "options", "out_of_distribution"), 1),
}


def scoring_of(kinds: Iterable[str]) -> dict[str, int]:
    """Return the version of the scoring of kinds of tasks."""
    return {kind: SCORING.get(kind, 1) for kind in sorted(set(kinds))}


class BenchmarkConditions(NamedTuple):
    """Conditions of one benchmark's results, one line per field.

    Attributes:
        name: name of the benchmark; empty for results that do not name any.
        shared: conditions of all variants.
        variants: further conditions of each (task, variant).
    """

    name: str
    shared: dict[str, str]
    variants: dict[tuple[str, str], dict[str, str]]

    @property
    def data(self) -> dict[str, str]:
        """The hashes of the data, with the settings that restrict it."""
        return {field: text for field, text in self.shared.items() if field.partition(".")[0] == "data"}


def conditions_of(results: Mapping[str, Any]) -> list[BenchmarkConditions]:
    """Return the conditions of each benchmark in the contents of a `results.json`."""
    fingerprint, data = results["fingerprint"], object_of(results["fingerprint"].get("data"))
    shared = {"protocol": str(results["protocol"]), **flatten({"flags": object_of(fingerprint.get("flags"))})}
    benchmarks = object_of(results.get("benchmarks"))
    tasks_of: dict[str, list[str]] = {}
    for task in results["tasks"]:
        tasks_of.setdefault(benchmark_of(results, task), []).append(task)
    conditions = []
    for name, tasks in tasks_of.items():
        request = object_of(object_of(benchmarks.get(name)).get("request"))
        of_data = data.get(name, data)
        if isinstance(of_data, dict):
            of_data = {key: value for key, value in of_data.items() if key not in request}
        of_benchmark = {"data": of_data}
        conditions.append(_conditions(results, name, tasks, shared | flatten(of_benchmark)))
    return conditions


def benchmark_of(results: Mapping[str, Any], task: str) -> str:
    """Return the name of the benchmark of a task; empty if the results do not name it."""
    for name, about in object_of(results.get("benchmarks")).items():
        if task in (object_of(about).get("tasks") or ()):
            return name
    # Files of other programs do not name the benchmark of a task: it has its name, or there is only one.
    data = object_of(results["fingerprint"].get("data"))
    return task if task in data else next(iter(data)) if len(data) == 1 else ""


def _conditions(
    results: Mapping[str, Any], name: str, tasks: Sequence[str], shared: dict[str, str]
) -> BenchmarkConditions:
    about = object_of(object_of(results.get("benchmarks")).get(name))
    scoring = object_of(about.get("scoring"))
    described = {
        (task, variant): fields
        for task in tasks
        if task in results["tasks"]
        for variant, fields in described_variants(results, task).items()
    }
    kinds_of_mean: dict[tuple[str, Variant], list[str]] = {}
    for (task, _), fields in described.items():
        if fields.corruption != ALL_KINDS:
            mean = dataclasses.replace(fields, corruption=ALL_KINDS)
            kinds_of_mean.setdefault((task, mean), []).append(fields.corruption)
    variants: dict[tuple[str, str], dict[str, str]] = {}
    for (task, variant), fields in described.items():
        # The first version of the scoring was not recorded.
        own = variants[task, variant] = {"scoring": str(scoring.get(kind_of(results, task, variant), 1))}
        sizes = object_of(object_of(object_of(results.get("sizes")).get(task)).get(variant))
        if seeds := sizes.get("seeds"):
            own["seeds"] = json.dumps(seeds)
        if fields.corruption == ALL_KINDS:
            own["kinds"] = ", ".join(sorted(kinds_of_mean.get((task, fields), ())))
    for option, names in object_of(about.get("request")).items():
        for key, each in object_of(names).items():
            sha256 = str(object_of(each).get("sha256"))
            own_names = {str(key), f"{option}_{key}"}
            places = [
                place
                for place, fields in described.items()
                if own_names & {fields.part, fields.alteration} or option in fields.fields
            ]
            if not places and sha256 not in shared.values():
                places = list(described)  # an option of another package
            for place in places:
                variants[place][f"{option} {key}"] = sha256
    return BenchmarkConditions(name, shared, variants)


def flatten(value: Any, name: str = "") -> dict[str, str]:
    """Return nested objects as one text per dotted field: `{"versions.jax": "0.10.2"}`."""
    if isinstance(value, dict):
        parts = [flatten(child, f"{name}.{key}" if name else str(key)) for key, child in value.items()]
        return {field: text for part in parts for field, text in part.items()}
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def request_of(benchmark: Benchmark) -> dict[str, Any]:
    """Return the request with which a benchmark was opened; only its tasks if it has no record of one."""
    return {"tasks": list(dict.fromkeys(task.name for task in benchmark.tasks)), **benchmark.requested}


def refuse_other_conditions(
    path: Path,
    results: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
    name: str | None = None,
) -> None:
    """Raise InputError if results are of other data, another protocol, or not of the named model."""
    different = list(_differences(results, fingerprint, benchmarks, with_model=name is not None))
    if not different:
        return
    # Fields with numbers or names come first: they help a reader more than a hash.
    different.sort(key=lambda each: max(len(str(value)) for value in each[1:]) > _LONGEST_VALUE)
    listed = different[:_MOST_FIELDS]
    more = f", and {len(different) - len(listed)} more" if len(different) > len(listed) else ""
    stored_values = ", ".join(f"{short(old)}" for _, old, _ in listed)
    requested_values = ", ".join(f"{short(new)}" for _, _, new in listed)
    model = f" for {name!r}" if name else ""
    raise InputError(
        path,
        f"fingerprint: {', '.join(field for field, _, _ in listed)}{more}",
        f"results of {results['model']!r} with {stored_values}",
        f"{requested_values}{model} as requested, or another output folder",
    )


def _differences(
    results: Mapping[str, Any], fingerprint: Mapping[str, Any], benchmarks: Sequence[Benchmark], with_model: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield field, stored value and requested value of each condition that differs."""
    stored = results["fingerprint"]
    if with_model:
        old, new = object_of(stored.get("model")), fingerprint["model"]
        old_files, new_files = object_of(old.get(FILES)), object_of(new.get(FILES))
        if old_files.items() <= new_files.items() or new_files.items() <= old_files.items():
            old, new = {**old, FILES: new_files}, {**new, FILES: new_files}
        yield from unequal("model", old, new)
    for field in ("protocol", "flags"):
        if stored.get(field) != fingerprint.get(field):
            yield field, stored.get(field), fingerprint.get(field)
    of_data = object_of(stored.get("data"))
    for benchmark in benchmarks:
        request, data = request_of(benchmark), fingerprint["data"][benchmark.name]
        if benchmark.name not in of_data:
            continue
        old = object_of(of_data[benchmark.name])
        # Contents of what a request names are compared one by one.
        one, other = ({key: value for key, value in each.items() if key not in request} for each in (old, data))
        yield from unequal(f"data.{benchmark.name}", one, other)
        old_request = object_of(object_of(object_of(results.get("benchmarks")).get(benchmark.name)).get("request"))
        for field, old, new in other_contents(old_request, request):
            yield f"data.{benchmark.name}.{field}", old, new
    yield from _differences_of_run(results, fingerprint, benchmarks)


def _differences_of_run(
    results: Mapping[str, Any], fingerprint: Mapping[str, Any], benchmarks: Sequence[Benchmark]
) -> Iterator[tuple[str, Any, Any]]:
    """Compare settings of a whole evaluation for benchmarks that only one of the two requests has."""
    requested = fingerprint["data"]
    only_stored = {
        name: each for name, each in object_of(results["fingerprint"].get("data")).items() if name not in requested
    }
    for name, old in only_stored.items():
        for new in requested.values():
            if old.get(_OF_THE_RUN) != new.get(_OF_THE_RUN):
                yield f"data.{name}.{_OF_THE_RUN}", old.get(_OF_THE_RUN), new.get(_OF_THE_RUN)
                break
    about = object_of(results.get("data"))
    counts = {name: _limit_and_count(object_of(about.get(name)), each) for name, each in only_stored.items()}
    new_counts = {
        benchmark.name: _limit_and_count(benchmark.data, requested[benchmark.name]) for benchmark in benchmarks
    }
    for name, (limit, present) in counts.items():
        for new_limit, new_present in new_counts.values():
            # One limit explains both, or no limit does.
            if limit != new_limit and (present > (new_limit or present) or new_present > (limit or new_present)):
                yield f"data.{name}.limit", limit, new_limit
                break


def _limit_and_count(about: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return the limit on a benchmark's images, if it excluded any, and the number of images."""
    return data.get("limit"), object_of(about.get("coverage")).get("present", 0)


def unequal(field: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted name and both values of each entry in which two nested objects differ."""
    for key in {**one, **other}:
        old, new = one.get(key), other.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from unequal(f"{field}.{key}", old, new)
        elif old != new:
            yield f"{field}.{key}", old, new


def other_contents(stored: Request, request: Request) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both hashes of everything that two requests name with different contents."""
    for option, names in request.items():
        for name in names if isinstance(names, Mapping) else ():
            old = object_of(object_of(stored.get(option)).get(name))
            if old and old.get("sha256") != names[name]["sha256"]:
                yield f"{option}.{name}", old.get("sha256"), names[name]["sha256"]


def short(value: Any) -> str:
    """Shorten a value, such as a hash, for a message."""
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:12]}..."
