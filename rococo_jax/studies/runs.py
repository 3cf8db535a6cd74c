"""The results that a study over models reads: of the same data under the same protocol, each model once."""

from collections.abc import Sequence

from rococo_jax.errors import InputError
from rococo_jax.evaluation.conditions import conditions_of
from rococo_jax.report.collection import Run, group_by_fingerprint, load_results, runs_of
from rococo_jax.report.comparable import field_name
from rococo_jax.report.facts import runs_by_size


def comparable_runs(sources: Sequence[str]) -> tuple[Run, ...]:
    """Read results whose metrics are compared; see `load_results`.

    Raises InputError: there are none, they differ in more than the model, or a model has several image sizes.
    """
    groups = group_by_fingerprint(load_results(sources))
    if len(groups) > 1:
        fields = [field for field, *_ in groups[1].differences]
        _refuse(f"{len(groups)} kinds that differ in {_shortened(fields)}")
    _check_one_size_each(groups[0].runs)
    return groups[0].runs


def runs_of_the_same_data(sources: Sequence[str]) -> tuple[Run, ...]:
    """Read results whose single answers are compared. Variants that are means may be over other seeds or corruptions.

    Raises InputError: there are none, they are of other data or another protocol, or a model has several image sizes.
    """
    runs = runs_of(load_results(sources))
    first_of_task: dict[str, tuple[Run, dict[str, str]]] = {}
    runs_of_task: dict[str, list[Run]] = {}
    for run in runs:
        for benchmark in conditions_of(run.results):
            for task in dict.fromkeys(task for task, _ in benchmark.variants):
                first, shared = first_of_task.setdefault(task, (run, benchmark.shared))
                runs_of_task.setdefault(task, []).append(run)
                fields = {**shared, **benchmark.shared}
                differing = [field for field in fields if shared.get(field) != benchmark.shared.get(field)]
                if differing := [field_name(("benchmark", benchmark.name), field) for field in differing]:
                    _refuse(f"{run.path}, which differs from {first.path} in {_shortened(sorted(differing))}")
    for run in runs if len(runs) > 1 else ():
        if all(len(runs_of_task[task]) == 1 for task in run.tasks):
            _refuse(f"{run.path}, which has no benchmark in common with the other results")
    _check_one_size_each(runs)
    return runs


def _refuse(problem: str) -> None:
    raise InputError("RESULTS", "results", problem, "results that differ only in the model")


def _shortened(fields: Sequence[str]) -> str:
    return ", ".join(fields[:3])


def _check_one_size_each(runs: Sequence[Run]) -> None:
    """Raise InputError if a model has results at two image sizes, which a study would count as two models."""
    for model, of_size in runs_by_size(runs).items():
        sizes = ", ".join(map(str, of_size))
        raise InputError("RESULTS", "image size", f"{model} at {sizes} pixels", "one size for each model")
