"""Time this version beside another one alternately; print one JSON object of ratios.

    git worktree add --detach BEFORE COMMIT
    python perf/compare_versions.py BEFORE [--rounds 5] [--only texts,images]

Each version runs in a process of its own, which compiles first and then waits. The two take turns, so that other work
on the machine affects both alike. `ratio` is the median over rounds of the other version's time over this one's, above
1 where this one is faster, and `ratios` its range. Seconds are not printed: they say more about the machine.

    scenes_tiny      steps of that config
    coco_finetune    steps of that config with a CLIP B/32 of random weights, 4 pairs
    texts            captions of 8 to 14 words through the text tower of that CLIP, tokenised
    images           pixels through its image tower
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring


def step_of(name: str, model: str, **settings: object) -> Callable[[], Any]:
    """Return a step of a config on zeros, whose values do not change the time."""
    import jax
    import numpy as np

    from rococo_jax.runtime import make_mesh
    from rococo_jax.training.config import read_config
    from rococo_jax.training.init import starting_encoder
    from rococo_jax.training.inputs.batches import text_length
    from rococo_jax.training.step import lower_step

    words = {"init.model": model, **settings} if model else settings
    config = read_config(name, [f"config.{key}={value}" for key, value in words.items()])
    mesh = make_mesh(jax.devices()[:1])
    encoder = starting_encoder(config, mesh)
    tokens = text_length(config.data.text_length, encoder)
    lowered = lower_step(config, encoder.spec, encoder.preprocessing, mesh, tokens)
    step, shapes = lowered.compile(), lowered.in_tree.unflatten([*jax.tree.leaves(lowered.in_avals)])[0]
    state, frozen, batch = jax.tree.map(lambda shape: jax.device_put(np.zeros(shape.shape, shape.dtype)), shapes)

    def call():
        nonlocal state  # donated
        state, metrics = step(state, frozen, batch)
        return metrics

    return call


def encoder_call(what: str, model: str) -> Callable[[], Any]:
    import bench

    from rococo_jax.encoders import load_model

    sizes = bench.Sizes(images=16, captions=256)
    return bench.MEASUREMENTS[{"texts": "text"}.get(what, what)](load_model(model), sizes).call


def worker(what: str, model: str) -> None:
    """Prepare a call, then run and time it for each line of the standard input."""
    import jax

    if what == "scenes_tiny":
        call = step_of("scenes_tiny", "")
    elif what == "coco_finetune":
        settings = {"batch_size": 4, "losses.vc.partner_group": 2, "data.text_length": 32}
        call = step_of("coco_finetune", model, **settings)
    else:
        call = encoder_call(what, model)
    for _ in ["compile", *sys.stdin]:
        print(measuring.measure(lambda: jax.block_until_ready(call())).seconds, flush=True)


def start(tree: Path, what: str, model: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "perf")))}
    words = [sys.executable, __file__, str(tree), "--worker", what, "--model", str(model)]
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def seconds_of_next_call(process: subprocess.Popen) -> float:
    print(file=process.stdin, flush=True)
    return float(process.stdout.readline())


def compare(before: Path, what: str, model: Path, rounds: int) -> dict[str, Any]:
    processes = [start(tree, what, model) for tree in (before, measuring.CHECKOUT)]
    for process in processes:
        process.stdout.readline()  # the call that compiles
    pairs = [[seconds_of_next_call(process) for process in processes] for _ in range(rounds)]
    for process in processes:
        process.communicate()
    ratios = [theirs / ours for theirs, ours in pairs]
    return {
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(min(ratios), 2), round(max(ratios), 2)],
        "rounds": rounds,
    }


ALL = ("scenes_tiny", "texts", "images", "coco_finetune")


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ALL), help="default: all four")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.model)
        return
    from run_all import save_random_clip

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "b32"
        save_random_clip("b32", model)
        results = {}
        for what in arguments.only.split(","):
            results[what] = compare(arguments.before.resolve(), what, model, arguments.rounds)
            print(what, json.dumps(results[what]), file=sys.stderr, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
