"""Decide what an evaluation adds to existing results in its folder.

Everything that decides a number (model, contents of the data, protocol) is the *fingerprint* of results, beside which
the versions of the programs are recorded.
Everything that was requested (benchmarks, tasks, variants, template sets, seeds, corruptions, out-of-distribution
images) is their *request*, one for each benchmark. The cases are

    the same fingerprint, nothing new requested   the results are kept as they are
    the same fingerprint, more requested          tasks of which a variant or seed is missing are scored, with the union
                                                  of both requests; the results of all other tasks are kept
    another model, other data, another protocol   refused, with the fields that differ
    another version of the scoring of a kind      a requested benchmark with such tasks is scored again
    a model without fingerprint, damaged tables,  nothing can be kept: the union of both requests is computed;
    tables of another evaluation                  refused where a benchmark of the folder is not requested again

A task is scored with all of its variants and seeds: its examples are chosen among all of them, and changes by
corruption need the model's confidence on the uncorrupted images. Embeddings come from the cache.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.caption_baselines import TrainingCaptions, has_baselines
from rococo_jax.evaluation.conditions import (
    Request,
    other_contents,
    refuse_other_conditions,
    request_of,
    scoring_of,
    short,
)
from rococo_jax.evaluation.results import RESULTS, read_results
from rococo_jax.evaluation.sections import Evaluated, Key, are_written_with, keys_of, read_evaluated
from rococo_jax.storage import read_json


class Plan(NamedTuple):
    """Parts of a request to compute, and results to keep.

    Attributes:
        stored: contents of the folder's `results.json`; None if it does not exist.
        requests: benchmark to compute -> its request, joined with that of the stored results.
        kept: stored benchmarks whose tasks are kept, unless something of a task is missing.
        keys: task, variant and seed of everything that is stored of these.
        lines: messages to print first.
    """

    stored: dict[str, Any] | None
    requests: dict[str, Request]
    kept: tuple[str, ...] = ()
    keys: Set[Key] = frozenset()
    lines: tuple[str, ...] = ()


def covers(stored: Request, request: Request) -> bool:
    """Whether a request is part of another.

    >>> covers({"tasks": ["a", "b"], "seeds": [1]}, {"tasks": ["b"]}), covers({"tasks": ["a"]}, {"seeds": [1]})
    (True, False)
    """
    return not _missing(stored, request)


def union(stored: Request, request: Request) -> dict[str, Any]:
    """Join two requests, option by option. Names in both keep their place and use the source of the later request.

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
    """Return the names of a request that another lacks, by option."""
    missing = {
        option: [name for name in names if name not in stored.get(option, ())] for option, names in request.items()
    }
    return {option: names for option, names in missing.items() if names}


def _in_words(request: Request) -> str:
    return ", ".join(f"{option} {', '.join(map(str, names))}" for option, names in request.items() if names)


def with_request(benchmark: Benchmark, request: Request, settings: Settings) -> Benchmark:
    """Return the benchmark, reopened if the request contains more than it was opened with.

    Raises InputError: something that was requested before is missing now or has other contents.
    """
    if covers(request_of(benchmark), request):
        return benchmark
    if benchmark.reopen is None:
        missing_parts = _in_words(_missing(request_of(benchmark), request))
        raise InputError(benchmark.name, "request", f"results that also have {missing_parts}", "these requested again")
    new_benchmark = benchmark.reopen(settings_for(request, settings))
    if missing := _missing(request_of(new_benchmark), request):
        problem = f"no {_in_words(missing)}, which the results in the folder have"
        raise InputError(benchmark.name, "data", problem, "the same data, or another output folder")
    for field, old, new in other_contents(request, request_of(new_benchmark)):
        problem = f"{short(new)}, and {short(old)} in the results of the folder"
        raise InputError(benchmark.name, field, problem, "the same contents, or another output folder")
    return new_benchmark


def settings_for(request: Request, settings: Settings) -> Settings:
    """Return the settings for opening a benchmark with a request."""
    lists = {name: tuple(request.get(name, ())) for name in ("tasks", "mixed_galleries", "corruptions")}
    # Without these options the others have no effect.
    lists |= {name: tuple(request[name]) for name in ("seeds", "severities") if name in request}
    sources = {name: [(key, each["from"]) for key, each in request.get(name, {}).items()] for name in _WITH_SOURCES}
    templates = {"templates": tuple(source for _, source in sources["templates"])} if sources["templates"] else {}
    out_images = {"out_images": tuple(sources["out_images"])}
    bindings = {"bindings": dict(sources["bindings"]).get("captions")}
    return dataclasses.replace(settings, corrupted_benchmarks=(), **lists, **templates, **out_images, **bindings)


_WITH_SOURCES = ("templates", "out_images", "bindings")


def requests_in(folder: Path) -> dict[str, Request]:
    """Return the requests of the results in a folder by benchmark, regardless of their model, data and protocol.

    There are none if no results can be read, or if the tables beside them are missing or belong to other results.
    """
    path = folder / RESULTS
    if not path.exists():
        return {}
    try:
        results = object_of(read_json(path, "a results file"))
    except InputError:
        return {}
    stored = object_of(results.get("benchmarks")) if are_written_with(folder, results) else {}
    return {name: object_of(object_of(about).get("request")) for name, about in stored.items()}


def holds(folder: Path, benchmarks: Sequence[Benchmark]) -> bool:
    """Whether a folder has results for everything requested, regardless of their model, data and protocol."""
    stored = requests_in(folder)
    return all(covers(stored.get(benchmark.name, {}), request_of(benchmark)) for benchmark in benchmarks)


def make_plan(
    folder: Path,
    name: str,
    fingerprint: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
    training: TrainingCaptions | None = None,
) -> Plan:
    """Compare a request with the results in a folder.

    Args:
        name: of the model.
        fingerprint: of the results that are requested.
        benchmarks: as they are requested.
        training: captions of the requested baselines.

    Raises:
        InputError: the results are of another model or other data, cannot be read, or cannot be kept and are not
            requested again.
    """
    requests: dict[str, Request] = {benchmark.name: request_of(benchmark) for benchmark in benchmarks}
    path = folder / RESULTS
    if not path.exists():
        return Plan(None, requests)
    results = read_results(path)
    stored = _stored_benchmarks(path, results)
    refuse_other_conditions(path, results, fingerprint, benchmarks, name)
    _refuse_same_tasks(path, stored, benchmarks)
    unions = {each: union(stored[each]["request"] if each in stored else {}, requests[each]) for each in requests}
    evaluated = read_evaluated(folder, results)
    if reason := _why_nothing_is_kept(results, evaluated, fingerprint, training):
        if absent := [each for each in stored if each not in requests]:
            problem = f"results of {', '.join(absent)}, which cannot be kept: {reason}"
            raise InputError(path, "benchmarks", problem, "a request that includes these, or another output folder")
        return Plan(results, unions, lines=(f"{folder}: results are computed again: {reason}",))
    extended = {
        each: unions[each]
        for each in requests
        if each not in stored
        or _is_rescored(stored[each], unions[each])
        or _missing(stored[each]["request"], unions[each])
    }
    unchanged = tuple(each for each in stored if each not in extended)
    lines = list(_lines(folder, stored, requests, extended, unchanged))
    if not extended and results["model"] != name:
        lines.append(f"{folder}: its results have the name {results['model']!r}, not {name!r}")
    kept = tuple(each for each in stored if each in unchanged or not _is_rescored(stored[each], unions[each]))
    tasks = {task for each in kept for task in stored[each]["tasks"]}
    keys = {key for key in keys_of(evaluated) if key[0] in tasks} if extended else set()
    return Plan(results, extended, kept, keys, tuple(lines))


def _is_rescored(about: Mapping[str, Any], request: Request) -> bool:
    """Whether all tasks of a stored benchmark are scored again: by this release's version, or for a new column."""
    scoring = object_of(about.get("scoring"))
    return scoring != scoring_of(scoring) or "bindings" in _missing(about["request"], request)


def _lines(
    folder: Path,
    stored: Mapping[str, Mapping[str, Any]],
    requests: Mapping[str, Request],
    extended: Mapping[str, Request],
    unchanged: Sequence[str],
) -> Iterator[str]:
    missing = {name: _missing(stored[name]["request"], extended[name]) for name in extended if name in stored}
    again = [name for name, parts in missing.items() if not parts]
    additions = [
        f"{name} ({_in_words(missing[name])})" if name in missing else name for name in extended if name not in again
    ]
    if again:
        yield f"{folder}: {', '.join(again)}: scored again, because another version of the scoring was used"
    more = [name for name in stored if name not in requests or _missing(requests[name], stored[name]["request"])]
    if additions:
        yield f"{folder}: adding {'; '.join(additions)}" + (f"; keeping {', '.join(unchanged)}" if unchanged else "")
    elif more:
        yield f"{folder}: has everything requested, and more of {', '.join(more)}; nothing to compute"


def _stored_benchmarks(path: Path, results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the part `benchmarks` of results. Raises InputError: there is none, as in files of other programs."""
    stored = object_of(results.get("benchmarks"))
    for name, about in stored.items():
        parts = {"request": dict, "tasks": list, "notes": list}
        if not all(isinstance(object_of(about).get(part), kind) for part, kind in parts.items()):
            raise InputError(path, f"benchmarks: {name}", str(about)[:80], f"an object with {', '.join(parts)}")
    if not stored or stored.keys() != object_of(results["fingerprint"].get("data")).keys():
        expected = "results of `rococo evaluate` or `rococo score` to add to, or another output folder"
        raise InputError(path, "benchmarks", ", ".join(stored) or "nothing", expected)
    return stored


def _refuse_same_tasks(path: Path, stored: Mapping[str, Mapping[str, Any]], benchmarks: Sequence[Benchmark]) -> None:
    for benchmark in benchmarks:
        tasks = {task.name for task in benchmark.tasks}
        for other, about in stored.items():
            if other != benchmark.name and tasks & {*about["tasks"]}:
                problem = f"{benchmark.name}, whose tasks have the same names as those of {other}"
                raise InputError(path, "benchmarks", problem, "another output folder")


def _why_nothing_is_kept(
    results: dict[str, Any],
    evaluated: Evaluated | None,
    fingerprint: Mapping[str, Any],
    training: TrainingCaptions | None,
) -> str | None:
    """Return why the results of a folder cannot be combined with new ones; None if they can."""
    if "fingerprint" in fingerprint["model"] and fingerprint["model"]["fingerprint"] is None:
        return (
            "the model has no fingerprint, so it may have changed since, or be another one of the same name; use a "
            "folder for each model, or add a method fingerprint()"
        )
    if evaluated is None:
        return "a table beside results.json is missing or damaged, or belongs to other results"
    if not has_baselines(results, training):
        return "they lack the baselines of the training captions"
    return None


def stored_results(folder: Path, plan: Plan) -> Evaluated | None:
    """Read the stored results if some of them are kept, else return None."""
    return read_evaluated(folder, plan.stored) if plan.stored is not None and plan.kept else None
