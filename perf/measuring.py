"""Share options, alternating runs, unit vectors, reference models and JSON output among the measurements.

open_clip may be installed in a separate folder. This keeps torchvision out of the environment, whose compiled operators
cannot be loaded beside the CPU build of torch:

    pip install --no-deps --target DIR open_clip_torch timm ftfy wcwidth torchvision==0.28.0
    python perf/... --beside DIR
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent


class Timing(NamedTuple):
    """Wall time and processor time (all threads together) in seconds; other work hardly changes the latter."""

    seconds: float
    processor: float


def options(doc: str, *, cores: bool = False, beside: bool = False) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring, with `--cores`, or with `--beside` and `--model`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if cores:
        parser.add_argument("--cores", type=int, default=2)
    if beside:
        parser.add_argument("--beside", metavar="DIR", help="where open_clip is installed, if not in the environment")
        parser.add_argument("--model", default="ViT-B-32", help="an architecture of open_clip")
    return parser


def use_cores(count: int) -> None:
    """Pin this process to `count` cores. Call this before importing JAX and torch."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["OMP_NUM_THREADS"] = str(count)


def measure(call: Callable[[], Any]) -> Timing:
    """Time one call."""
    start, used = time.perf_counter(), time.process_time()
    call()
    return Timing(time.perf_counter() - start, time.process_time() - used)


def alternate(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Timing]]:
    """Time every call once in each round, so that other work on the machine affects all of them alike."""
    times: dict[str, list[Timing]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(measure(call))
    return times


def fastest(times: list[Timing]) -> Timing:
    """Return the shortest wall time and the shortest processor time."""
    return Timing(*map(min, zip(*times, strict=True)))


class NoResult(Exception):
    """The reason why a script printed no result."""


def run_script(
    command: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> Any:
    """Run a script in a new process and return the last JSON value that it prints.

    Args:
        command: the words after `python`.
        seconds: time limit.
        environment: variables in addition to those of this process.

    Raises:
        NoResult: the time limit was reached, or the script failed (the last line of its error).
    """
    options = {"capture_output": True, "text": True, "env": os.environ | dict(environment or {})}
    try:
        process = subprocess.run([sys.executable, *command], check=False, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise NoResult(f"longer than {seconds:.0f} seconds") from None
    starts = [match.start() for match in re.finditer(r"^[{\d]", process.stdout, re.M)]
    if process.returncode or not starts:
        raise NoResult((process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
    return json.JSONDecoder().raw_decode(process.stdout[starts[-1] :])[0]


def run_self(*words: object) -> Any:
    """Run this script with these arguments in a new process and return the JSON value that it prints."""
    return run_script([sys.argv[0], *map(str, words)])


def rounded(values: Mapping[str, float], digits: int = 2) -> dict[str, float]:
    return {name: round(float(value), digits) for name, value in values.items()}


def peak_memory() -> int:
    """Return the peak resident set of this process in bytes (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def unit_vectors(count: int, width: int, seed: int) -> np.ndarray:
    """Return random unit vectors, written in place so that the array itself is the peak memory."""
    rng, vectors = np.random.default_rng(seed), np.empty((count, width), np.float32)
    for start in range(0, count, 1000):
        rows = rng.standard_normal(vectors[start : start + 1000].shape, np.float32)
        vectors[start : start + 1000] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors


def converted(reference: Any) -> Any:
    """Convert a model of `transformers` to an `Encoder`, through a folder on disk."""
    from rococo_jax.encoders import load_model

    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        return load_model(folder)


def open_clip_pair(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return open_clip's model with random weights, its image transform, and the same model as an `Encoder`.

    The text tower is that of `CustomTextCLIP`, which reads texts of any length; that of `CLIP` reads 77 tokens only.

    Raises:
        SystemExit: open_clip is not installed.
    """
    sys.path[:0] = [str(CHECKOUT), *([arguments.beside] if arguments.beside else [])]
    try:
        from tests.support.golden.make_open_clip import import_open_clip

        open_clip = import_open_clip()
    except ImportError as error:
        raise SystemExit(f"open_clip: found none ({error}); wanted it installed, or --beside DIR") from None
    import torch
    from safetensors.torch import save_file

    from rococo_jax.encoders import load_model

    torch.manual_seed(0)
    model, _, transform = open_clip.create_model_and_transforms(
        arguments.model, pretrained=None, force_custom_text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        config = {"quick_gelu": False, **open_clip.get_model_config(arguments.model)}
        config = {"model_cfg": config, "preprocess_cfg": {}}
        (Path(folder) / "open_clip_config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), Path(folder) / "open_clip_model.safetensors")
        return model.eval(), transform, load_model(folder, tokenizer="none")


def compare(
    what: str,
    ours: Callable[[], np.ndarray],
    theirs: Callable[[], np.ndarray],
    items: int,
    items_of_reference: int,
    rounds: int,
) -> dict[str, Any]:
    """Time both alternately for `rounds` rounds after one warm-up call each; the fastest round of each counts.

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
    times = alternate({"ours": ours, "theirs": theirs}, rounds)
    counts = {"ours": items, "theirs": items_of_reference}
    rates = {name: count / fastest(times[name]).seconds for name, count in counts.items()}
    ratios = [
        reference.seconds / items_of_reference * items / own.seconds
        for own, reference in zip(times["ours"], times["theirs"], strict=True)
    ]
    return {
        f"{what}_per_second": rounded(rates),
        "ratio": round(rates["ours"] / rates["theirs"], 2),
        "ratio_median_of_rounds": round(statistics.median(ratios), 2),
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
