"""Time our model and the reference it was converted from, in turns, in one process, on the same inputs."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def use_cores(count: int) -> None:
    """Pin this process to `count` cores. Call it before JAX and torch are imported."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["OMP_NUM_THREADS"] = str(count)


def converted(reference) -> Any:
    """Convert the reference to an `Encoder`, through a folder on disk."""
    from rococo_jax.encoders import load_model

    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        return load_model(folder)


def compare(
    what: str,
    ours: Callable[[], np.ndarray],
    theirs: Callable[[], np.ndarray],
    items: int,
    items_of_reference: int,
    rounds: int,
) -> dict[str, Any]:
    """Time both in turns for `rounds` rounds after one warm-up call each; the fastest round of each counts.

    Args:
        what: name of the items, in the plural.
        ours: encodes all items.
        theirs: encodes the first `items_of_reference` of them.

    Raises:
        SystemExit: the vectors differ by more than 1e-4.
    """
    difference = float(np.abs(ours()[:items_of_reference] - theirs()).max())
    if not difference < 1e-4:
        raise SystemExit(f"vectors: found a difference of {difference}; wanted less than 1e-4")
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds):
        for name, run in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    rates = {name: count / min(seconds[name]) for name, count in (("ours", items), ("theirs", items_of_reference))}
    in_turns = [b / items_of_reference * items / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {
        f"{what}_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "ratio": round(rates["ours"] / rates["theirs"], 2),
        "ratio_median_of_rounds": round(statistics.median(in_turns), 2),
        "largest_difference": difference,
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the report as JSON, with cores, device and versions."""
    import jax
    import torch
    import transformers

    versions = {module.__name__: module.__version__ for module in (jax, torch, transformers)}
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({**report, "cores": cores, "device": jax.devices()[0].device_kind, **versions}, indent=2))
