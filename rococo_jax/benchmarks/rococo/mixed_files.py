"""Mixed galleries as files: the images of a plan, under names that carry method, ratio and seed, and a manifest."""

import functools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.rococo.published_mixing import (
    BATCH,
    SIDE,
    MixingPlan,
    SquashedImages,
    encode_jpeg,
    mix_places,
    plan_batches,
    squash,
)
from rococo_jax.data.images import open_image
from rococo_jax.perturb.images.image_folders import (
    begin,
    encode_image,
    finish,
    names_without_suffix,
    versions,
    write_bytes,
)
from rococo_jax.progress import progress

FORMAT, FORMAT_VERSION = "rococo_jax.mixed_images", 1


def squash_files(files: Mapping[str, Path], images: Sequence[str], workers: int = 2) -> SquashedImages:
    """A reader of squashed images: decodes and squashes the asked-for files in threads, and keeps none.

    The reader raises InputError for a file that is missing, cut short or not an image.
    """

    def read(indices: Sequence[int]) -> np.ndarray:
        with ThreadPoolExecutor(workers, thread_name_prefix="squash") as pool:
            return np.stack(list(pool.map(lambda index: squash(open_image(files[images[index]])), indices)))

    return read


def describe(plan: MixingPlan) -> dict[str, Any]:
    """The manifest of a plan: what was asked for, boxes, and for each mixed image its file, pair and true share."""
    names = file_names(plan)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "method": plan.method,
        "ratio": plan.ratio,
        "seed": plan.seed,
        "protocol": plan.protocol,
        "side": SIDE,
        "batch_size": BATCH,
        "self_mixed": plan.self_mixed,
        "mean_true_ratio": float(plan.true_ratio.mean()),
        "versions": versions(),
        "boxes": plan.boxes.tolist(),
        "pairs": [
            {
                "file": names[place],
                "image": plan.images[plan.first[place]],
                "partner": plan.images[plan.partner[place]],
                "batch": int(plan.batch[place]),
                "true_ratio": float(plan.true_ratio[place]),
            }
            for place in range(len(names))
        ],
    }


def file_names(plan: MixingPlan) -> list[str]:
    """A name for each place of the plan: the first image's, then variant and seed. No two runs share a name."""
    kept = names_without_suffix(plan.images)
    strict = "_strict" if plan.protocol == "strict" else ""
    suffix = ".jpg" if plan.compressed else ".png"
    return [f"{kept[first]}_{plan.variant}_seed{plan.seed}{strict}{suffix}" for first in plan.first]


def write_mixed(plan: MixingPlan, squashed: SquashedImages, out: str | os.PathLike, workers: int = 2) -> int:
    """Writes what is missing of the plan's images, then the manifest. Returns how many images were written.

    `paper` and `control` are saved as the script saves them (JPEG); `strict` as PNG, without loss.

    Raises:
        InputError: `out` holds another run, finished or not, or an image cannot be read.
    """
    manifest, names = describe(plan), file_names(plan)
    out = begin(out, manifest)
    missing = [places for places in plan_batches(plan) if any(not (out / names[place]).is_file() for place in places)]
    encode = encode_jpeg if plan.compressed else functools.partial(encode_image, kind="PNG", compress_level=1)
    written = sum(map(len, missing))
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool,
        progress("mixing images", len(plan.images), "images") as advance,
    ):
        advance(len(plan.images) - written)
        for places in missing:
            mixed = mix_places(plan, places, squashed(plan.first[places].tolist()))
            for place, encoded in zip(places, pool.map(encode, mixed), strict=True):
                write_bytes(out / names[place], encoded)
            advance(len(places))
    finish(out, manifest)
    return written
