"""Mixed galleries: the original images plus a copy of each with another image mixed in, as in the published script.

Captions retrieve their image from the originals *and* the mixed images (RoCOCO, arXiv 2304.10727), once for each seed.
`control` has ratio 1: its "mixed" images are the originals, resized to a square and compressed, which separates the
effect of mixing from that of preprocessing. `write_mixed` writes a gallery as files whose names contain method, ratio
and seed, with a manifest.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import (
    BATCH,
    SIDE,
    MixingPlan,
    encode_jpeg,
    make_plan,
    mix_pair,
    mix_place,
    plan_batches,
    resize_to_square,
)
from rococo_jax.benchmarks.tables import Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.benchmarks.variants import CONTROL, Variant
from rococo_jax.data.images import FileBackedImageSet, FileImages, Prepare, Task, chunks
from rococo_jax.data.pictures import Alpha, image_bytes, open_image
from rococo_jax.data.pixel_cache import PixelView
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.image_folders import (
    ResumableFolder,
    names_without_suffix,
    versions,
)
from rococo_jax.progress import progress

FORMAT, FORMAT_VERSION = "rococo_jax.mixed_images", 1


def describe(plan: MixingPlan) -> dict[str, Any]:
    """Return the manifest of a plan: settings, boxes, and the file, pair and true share of each mixed image."""
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
    """Return a file name for each pair: the first image's name, variant and seed. Names of different runs differ."""
    stems = names_without_suffix(plan.images)
    strict = "_strict" if plan.protocol == "strict" else ""
    suffix = ".jpg" if plan.compressed else ".png"
    return [f"{stems[first]}_{plan.variant}_seed{plan.seed}{strict}{suffix}" for first in plan.first]


def write_mixed(plan: MixingPlan, files: Mapping[str, Path], out: str | os.PathLike) -> int:
    """Write the missing images of a plan, then the manifest. Returns the number of written images.

    Args:
        plan: the pairs and boxes.
        files: image files by name.
        out: the output folder. `paper` and `control` images are written as by the script (JPEG), `strict` ones as PNG.

    Raises:
        InputError: `out` contains another run, or an image cannot be read or has changed since the run was started.
    """
    names = file_names(plan)
    folder = ResumableFolder(out, describe(plan), {name: files[name] for name in plan.images})
    absent = folder.missing(names)
    batches = [places.tolist() for places in plan_batches(plan)]
    missing = [places for places in batches if any(names[place] in absent for place in places)]
    encode = encode_jpeg if plan.compressed else functools.partial(image_bytes, kind="PNG", compress_level=1)
    missing_count = sum(map(len, missing))
    with (
        ThreadPoolExecutor(2, thread_name_prefix="encode") as pool,
        progress("mixing images", len(plan.images), "images") as advance,
    ):
        advance(len(plan.images) - missing_count)
        for places in missing:
            images = plan.first[places].tolist()
            pixels = pool.map(lambda image: resize_to_square(open_image(files[plan.images[image]]), plan.alpha), images)
            squares = dict(zip(images, pixels, strict=True))

            def encoded(place: int, squares: Mapping[int, np.ndarray] = squares) -> bytes:
                first, partner = squares[int(plan.first[place])], squares[int(plan.partner[place])]
                return encode(mix_pair(plan, place, first, partner))

            for place, content in zip(places, pool.map(encoded, places), strict=True):
                folder.write(names[place], content)
            advance(len(places))
    folder.finish()
    return missing_count


SQUARES = {
    alpha: PixelView(f"square {SIDE}, alpha {alpha}", (SIDE, SIDE, 3), functools.partial(resize_to_square, alpha=alpha))
    for alpha in get_args(Alpha)
}


def parse_mix(variant: str) -> tuple[str, float]:
    """Parse a variant: `patch_0.9` gives ("patch", 0.9). Raises InputError: it is no method and ratio."""
    mixing = Variant(alteration=variant).mixing
    if mixing is None or not 0 <= mixing[1] <= 1:
        wanted = "mix_R or patch_R with a ratio R from 0 to 1, such as mix_0.9, or control"
        raise InputError("settings", "mixed_galleries", variant, wanted)
    return mixing


@dataclasses.dataclass(frozen=True, eq=False)
class MixedImages(FileBackedImageSet):
    """Mixed images of a plan; row i is named after original i.

    They are computed when they are read. Only the resized originals are cached.
    """

    originals: FileImages
    plan: MixingPlan

    def __post_init__(self):
        self.originals.pixel_cache.announce(SQUARES[self.plan.alpha])

    @property
    def name(self) -> str:
        """`mix_0.9_seed1`, or `control`."""
        return CONTROL if self.plan.variant == CONTROL else f"{self.plan.variant}_seed{self.plan.seed}"

    @cached_property
    def _place(self) -> np.ndarray:
        """Position in the plan of each row."""
        place = np.empty(len(self.plan.first), int)
        place[self.plan.first] = np.arange(len(place))
        return place

    def __len__(self) -> int:
        return len(self.plan.first)

    def content(self, row: int) -> bytes:
        """Return the content of an image for hashes: the hashes of both files, and how they are mixed.

        The control does not depend on the second file.
        """
        plan, place = self.plan, self._place[row]
        first, partner = self.originals.hashes[plan.first[place]], self.originals.hashes[plan.partner[place]]
        pair = [first] if plan.variant == CONTROL else [first, partner]
        box = plan.boxes[plan.batch[place]].tolist()
        return json.dumps([*pair, plan.method, plan.ratio, box, plan.compressed]).encode()

    def runs(self, size: int = 8 * BATCH) -> list[list[int]]:
        """Return complete batches of the plan, in its order, so that every file is opened once."""
        batches = chunks(plan_batches(self.plan), max(1, size // BATCH))
        return [self.plan.first[np.concatenate(run)].tolist() for run in batches]

    def tasks(self, rows: Sequence[int], prepare: Prepare) -> Iterator[Task]:
        """Return a task for each row."""
        if self.pixel_cache.is_announced(prepare):
            return (Task(1, lambda row=row: [self.pixel_cache.pixels(row, prepare)]) for row in rows)
        return (Task(1, lambda row=row: [prepare(self.thumbnail(row))]) for row in rows)

    def thumbnail(self, row: int) -> Image.Image:
        """Return one mixed image."""
        place = int(self._place[row])
        read_square = functools.partial(self.originals.pixel_cache.pixels, view=SQUARES[self.plan.alpha])
        return Image.fromarray(mix_place(self.plan, place, read_square))

    def note(self, row: int) -> str:
        """Return the name of the image that is mixed in, and the share of the original."""
        if self.plan.variant == CONTROL:
            return "resized to a square and compressed, nothing mixed in"
        place = int(self._place[row])
        return f"{partner_of(self.plan, place)} mixed in; {100 * self.plan.true_ratio[place]:.0f} % is the original"


def mixed_galleries(
    clean: RankTask, originals: FileImages, variants: Sequence[str], seeds: Sequence[int], protocol: str
) -> list[tuple[RankTask, MixedImages]]:
    """Return for each variant and seed the clean text-to-image task with mixed images added to its gallery.

    `paper` adds the control; `strict` compresses nothing and needs no control. Raises InputError: a variant is unknown.
    """
    plans = []
    for variant in variants:
        if variant != CONTROL:
            method, ratio = parse_mix(variant)
            plans += [make_plan(originals.names, method, ratio, seed, protocol) for seed in seeds]
    if protocol != "strict":
        plans.append(make_plan(originals.names, "mix", 1.0, seeds[0], CONTROL))
    return [(_mixed_task(clean, images), images) for images in (MixedImages(originals, plan) for plan in plans)]


def _mixed_task(clean: RankTask, images: MixedImages) -> RankTask:
    is_control, places = images.plan.variant == CONTROL, np.arange(len(clean.gallery))
    partner = np.empty(len(images), int)
    partner[images.plan.first] = images.plan.partner
    unaltered = np.full(len(places), -1)
    return dataclasses.replace(
        clean,
        variant=images.plan.variant,
        seed=None if is_control else images.plan.seed,
        gallery=clean.gallery + Rows.of(images.name, clean.gallery.index),
        gallery_group=np.concatenate([clean.gallery_group, clean.gallery_group]),
        gallery_altered=np.repeat([False, True], len(clean.gallery)),
        gallery_origin=np.concatenate([unaltered, places]),
        gallery_mixed_in=np.concatenate([unaltered, unaltered if is_control else partner[clean.gallery_group]]),
        # The control's copy shows the same as its original, so ranking it first is no error to show.
        shows_errors=not is_control,
    )


def place_of(plan: MixingPlan, image: str) -> int:
    """Return the position in the plan of the mixed image that is named after `image`."""
    return int(np.flatnonzero(plan.first == plan.images.index(image))[0])


def partner_of(plan: MixingPlan, place: int) -> str:
    """Return the name of the image that is mixed in."""
    return plan.images[plan.partner[place]]


def box_of(plan: MixingPlan, place: int) -> tuple[int, int, int, int]:
    """Return the box of the partner, rows x1 to x2 and columns y1 to y2; all zero for a blend."""
    x1, y1, x2, y2 = plan.boxes[plan.batch[place]].tolist()
    return x1, y1, x2, y2


def mix_one(plan: MixingPlan, place: int, files: Mapping[str, Path]) -> UInt8[np.ndarray, "384 384 3"]:
    """Return the mixed image at a position of the plan, from the image files by name.

    Raises InputError: one of the two files cannot be read.
    """
    return mix_place(plan, place, lambda index: resize_to_square(open_image(files[plan.images[index]]), plan.alpha))
