"""Time the nineteen corruptions and the reference package; print one JSON object.

    python perf/corruptions.py [--side 224] [--batch 16] [--severities 1,3,5] [--repeats 3]

Both get the same smooth random images, in one process. For each kind and severity the fastest run counts:

- ours: one call for the batch, random numbers included, on all cores of the process (compilation is reported
  separately);
- theirs: `imagecorruptions.corrupt`, one image per call, as its users call it.

The ratio of a kind, or of a set of kinds, is the sum of their times over the sum of ours, over the severities, in wall
time and in processor time (all threads together), which other work on the machine hardly changes. All kinds are
measured. `deterministic` kinds have no random part, `noise` is random per value, `other_random` is the rest.
"""

import json
import warnings

import jax
import measuring
import numpy as np
from PIL import Image

from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.progress import progress

CLOCK, PROCESSOR = 0, 1


def make_images(count: int, side: int) -> np.ndarray:
    """Return smooth random images: random colours on a coarse grid, enlarged bicubically."""
    rng, images = np.random.default_rng(0), []
    for _ in range(count):
        coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        images.append(np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)))
    return np.stack(images)


def set_of(name: str) -> str:
    kind = CORRUPTIONS[name]
    if kind.draw is None:
        return "deterministic"
    return "noise" if kind.group == "noise" else "other_random"


def main() -> None:
    parser = measuring.options(__doc__)
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
    milliseconds: dict[str, dict[str, np.ndarray]] = {}
    compiled = 0.0
    with progress("timing corruptions", len(names) * len(severities), "programs") as advance:
        for name in names:
            our_time, their_time = np.zeros(2), np.zeros(2)
            for severity in severities:

                def ours(name: str = name, severity: int = severity) -> None:
                    CORRUPTIONS[name](images, severity, key).block_until_ready()

                def theirs(name: str = name, severity: int = severity) -> None:
                    for image in images:
                        reference(image, severity, name)

                compiled += measuring.measure(ours).seconds
                reference(images[0], severity, name)
                times = measuring.alternate({"ours": ours, "theirs": theirs}, arguments.repeats)
                our_time += measuring.fastest(times["ours"])
                their_time += measuring.fastest(times["theirs"])
                advance(1)
            per_image = 1000 / (arguments.batch * len(severities))
            milliseconds[name] = {"ours": our_time * per_image, "theirs": their_time * per_image}
    sums: dict[str, dict[str, np.ndarray]] = {}
    for name, times in milliseconds.items():
        for set_name in (set_of(name), "all", *(["deterministic_and_noise"] if set_of(name) != "other_random" else [])):
            total = sums.setdefault(set_name, {"ours": np.zeros(2), "theirs": np.zeros(2)})
            total["ours"] += times["ours"]
            total["theirs"] += times["theirs"]
    figures = {
        "side": arguments.side,
        "batch": arguments.batch,
        "severities": severities,
        "device": jax.devices()[0].device_kind,
        "first_calls_seconds": round(compiled, 1),
        "milliseconds_per_image": _rounded(milliseconds, CLOCK),
        "ratio": _ratios(milliseconds, CLOCK),
        "processor_ratio": _ratios(milliseconds, PROCESSOR),
        "sets_milliseconds": _rounded(sums, CLOCK),
        "sets_ratio": _ratios(sums, CLOCK),
        "sets_processor_ratio": _ratios(sums, PROCESSOR),
    }
    print(json.dumps(figures, indent=2))


def _rounded(table: dict[str, dict[str, np.ndarray]], clock: int) -> dict[str, dict[str, float]]:
    return {name: {who: round(float(value[clock]), 3) for who, value in times.items()} for name, times in table.items()}


def _ratios(table: dict[str, dict[str, np.ndarray]], clock: int) -> dict[str, float]:
    return {name: round(float(times["theirs"][clock] / times["ours"][clock]), 2) for name, times in table.items()}


if __name__ == "__main__":
    main()
