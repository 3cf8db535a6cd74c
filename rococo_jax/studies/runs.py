"""The results that a study over models reads: of the same data under the same protocol, each model once."""

from collections.abc import Sequence

from rococo_jax.errors import InputError
from rococo_jax.report.collection import Run, group_by_fingerprint, label_runs, load_results
from rococo_jax.report.conditions import Conditions
from rococo_jax.report.sections.image_sizes import runs_by_size


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
    runs = label_runs(load_results(sources))
    first, *others = [Conditions.of(run.results) for run in runs]
    for run, conditions in zip(runs[1:], others, strict=True):
        if not conditions.has_the_data_of(first):
            shared = first.flat.keys() & conditions.flat.keys()
            differing = sorted(field for field in shared if first.flat[field] != conditions.flat[field])
            _refuse(f"{run.path}, which differs from {runs[0].path} in {_shortened(differing or ['all benchmarks'])}")
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
