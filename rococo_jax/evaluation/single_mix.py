"""One image of a mixed gallery, made again without the others.

What becomes of a pair depends on its two images, the box of its batch and the codec alone, so a plan of just that pair
gives the same pixels as the whole gallery does.
"""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from rococo_jax.benchmarks.rococo.mixed_files import squash_files
from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan, mixed_batches


def place_of(plan: MixingPlan, image: str) -> int:
    """The place of the mixed image that is named after `image`.

    Raises:
        ValueError: the plan has no such image.
    """
    return int(np.flatnonzero(plan.first == plan.images.index(image))[0])


def partner_of(plan: MixingPlan, place: int) -> str:
    """The name of the image that is mixed in."""
    return plan.images[plan.partner[place]]


def box_of(plan: MixingPlan, place: int) -> tuple[int, int, int, int]:
    """Rows x1 to x2 and columns y1 to y2 that come from the partner; all zero for a blend."""
    x1, y1, x2, y2 = plan.boxes[plan.batch[place]].tolist()
    return x1, y1, x2, y2


def plan_of_one(plan: MixingPlan, place: int) -> MixingPlan:
    """The plan in which the first place is `place`, and its partner, where it is another image, the only other one."""
    first, partner = plan.first[place], plan.partner[place]
    images = [first] if first == partner else [first, partner]
    return dataclasses.replace(
        plan,
        images=tuple(plan.images[index] for index in images),
        first=np.arange(len(images)),
        partner=np.full(len(images), len(images) - 1),
        batch=np.zeros(len(images), np.int64),
        boxes=plan.boxes[[plan.batch[place]]],
        true_ratio=np.repeat(plan.true_ratio[place], len(images)),
    )


def mix_one(plan: MixingPlan, place: int, files: dict[str, Path]) -> UInt8[np.ndarray, "384 384 3"]:
    """The mixed image at `place`, as an embedder saw it.

    Args:
        plan: who is mixed with whom.
        place: which of the plan's images.
        files: the files of this image and its partner, by name.

    Raises:
        InputError: one of the two files cannot be read.
    """
    alone = plan_of_one(plan, place)
    return next(mixed_batches(alone, squash_files(files, alone.images)))[1][0]
