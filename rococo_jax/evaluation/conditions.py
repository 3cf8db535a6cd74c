"""Compare the conditions that decide a number: those of stored results, and those that are requested.

Only contents are compared. Additions to a request (`Benchmark.requested`) are not conditions, but the contents of
everything that both requests name are.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.errors import InputError, object_of

# Option -> names or numbers; or name -> {"from": source, "sha256": of the contents}.
Request = Mapping[str, Any]
# Part of a model of stored numbers: its files by name. Further files add numbers and change none.
FILES = "files"
# Conditions that are the same for all benchmarks of a folder.
_OF_THE_RUN = "rerank"
_MOST_FIELDS, _LONGEST_VALUE = 4, 20


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
    if stored.get("protocol") != fingerprint["protocol"]:
        yield "protocol", stored.get("protocol"), fingerprint["protocol"]
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
