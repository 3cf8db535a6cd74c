"""What the measurements share: options, ways that take turns, unit vectors, a peer beside us, JSON.

open_clip, a peer, may be installed in a folder of its own, which keeps torchvision, whose compiled operators cannot
load beside the CPU build of torch, out of the environment:

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


class Taken(NamedTuple):
    """Seconds by the clock, and of the processor (all threads together), which other work disturbs little."""

    seconds: float
    processor: float


def options(doc: str, *, cores: bool = False, beside: bool = False) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring, with `--cores`, or with where open_clip is."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if cores:
        parser.add_argument("--cores", type=int, default=2)
    if beside:
        parser.add_argument("--beside", metavar="DIR", help="where open_clip is installed, if not in the environment")
        parser.add_argument("--model", default="ViT-B-32", help="an architecture of open_clip")
    return parser


def use_cores(count: int) -> None:
    """Pin this process to `count` cores. Call it before JAX and torch are imported."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    os.environ["OMP_NUM_THREADS"] = str(count)


def taken(way: Callable[[], Any]) -> Taken:
    """Run it once."""
    start, used = time.perf_counter(), time.process_time()
    way()
    return Taken(time.perf_counter() - start, time.process_time() - used)


def in_turns(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Taken]]:
    """Run all ways in every round, one after the other, so that other work on the machine falls on all of them."""
    times: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(taken(way))
    return times


def fastest(times: list[Taken]) -> Taken:
    """The least of each clock."""
    return Taken(*map(min, zip(*times, strict=True)))


class NoFigures(Exception):
    """Why a command printed no figures."""


def printed(command: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None) -> Any:
    """The last JSON value that a script prints in a process of its own; `command` are the words after Python.

    Raises:
        NoFigures: the time is up, or the last line of its error.
    """
    options = {"capture_output": True, "text": True, "env": os.environ | dict(environment or {})}
    try:
        done = subprocess.run([sys.executable, *command], check=False, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        raise NoFigures(f"longer than {seconds:.0f} seconds") from None
    starts = [found.start() for found in re.finditer(r"^[{\d]", done.stdout, re.M)]
    if done.returncode or not starts:
        raise NoFigures((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.JSONDecoder().raw_decode(done.stdout[starts[-1] :])[0]


def fresh(*words: object) -> Any:
    """What this script prints as JSON when called with these arguments, in a process of its own."""
    return printed([sys.argv[0], *map(str, words)])


def rounded(values: Mapping[str, float], digits: int = 2) -> dict[str, float]:
    return {name: round(float(value), digits) for name, value in values.items()}


def peak_memory() -> int:
    """Bytes of this process's resident set at its peak (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def unit_vectors(count: int, width: int, seed: int) -> np.ndarray:
    """Random unit vectors, made in place so that peak memory is the array itself."""
    generator, made = np.random.default_rng(seed), np.empty((count, width), np.float32)
    for start in range(0, count, 1000):
        part = generator.standard_normal(made[start : start + 1000].shape, np.float32)
        made[start : start + 1000] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return made


def converted(reference: Any) -> Any:
    """Convert a model of `transformers` to an `Encoder`, through a folder on disk."""
    from rococo_jax.encoders import load_model

    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        return load_model(folder)


def open_clip_pair(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """open_clip's model with random weights, its transform of images, and the same model as an `Encoder`.

    Its text tower is that of `CustomTextCLIP`, whose positions can be cut; that of `CLIP` takes 77 tokens alone.

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
    times = in_turns({"ours": ours, "theirs": theirs}, rounds)
    counts = {"ours": items, "theirs": items_of_reference}
    rates = {name: count / fastest(times[name]).seconds for name, count in counts.items()}
    in_rounds = [b.seconds / items_of_reference * items / a.seconds for a, b in zip(*times.values(), strict=True)]
    return {
        f"{what}_per_second": rounded(rates),
        "ratio": round(rates["ours"] / rates["theirs"], 2),
        "ratio_median_of_rounds": round(statistics.median(in_rounds), 2),
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
