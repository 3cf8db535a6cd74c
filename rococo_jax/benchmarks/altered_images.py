"""Image sets made from a benchmark's images, and the tasks over them: mixed galleries and corrupted images.

A set has one image for each of the benchmark's, in the same order; set `k` occupies the rows from `(k + 1) n` on of the
table of images, behind the `n` originals. Nothing is made here: a set says how, `evaluation` makes it on the way to the
image tower.

- mixed: captions look for their image among the originals *and* the mixed images (RoCOCO, arXiv 2304.10727); one run
  for each seed.
- control: the same with the ratio 1, so the "mixed" images are the originals, squashed and compressed. It tells the
  effect of mixing from that of preprocessing.
- corrupted: the images themselves are corrupted, nothing joins the gallery; both directions. Images are first cut to
  squares of 224 pixels, for which the corruptions were made; `uncorrupted` is the same cut alone, and what drops are
  measured against.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from rococo_jax.benchmarks.rococo.published_mixing import PUBLISHED_SEEDS, MixingPlan, make_plan
from rococo_jax.benchmarks.tasks import TEXT_TO_IMAGE, UNCORRUPTED, CorruptedImages, RankBenchmark, RankTask
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
    tasks = [_mixed_task(clean, plan, row) for plan, row in zip(plans, _first_rows(benchmark), strict=False)]
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


def with_corrupted_images(benchmark: RankBenchmark, kinds: Sequence[str], severities: Sequence[int]) -> RankBenchmark:
    """The benchmark with its clean tasks asked again on corrupted images, and on uncorrupted ones of the same cut."""
    if not kinds:
        return benchmark
    sets = [CorruptedImages(None, 0)]
    sets += [CorruptedImages(kind, severity) for kind in kinds for severity in severities]
    clean = [task for task in benchmark.tasks if task.variant == "clean"]
    tasks = [
        _corrupted_task(task, of, row, pooled=len(kinds) > 1)
        for of, row in zip(sets, _first_rows(benchmark), strict=False)
        for task in clean
    ]
    return dataclasses.replace(benchmark, tasks=(*benchmark.tasks, *tasks), derived=(*benchmark.derived, *sets))


def _corrupted_task(clean: RankTask, images: CorruptedImages, first_row: int, pooled: bool) -> RankTask:
    """The clean task with every image replaced."""
    side = "gallery" if clean.name == TEXT_TO_IMAGE else "queries"
    task = dataclasses.replace(clean, variant=images.variant, **{side: first_row + getattr(clean, side)})
    if images.kind is None:
        return task
    pool = f"corruptions_{images.severity}" if pooled else None
    return dataclasses.replace(task, baseline=UNCORRUPTED, pooled=pool)


def _first_rows(benchmark: RankBenchmark) -> Iterator[int]:
    """The rows of the table of images where the next sets begin."""
    count = len(benchmark.images)
    return itertools.count(count * (1 + len(benchmark.derived)), count)
