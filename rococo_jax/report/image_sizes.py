"""Results of one model at several image sizes, which are no further models for a study."""

from collections.abc import Sequence

from rococo_jax.errors import is_whole, object_of
from rococo_jax.evaluation.model_list import size_suffix
from rococo_jax.report.collection import Run
from rococo_jax.storage import hash_json

# Parts of a model's fingerprint that its image size changes.
_OF_SIZE = ("spec", "preprocessing")
# The runs of a model by image size, ascending, by its name.
_Sizes = dict[str, dict[int, Run]]


def runs_by_size(runs: Sequence[Run]) -> _Sizes:
    """Return the runs of each model that was evaluated at two or more image sizes, by its name and the size."""
    by_model: dict[str, dict[int, Run]] = {}
    for run in runs:
        size = object_of(run.results.get("about")).get("image_size")
        if is_whole(size):
            model = object_of(run.results["fingerprint"].get("model"))
            key = hash_json({name: value for name, value in model.items() if name not in _OF_SIZE})
            by_model.setdefault(key, {}).setdefault(size, run)
    several = (dict(sorted(of_size.items())) for of_size in by_model.values() if len(of_size) > 1)
    return {_name(*next(iter(of_size.items()))): of_size for of_size in several}


def _name(size: int, run: Run) -> str:
    return run.label.removesuffix(size_suffix(size))


def one_size_each(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without further image sizes of the same model, which are no further models."""
    further_sizes = {id(run) for of_size in runs_by_size(runs).values() for run in list(of_size.values())[1:]}
    return [run for run in runs if id(run) not in further_sizes]
