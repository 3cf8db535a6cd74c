"""Decide what an evaluation adds to the results that are in its folder already.

What decides a number (model, contents of the data, protocol, versions) is the *fingerprint* of results. What was
requested (benchmarks, tasks, variants, template sets, seeds, corruptions, out-of-distribution images) is their
*request*, one for each benchmark. Then

    the same fingerprint, nothing new requested   the results are kept as they are
    the same fingerprint, more requested          a benchmark whose request grew is scored again, with the union of
                                                  both requests; the results of all other benchmarks are kept
    another model, other data, another protocol   refused, with the fields that differ
    other versions, a model without fingerprint,  nothing can be kept: all is computed for the union of both requests;
    damaged tables, tables of another evaluation  refused where a benchmark of the folder is not requested again

A benchmark is scored as a whole, because its pooled variants (`mean`, `mix_0.9`, `corruptions_3`) are means over the
whole request. Embeddings come from the cache.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.companions import Companion
from rococo_jax.evaluation.results import RESULTS, read_results
from rococo_jax.evaluation.sections import Evaluated, read_evaluated
from rococo_jax.storage import read_json

# Option -> names or numbers; or name -> {"from": source, "sha256": of the contents}.
Request = Mapping[str, Any]
# Conditions that are the same for all benchmarks of a folder.
_OF_THE_RUN = "rerank"
_MOST_FIELDS, _LONGEST_VALUE = 4, 20


class Plan(NamedTuple):
    """What to compute, and what to keep.

    Attributes:
        stored: contents of the folder's `results.json`; None where there is none.
        kept: benchmarks whose results are kept.
        requests: benchmark to compute -> its request, joined with that of the stored results.
        lines: to print before.
    """

    stored: dict[str, Any] | None
    kept: tuple[str, ...]
    requests: dict[str, Request]
    lines: tuple[str, ...] = ()


def request_of(benchmark: Benchmark) -> dict[str, Any]:
    """Return the request that a benchmark was opened with; its tasks alone where it does not know."""
    return {"tasks": list(dict.fromkeys(task.name for task in benchmark.tasks)), **benchmark.requested}


def covers(stored: Request, request: Request) -> bool:
    """Whether a request is part of another.

    >>> covers({"tasks": ["a", "b"], "seeds": [1]}, {"tasks": ["b"]}), covers({"tasks": ["a"]}, {"seeds": [1]})
    (True, False)
    """
    return not _missing(stored, request)


def union(stored: Request, request: Request) -> dict[str, Any]:
    """Join two requests, option by option. What both name keeps its place, and comes from the source of the later one.

    >>> union({"seeds": [10], "tasks": ["a"]}, {"seeds": [1, 10]})
    {'seeds': [10, 1], 'tasks': ['a']}
    """
    joined = {}
    for option in {**stored, **request}:
        old, new = stored.get(option, ()), request.get(option, ())
        has_sources = isinstance(old or new, Mapping)
        joined[option] = {**dict(old), **dict(new)} if has_sources else list(dict.fromkeys([*old, *new]))
    return joined


def _missing(stored: Request, request: Request) -> dict[str, list[Any]]:
    """The names of a request that another lacks, by option."""
    missing = {
        option: [name for name in names if name not in stored.get(option, ())] for option, names in request.items()
    }
    return {option: names for option, names in missing.items() if names}


def _in_words(request: Request) -> str:
    return ", ".join(f"{option} {', '.join(map(str, names))}" for option, names in request.items() if names)


def with_request(benchmark: Benchmark, request: Request, settings: Settings) -> Benchmark:
    """Return the benchmark, opened again where the request has more than it was opened with.

    Raises InputError: something that was requested before is no longer there, or has other contents.
    """
    if covers(request_of(benchmark), request):
        return benchmark
    if benchmark.reopen is None:
        found = _in_words(_missing(request_of(benchmark), request))
        raise InputError(benchmark.name, "request", f"results with {found}, too", "these requested again")
    opened = benchmark.reopen(_settings_for(request, settings))
    if missing := _missing(request_of(opened), request):
        found = f"no {_in_words(missing)}, which the results in the folder have"
        raise InputError(benchmark.name, "data", found, "the same data, or another output folder")
    for field, old, new in _other_contents(request, request_of(opened)):
        found = f"{_short(new)}, and {_short(old)} in the results of the folder"
        raise InputError(benchmark.name, field, found, "the same contents, or another output folder")
    return opened


def _settings_for(request: Request, settings: Settings) -> Settings:
    """The settings by which a benchmark is opened with a request."""
    lists = {name: tuple(request.get(name, ())) for name in ("tasks", "mixed_galleries", "corruptions")}
    # Without these options the others have no effect.
    lists |= {name: tuple(request[name]) for name in ("seeds", "severities") if name in request}
    sources = {name: [(key, each["from"]) for key, each in request.get(name, {}).items()] for name in _WITH_SOURCES}
    templates = {"templates": tuple(source for _, source in sources["templates"])} if sources["templates"] else {}
    out_images = {"out_images": tuple(sources["out_images"])}
    return dataclasses.replace(settings, corrupted_benchmarks=(), **lists, **templates, **out_images)


_WITH_SOURCES = ("templates", "out_images")


def holds(folder: Path, benchmarks: Sequence[Benchmark]) -> bool:
    """Whether a folder has results of all that is requested, whatever model, data and protocol they are of."""
    path = folder / RESULTS
    if not path.exists():
        return False
    try:
        stored = object_of(object_of(read_json(path, "a results file")).get("benchmarks"))
    except InputError:
        return False
    requests = {benchmark.name: request_of(benchmark) for benchmark in benchmarks}
    return all(covers(object_of(object_of(stored.get(name)).get("request")), each) for name, each in requests.items())


def make_plan(
    folder: Path,
    name: str,
    fingerprint: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
    companions: Sequence[Companion] = (),
) -> Plan:
    """Compare a request with the results in a folder.

    Args:
        name: of the model.
        fingerprint: of the results that are requested.
        benchmarks: as they are requested.

    Raises:
        InputError: the results are of something else, cannot be read, or could not be kept and are not requested again.
    """
    requests: dict[str, Request] = {benchmark.name: request_of(benchmark) for benchmark in benchmarks}
    path = folder / RESULTS
    if not path.exists():
        return Plan(None, (), requests)
    results = read_results(path)
    stored = _stored_benchmarks(path, results)
    refuse_other_conditions(path, results, fingerprint, benchmarks, name)
    _refuse_same_tasks(path, stored, benchmarks)
    unions = {each: union(stored[each]["request"] if each in stored else {}, requests[each]) for each in requests}
    if reason := _why_nothing_is_kept(folder, results, fingerprint, companions):
        if absent := [each for each in stored if each not in requests]:
            found = f"results of {', '.join(absent)}, which cannot be kept: {reason}"
            raise InputError(path, "benchmarks", found, "these requested, too, or another output folder")
        return Plan(results, (), unions, (f"{folder}: results are computed again: {reason}",))
    grown = {
        each: unions[each] for each in requests if each not in stored or _missing(stored[each]["request"], unions[each])
    }
    kept = tuple(each for each in stored if each not in grown)
    return Plan(results, kept, grown, tuple(_lines(folder, stored, requests, grown, kept)))


def _lines(
    folder: Path,
    stored: Mapping[str, Mapping[str, Any]],
    requests: Mapping[str, Request],
    grown: Mapping[str, Request],
    kept: Sequence[str],
) -> Iterator[str]:
    added = [
        f"{name} ({_in_words(_missing(stored[name]['request'], request))})" if name in stored else name
        for name, request in grown.items()
    ]
    more = [name for name in stored if name not in requests or _missing(requests[name], stored[name]["request"])]
    if added:
        yield f"{folder}: adding {'; '.join(added)}" + (f"; keeping {', '.join(kept)}" if kept else "")
    elif more:
        yield f"{folder}: has all that is requested, and more of {', '.join(more)}; kept as it is"


def _stored_benchmarks(path: Path, results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The part `benchmarks` of results. Raises InputError: there is none, as in files of other programs."""
    stored = object_of(results.get("benchmarks"))
    for name, about in stored.items():
        parts = {"request": dict, "tasks": list, "notes": list}
        if not all(isinstance(object_of(about).get(part), kind) for part, kind in parts.items()):
            raise InputError(path, f"benchmarks: {name}", str(about)[:80], f"an object with {', '.join(parts)}")
    if not stored or stored.keys() != object_of(results["fingerprint"].get("data")).keys():
        wanted = "results of `rococo evaluate` or `rococo score`, to which more is added, or another output folder"
        raise InputError(path, "benchmarks", ", ".join(stored) or "nothing", wanted)
    return stored


def refuse_other_conditions(
    path: Path,
    results: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
    name: str | None = None,
) -> None:
    """Raises InputError where results are of other data or another protocol, or not of the model that is named."""
    different = list(_differences(results, fingerprint, benchmarks, with_model=name is not None))
    if not different:
        return
    # A number or a name tells people more than a hash.
    different.sort(key=lambda each: max(len(str(value)) for value in each[1:]) > _LONGEST_VALUE)
    listed = different[:_MOST_FIELDS]
    more = f", and {len(different) - len(listed)} more" if len(different) > len(listed) else ""
    found = ", ".join(f"{_short(old)}" for _, old, _ in listed)
    wanted = ", ".join(f"{_short(new)}" for _, _, new in listed)
    model = f" for {name!r}" if name else ""
    raise InputError(
        path,
        f"fingerprint: {', '.join(field for field, _, _ in listed)}{more}",
        f"results of {results['model']!r} with {found}",
        f"{wanted}{model} as requested, or another output folder",
    )


def _differences(
    results: Mapping[str, Any], fingerprint: Mapping[str, Any], benchmarks: Sequence[Benchmark], with_model: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Field, stored value and requested value of each condition that differs."""
    stored = results["fingerprint"]
    if with_model:
        yield from _unequal("model", object_of(stored.get("model")), fingerprint["model"])
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
        yield from _unequal(f"data.{benchmark.name}", one, other)
        old_request = object_of(object_of(object_of(results.get("benchmarks")).get(benchmark.name)).get("request"))
        for field, old, new in _other_contents(old_request, request):
            yield f"data.{benchmark.name}.{field}", old, new
    yield from _differences_of_run(results, fingerprint, benchmarks)


def _differences_of_run(
    results: Mapping[str, Any], fingerprint: Mapping[str, Any], benchmarks: Sequence[Benchmark]
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that are the same for all benchmarks of one evaluation, in benchmarks that only one side has."""
    requested = fingerprint["data"]
    others = {
        name: each for name, each in object_of(results["fingerprint"].get("data")).items() if name not in requested
    }
    for name, old in others.items():
        for new in requested.values():
            if old.get(_OF_THE_RUN) != new.get(_OF_THE_RUN):
                yield f"data.{name}.{_OF_THE_RUN}", old.get(_OF_THE_RUN), new.get(_OF_THE_RUN)
                break
    about = object_of(results.get("data"))
    counts = {name: _taken(object_of(about.get(name)), each) for name, each in others.items()}
    new_counts = {benchmark.name: _taken(benchmark.data, requested[benchmark.name]) for benchmark in benchmarks}
    for name, (limit, present) in counts.items():
        for new_limit, new_present in new_counts.values():
            # One limit explains both, or no limit does.
            if limit != new_limit and (present > (new_limit or present) or new_present > (limit or new_present)):
                yield f"data.{name}.limit", limit, new_limit
                break


def _taken(about: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[int | None, int]:
    """The limit on a benchmark's images, where it left out some, and how many images there are."""
    return data.get("limit"), object_of(about.get("coverage")).get("present", 0)


def _unequal(field: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in {**one, **other}:
        old, new = one.get(key), other.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _unequal(f"{field}.{key}", old, new)
        elif old != new:
            yield f"{field}.{key}", old, new


def _other_contents(stored: Request, request: Request) -> Iterator[tuple[str, Any, Any]]:
    """What both requests name, and what has other contents now."""
    for option, names in request.items():
        for name in names if isinstance(names, Mapping) else ():
            old = object_of(object_of(stored.get(option)).get(name))
            if old and old.get("sha256") != names[name]["sha256"]:
                yield f"{option}.{name}", old.get("sha256"), names[name]["sha256"]


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:12]}..."


def _refuse_same_tasks(path: Path, stored: Mapping[str, Mapping[str, Any]], benchmarks: Sequence[Benchmark]) -> None:
    for benchmark in benchmarks:
        tasks = {task.name for task in benchmark.tasks}
        for other, about in stored.items():
            if other != benchmark.name and tasks & {*about["tasks"]}:
                found = f"{benchmark.name}, whose tasks have the same names as those of {other}"
                raise InputError(path, "benchmarks", found, "another output folder")


def _why_nothing_is_kept(
    folder: Path, results: dict[str, Any], fingerprint: Mapping[str, Any], companions: Sequence[Companion]
) -> str | None:
    """Why the results of a folder cannot stand beside new ones; None where they can."""
    stored, versions = results["fingerprint"].get("versions"), fingerprint["versions"]
    if "fingerprint" in fingerprint["model"] and fingerprint["model"]["fingerprint"] is None:
        return "the model has no fingerprint, so it may have changed since"
    if stored != versions:
        changed = [f"{name} {old} -> {new}" for name, old, new in _unequal("", object_of(stored), versions)]
        return f"they were made by other versions ({', '.join(changed).replace('.', '', 1)})"
    if read_evaluated(folder, results) is None:
        return "a table beside results.json is missing or damaged, or belongs to other results"
    if not all(companion.is_in(results) for companion in companions):
        return "they lack the baselines of the training captions"
    return None


def kept_results(folder: Path, plan: Plan) -> Evaluated | None:
    """Read the results of which some are kept; None where none are."""
    return read_evaluated(folder, plan.stored) if plan.stored is not None and plan.kept else None
