"""Log results to an experiment tracker: a run per model, with every number under `TASK/VARIANT/METRIC`.

A run is identified by a hash of the model's name and of everything that decides its results, so evaluating again, or
resuming, updates the run instead of adding another. Trackers share the interface of Weights & Biases.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from rococo_jax.errors import InputError, missing_library
from rococo_jax.storage import hash_json

# What identifies a run of each tracker, by its name and hash; the extras of these names install them.
TRACKERS: Mapping[str, Callable[[str, str], dict[str, str]]] = {
    "wandb": lambda name, identity: {"name": name, "id": identity},
    "trackio": lambda name, identity: {"name": f"{name}-{identity[:8]}"},
}


def read_tracker(text: str) -> tuple[str, str]:
    """Return tracker and project of a text such as `wandb:my-project`.

    Raises InputError: it is none of `TRACKERS`, without a project, or not installed.
    """
    tracker, _, project = text.partition(":")
    if tracker not in TRACKERS or not project:
        raise InputError("log", "tracker", repr(text), "wandb:PROJECT or trackio:PROJECT")
    if importlib.util.find_spec(tracker) is None:
        raise missing_library("log", "tracker", tracker, tracker)
    return tracker, project


def log_results(tracker: tuple[str, str], results: Mapping[str, Any]) -> None:
    """Log the numbers and 95 % intervals of a model's results as one run of its name.

    Args:
        tracker: as `read_tracker` returns it.
        results: the content of a `results.json`.
    """
    module, project = importlib.import_module(tracker[0]), tracker[1]
    identity = hash_json([results["model"], results["fingerprint"]])[:16]
    config = {"protocol": results["protocol"], "fingerprint": results["fingerprint"]}
    run_of = TRACKERS[tracker[0]](results["model"], identity)
    run = module.init(project=project, config=config, resume="allow", **run_of)
    run.log(_numbers(results))
    run.finish()


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for task, variants in results["tasks"].items():
        for variant, metrics in variants.items():
            intervals = results["intervals"].get(task, {}).get(variant, {})
            for metric, value in metrics.items():
                low, high = intervals.get(metric) or (None, None)
                of_metric = {metric: value, f"{metric}_low": low, f"{metric}_high": high}
                numbers |= {f"{task}/{variant}/{name}": each for name, each in of_metric.items() if each is not None}
    return numbers
