"""The images to look at: an original and its mixed form, both as the model sees them.

The original is squashed to the square of the mixed image first, and compressed where that is, so that the two differ
in what was mixed in and in nothing else, and a patch of one is the same place in the other.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from rococo_jax.benchmarks.rococo.mixed_galleries import box_of, mix_one, partner_of, place_of
from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan, decode_jpeg, encode_jpeg, squash
from rococo_jax.data.images import open_image
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.studies.attention.maps import box_coverage, overlap, patch_maps, share_on, vision_spec


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """An image before and after mixing, with the model's attention over its patches.

    Attributes:
        image, partner: names; the partner is mixed into the image.
        original, mixed: as the model sees them.
        original_map, mixed_map: attention over patches, each of sum 1.
        on_class_token: the share of attention of (original, mixed) that stays on the class token.
        coverage: the share of each patch that lies in the mixed-in box; None for a blend, which is everywhere.
    """

    image: str
    partner: str
    original: UInt8[np.ndarray, "size size 3"]
    mixed: UInt8[np.ndarray, "size size 3"]
    original_map: Float[np.ndarray, "grid grid"]
    mixed_map: Float[np.ndarray, "grid grid"]
    on_class_token: tuple[float, float]
    coverage: Float[np.ndarray, "grid grid"] | None

    @property
    def overlap(self) -> float:
        """How much of the attention stays where it was, 0 to 1."""
        return overlap(self.original_map, self.mixed_map)

    @property
    def area(self) -> float:
        """The box's share of the area that the model sees."""
        return float(self.coverage.mean())

    @property
    def shares(self) -> tuple[float, float]:
        """The share of attention on the box: on that place in the original, and in the mixed image."""
        return share_on(self.original_map, self.coverage), share_on(self.mixed_map, self.coverage)

    @property
    def ratios(self) -> tuple[float, float]:
        """The shares by the box's area: 1 where the model looks at it no more than elsewhere."""
        return self.shares[0] / self.area, self.shares[1] / self.area

    @property
    def has_box(self) -> bool:
        """Whether a box was mixed in of which the model sees anything."""
        return self.coverage is not None and bool(self.coverage.any())


def choose_pairs(encoder: Encoder, plan: MixingPlan, files: Mapping[str, Path], count: int) -> list[Pair]:
    """The first `count` images of the plan that are not mixed with themselves, each with its mixed form.

    Args:
        encoder: a model with an image tower.
        plan: who is mixed with whom.
        files: the file of each of the plan's images.
        count: how many; fewer where the plan has fewer.

    Raises:
        InputError: the model has no image tower, no image of the plan has a partner, or a file cannot be read.
    """
    spec, preprocessing = vision_spec(encoder), encoder.preprocessing
    places = [place_of(plan, name) for name in plan.images[: 4 * count + 64]]
    places = [place for place in places if plan.first[place] != plan.partner[place]][:count]
    if not places:
        raise InputError("mixing", "images", f"{len(plan.images)}, all mixed with themselves", "images with a partner")
    names = [plan.images[plan.first[place]] for place in places]
    originals = np.stack([_seen(encoder, _unmixed(files[name], plan.compressed)) for name in names])
    mixed = np.stack([_seen(encoder, mix_one(plan, place, files)) for place in places])
    maps, on_class_token = patch_maps(encoder, np.concatenate([originals, mixed]))
    pairs = []
    for row, (name, place) in enumerate(zip(names, places, strict=True)):
        other = row + len(places)
        pairs.append(
            Pair(
                image=name,
                partner=partner_of(plan, place),
                original=originals[row],
                mixed=mixed[row],
                original_map=maps[row],
                mixed_map=maps[other],
                on_class_token=(float(on_class_token[row]), float(on_class_token[other])),
                coverage=box_coverage(box_of(plan, place), preprocessing, spec) if plan.method == "patch" else None,
            )
        )
    return pairs


def _unmixed(path: Path, compressed: bool) -> UInt8[np.ndarray, "384 384 3"]:
    pixels = squash(open_image(path))
    return decode_jpeg(encode_jpeg(pixels)) if compressed else pixels


def _seen(encoder: Encoder, pixels: UInt8[np.ndarray, "384 384 3"]) -> UInt8[np.ndarray, "size size 3"]:
    return encoder.preprocessing.resize(Image.fromarray(pixels))
