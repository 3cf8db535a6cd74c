"""Time this version beside another one alternately; print one JSON object of ratios.

    git worktree add --detach BEFORE COMMIT
    python perf/compare_versions.py BEFORE [--rounds 5] [--only texts,images] [--model DIR]

Each version runs in a process of its own, which compiles first and then waits. The two take turns, so that other work
on the machine affects both alike. `ratio` is the median over rounds of the other version's time over this one's, above
1 where this one is faster, and `ratios` its range; `processor_ratio` is that of processor time, which other work hardly
changes. Seconds are not printed: they say more about the machine.

    scenes_tiny      steps of that config
    coco_finetune    steps of that config with a CLIP B/32 of random weights, 4 pairs
    texts            captions of 8 to 14 words through the text tower of that CLIP, tokenised
    images           pixels through its image tower
"""

import argparse
import itertools
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

_WORDS = "a man woman dog red small house stands near the old tree with two birds on its green roof".split()


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
    """Return a call that encodes 256 captions or 16 images."""
    import numpy as np

    from rococo_jax.encoders import load_model

    encoder, random = load_model(model), np.random.default_rng(0)
    if what == "images":
        pixels = random.integers(0, 256, (16, 224, 224, 3), np.uint8)
        return lambda: encoder.encode_image(pixels)
    captions = [" ".join(random.choice(_WORDS, random.integers(8, 15))) for _ in range(256)]
    return lambda: encoder.encode_text(captions)


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
    for _ in itertools.chain(["compile"], sys.stdin):
        print(*measuring.measure(lambda: jax.block_until_ready(call())), flush=True)


def start(tree: Path, what: str, model: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "perf")))}
    words = [sys.executable, __file__, str(tree), "--worker", what, "--model", str(model)]
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_timing(process: subprocess.Popen, start: bool = False) -> measuring.Timing:
    """Return the time of a call, which `start` starts; the first one starts by itself."""
    if start:
        print(file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{' '.join(process.args)}: ended")
    return measuring.Timing(*map(float, line.split()))


def compare(before: Path, what: str, model: Path, rounds: int) -> dict[str, Any]:
    processes = [start(tree, what, model) for tree in (before, measuring.CHECKOUT)]
    for process in processes:
        read_timing(process)  # the call that compiles
    pairs = [[read_timing(process, start=True) for process in processes] for _ in range(rounds)]
    for process in processes:
        process.communicate()
    ratios = [[theirs / ours for theirs, ours in zip(*pair, strict=True)] for pair in pairs]
    clock, processor = zip(*ratios, strict=True)
    return {
        "ratio": round(statistics.median(clock), 2),
        "ratios": [round(min(clock), 2), round(max(clock), 2)],
        "processor_ratio": round(statistics.median(processor), 2),
        "processor_ratios": [round(min(processor), 2), round(max(processor), 2)],
        "rounds": rounds,
    }


ALL = ("scenes_tiny", "texts", "images", "coco_finetune")


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ALL), help="default: all four")
    parser.add_argument("--model", help="model directory (default: a CLIP B/32 with random weights)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.model)
        return
    from run_all import save_random_clip

    with tempfile.TemporaryDirectory() as folder:
        model = Path(arguments.model or folder) / ("" if arguments.model else "b32")
        if not arguments.model:
            save_random_clip("b32", model)
        results = {}
        for what in arguments.only.split(","):
            results[what] = compare(arguments.before.resolve(), what, model, arguments.rounds)
            print(what, json.dumps(results[what]), file=sys.stderr, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
