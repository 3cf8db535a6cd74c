"""Image sets made from a benchmark's images, and the tasks over them: mixed galleries and corrupted images.

A set has one image for each of the benchmark's, in the same order; set `k` occupies the rows from `(k + 1) n` on of the
table of images, behind the `n` originals. Nothing is made here: a set says how, `evaluation` makes it on the way to the
image tower.

- mixed: captions look for their image among the originals *and* the mixed images (RoCOCO, arXiv 2304.10727); one run
  for each seed.
- control: the same with the ratio 1, so the "mixed" images are the originals, squashed and compressed. It tells the
  effect of mixing from that of preprocessing.
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from rococo_jax.alter.published_mixing import PUBLISHED_SEEDS, MixingPlan, make_plan
from rococo_jax.benchmarks.tasks import TEXT_TO_IMAGE, RankBenchmark, RankTask
from rococo_jax.errors import InputError

DEFAULT_MIXES = ("mix_0.9", "patch_0.9")
DEFAULT_SEEDS = PUBLISHED_SEEDS
CONTROL = "control"
_MIX = re.compile(r"(mix|patch)_(\d*\.?\d+)")


def parse_mix(variant: str) -> tuple[str, float]:
    """`patch_0.9` -> ("patch", 0.9).

    Raises:
        InputError: it is no method and ratio.
    """
    found = _MIX.fullmatch(variant)
    if found is None or not 0 <= float(found[2]) <= 1:
        raise InputError("--mixes", "variant", variant, "mix_R or patch_R with a ratio R from 0 to 1, such as mix_0.9")
    return found[1], float(found[2])


def with_mixed_images(
    benchmark: RankBenchmark, variants: Sequence[str], seeds: Sequence[int], protocol: str
) -> RankBenchmark:
    """The benchmark with its mixed galleries, beside the clean text-to-image task; unchanged where that is missing.

    Under `paper` the control gallery stands beside the mixed ones; under `control` it stands alone. A single image has
    no partner: then nothing is mixed, and a note says so.

    Raises:
        InputError: a variant is not one.
    """
    clean = next((task for task in benchmark.tasks if task.name == TEXT_TO_IMAGE and task.variant == "clean"), None)
    if clean is None or not variants:
        return benchmark
    if len(benchmark.images) < 2:
        return dataclasses.replace(benchmark, notes=(*benchmark.notes, "one image alone cannot be mixed"))
    plans = []
    if protocol != CONTROL:
        for variant in variants:
            method, ratio = parse_mix(variant)
            plans += [make_plan(benchmark.images, method, ratio, seed, protocol) for seed in seeds]
    if protocol != "strict":
        plans.append(make_plan(benchmark.images, "mix", 1.0, seeds[0], CONTROL))
    first = len(benchmark.images) * (1 + len(benchmark.derived))
    tasks = [_mixed_task(clean, plan, first + k * len(benchmark.images)) for k, plan in enumerate(plans)]
    return dataclasses.replace(benchmark, tasks=(*benchmark.tasks, *tasks), derived=(*benchmark.derived, *plans))


def _mixed_task(clean: RankTask, plan: MixingPlan, first_row: int) -> RankTask:
    """The clean task with the plan's images behind its gallery."""
    return dataclasses.replace(
        clean,
        variant=plan.variant,
        seed=None if plan.variant == CONTROL else plan.seed,
        gallery=np.concatenate([clean.gallery, first_row + clean.gallery]),
        gallery_group=np.concatenate([clean.gallery_group, clean.gallery_group]),
        gallery_altered=np.repeat([False, True], len(clean.gallery)),
    )
