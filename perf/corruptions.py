"""Times the nineteen corruptions beside the reference package; prints one JSON object.

    python perf/corruptions.py [--side 224] [--batch 16] [--severities 1,3,5] [--repeats 3]

Smooth random images, the same for both. In one process, kind by kind and severity by severity, the fastest run of each:

- ours: one call for the batch, draws included, on all cores this process may use (compilation done before, reported);
- theirs: `imagecorruptions.corrupt`, image by image, as its users call it.

A kind's ratio is the sum of their times over the sum of ours, over the severities; so is that of a set of kinds. No
kind is left out. `deterministic` has no random part, `noise` is random value by value, `other_random` are the rest.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable

import jax
import numpy as np
from PIL import Image

from rococo_jax.alter.corruptions import CORRUPTIONS, corrupt
from rococo_jax.progress import progress


def make_images(count: int, side: int) -> np.ndarray:
    """Photograph-like enough: random colours on a coarse grid, enlarged smoothly."""
    generator, found = np.random.default_rng(0), []
    for _ in range(count):
        coarse = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        found.append(np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)))
    return np.stack(found)


def fastest(run: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def set_of(name: str) -> str:
    kind = CORRUPTIONS[name]
    if kind.draw is None:
        return "deterministic"
    return "noise" if kind.group == "noise" else "other_random"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--severities", default="1,3,5")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(CORRUPTIONS), help="default: all nineteen")
    arguments = parser.parse_args()
    from imagecorruptions import corrupt as reference

    warnings.simplefilter("ignore")
    images, key = make_images(arguments.batch, arguments.side), jax.random.key(0)
    severities = [int(severity) for severity in arguments.severities.split(",")]
    names = arguments.kinds.split(",")
    milliseconds: dict[str, dict[str, float]] = {}
    compiled = 0.0
    with progress("timing corruptions", len(names) * len(severities), "programs") as advance:
        for name in names:
            our_time = their_time = 0.0
            for severity in severities:

                def ours(name: str = name, severity: int = severity) -> None:
                    corrupt(images, name, severity, key).block_until_ready()

                def theirs(name: str = name, severity: int = severity) -> None:
                    for image in images:
                        reference(image, severity, name)

                start = time.perf_counter()
                ours()
                compiled += time.perf_counter() - start
                reference(images[0], severity, name)
                our_time += fastest(ours, arguments.repeats)
                their_time += fastest(theirs, arguments.repeats)
                advance(1)
            per_image = 1000 / (arguments.batch * len(severities))
            milliseconds[name] = {"ours": our_time * per_image, "theirs": their_time * per_image}
    sums: dict[str, dict[str, float]] = {}
    for name, times in milliseconds.items():
        for whole in (set_of(name), "all", *(["deterministic_and_noise"] if set_of(name) != "other_random" else [])):
            total = sums.setdefault(whole, {"ours": 0.0, "theirs": 0.0})
            total["ours"] += times["ours"]
            total["theirs"] += times["theirs"]
    figures = {
        "side": arguments.side,
        "batch": arguments.batch,
        "severities": severities,
        "device": jax.devices()[0].device_kind,
        "first_calls_seconds": round(compiled, 1),
        "milliseconds_per_image": _rounded(milliseconds),
        "ratio": {name: round(times["theirs"] / times["ours"], 2) for name, times in milliseconds.items()},
        "sets_milliseconds": _rounded(sums),
        "sets_ratio": {name: round(times["theirs"] / times["ours"], 2) for name, times in sums.items()},
    }
    print(json.dumps(figures, indent=2))


def _rounded(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {who: round(value, 3) for who, value in times.items()} for name, times in table.items()}


if __name__ == "__main__":
    main()
