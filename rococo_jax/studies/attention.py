"""Attention of an image tower over its patches, how much of it falls on a box, and its map over the picture.

The map of an image is one row of attention weights, the mean over heads, of what its vector is pooled from:

    attention pooling        the pooling's own weights
    a class token is pooled  the class token's row in the last block
    patches are averaged     the mean over the patches' rows in the last block

A row sums to 1 over all tokens. What falls on the class token itself is left out of the map, and the patches' weights
are brought to sum 1 again. Attention weights are no proof of use; they are what can be read off the model directly.

On a map the picture is grey, with a glow where the model looks: from dark violet over orange to pale yellow, ever
lighter, so that it is readable without colour vision.

Of each pair of images the original is squashed to the square of the mixed image first, and compressed where that is, so
that the two differ in what was mixed in and in nothing else, and a patch of one is the same place in the other.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, UInt8
from PIL import Image

from rococo_jax.benchmarks.rococo.mixed_galleries import box_of, mix_one, partner_of, place_of
from rococo_jax.benchmarks.rococo.published_mixing import SIDE, MixingPlan, decode_jpeg, encode_jpeg, squash
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.models.spec import ConvolutionalSpec, ResNetSpec, VisionSpec
from rococo_jax.models.vision import VisionTower

_IMAGES_AT_ONCE = 16
# Of the glow from none to most; lightness rises all the way.
GLOW = ((26, 12, 56), (112, 28, 109), (203, 63, 82), (247, 139, 41), (252, 244, 170))
_BRIGHTEST_SHARE = 0.98


def attention_rows(tower: VisionTower, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b tokens"]:
    """One row an image over all tokens, class token first where there is one; each sums to 1."""
    tokens, weights = tower.tokens_and_attention(pixels)
    if tower.pooling is not None:
        return tower.pooling.weights(tokens).mean(1)
    if "cls" in tower.spec.pooling:
        return weights[:, :, 0].mean(1)
    return weights[:, :, int(tower.spec.class_token) :].mean((1, 2))


def whose_attention(spec: VisionSpec) -> str:
    """In words, whose attention `attention_rows` gives for this tower."""
    if spec.pooling in ("attention", "cross"):
        return "the attention pooling's weights, mean over heads"
    if spec.pooling == "mean":
        return "last layer, mean over heads and over all patches as queries: this tower averages its patches"
    also = "; its vector holds the mean of the patches too" if spec.pooling == "cls+mean" else ""
    return f"last layer, from the class token, mean over heads{also}"


def patch_maps(
    encoder: Encoder, images: UInt8[np.ndarray, "images size size 3"]
) -> tuple[Float[np.ndarray, "images grid grid"], Float[np.ndarray, " images"]]:
    """Maps over patches, each of sum 1, and the share of attention that stays on the class token.

    `images` are as the model sees them (`preprocessing.resize`). Raises InputError as `vision_spec`.
    """
    spec = vision_spec(encoder)
    graph, state = nnx.split(encoder.model.vision)
    runs = [images[start : start + _IMAGES_AT_ONCE] for start in range(0, len(images), _IMAGES_AT_ONCE)]
    rows = np.concatenate([np.asarray(_rows(graph, encoder.preprocessing, state, run)) for run in runs])
    on_patches = rows[:, int(spec.class_token) :]
    share = on_patches.sum(1, keepdims=True)
    return (on_patches / share).reshape(-1, spec.grid, spec.grid), 1 - share[:, 0]


def vision_spec(encoder: Encoder) -> VisionSpec:
    """The image tower's spec. Raises InputError where there is none, or nothing says how images become pixels."""
    if encoder.spec.vision is None:
        raise InputError(encoder.name, "image tower", "none", "a model with an image tower")
    if isinstance(encoder.spec.vision, ConvolutionalSpec) and not isinstance(encoder.spec.vision, ResNetSpec):
        raise InputError(encoder.name, "image tower", "convolutions alone", "a tower with attention")
    if encoder.preprocessing is None:
        raise InputError(encoder.name, "preprocessing", "none", "a model that came with its image processor's file")
    return encoder.spec.vision


@partial(jax.jit, static_argnums=(0, 1))
def _rows(graph, preprocessing: Preprocessing, state, images: Array) -> Array:
    return attention_rows(nnx.merge(graph, state), preprocessing.normalise(images))


def box_coverage(
    box: tuple[int, int, int, int], preprocessing: Preprocessing, spec: VisionSpec
) -> Float[np.ndarray, "grid grid"]:
    """The share in [0, 1] of each patch that a box covers: rows x1 to x2, columns y1 to y2 of a mixed 384 x 384 image.

    The box goes through the model's own resizing and cropping as an image of its own, so its place is the model's.
    """
    x1, y1, x2, y2 = box
    drawn = np.zeros((SIDE, SIDE, 3), np.uint8)
    drawn[x1:x2, y1:y2] = 255
    # Averages over areas: other filters overshoot at the box's edges.
    by_area = dataclasses.replace(preprocessing, resample="box")
    seen = by_area.resize(Image.fromarray(drawn))[: spec.grid * spec.patch_size, : spec.grid * spec.patch_size, 0]
    return seen.reshape(spec.grid, spec.patch_size, spec.grid, spec.patch_size).mean((1, 3)) / 255


def share_on(attention: Float[np.ndarray, "grid grid"], coverage: Float[np.ndarray, "grid grid"]) -> float:
    """The share of a map that falls on a box: sum of weight times covered part."""
    return float((attention * coverage).sum() / attention.sum())


def overlap(first: Float[np.ndarray, "grid grid"], other: Float[np.ndarray, "grid grid"]) -> float:
    """How much two maps of sum 1 have in common: the sum of the smaller weight of each patch; 1 for equal maps."""
    return float(np.minimum(first, other).sum())


def top_of_maps(*maps: Float[np.ndarray, "grid grid"]) -> float:
    """The weight that gets the brightest colour, as a multiple of the average patch's: all but the top 2 % lie below.

    A few outlying patches often take far more than all others; scaled to them, everything else would be dark.
    """
    relative = np.concatenate([each.ravel() * each.size for each in maps])
    return float(max(1.5, np.quantile(relative, _BRIGHTEST_SHARE)))


def overlay(
    image: UInt8[np.ndarray, "size size 3"], attention: Float[np.ndarray, "grid grid"], top: float
) -> UInt8[np.ndarray, "size size 3"]:
    """The image as the model sees it with its map laid over, smoothly between the patches' centres.

    `top` is the multiple of the average weight that gets the brightest colour.
    """
    height, width, _ = image.shape
    relative = Image.fromarray((attention * attention.size).astype(np.float32))
    smooth = np.asarray(relative.resize((width, height), Image.Resampling.BICUBIC))
    strength = np.clip(smooth / top, 0.0, 1.0)[..., None]
    stops = np.linspace(0, 1, len(GLOW))
    glow = np.concatenate([np.interp(strength, stops, channel) for channel in np.array(GLOW).T], axis=-1)
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float64)[..., None]
    # More opaque where more is seen, and darker where the picture is, so that its drawing shows through the glow.
    opacity = 0.5 + 0.35 * strength
    mixed = (1 - opacity) * grey + opacity * glow * (0.6 + 0.4 * grey / 255)
    return np.clip(np.round(mixed), 0, 255).astype(np.uint8)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """An image before and after `partner` is mixed in, with the model's attention over its patches.

    Attributes:
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

    Raises InputError where the model has no image tower, no image has a partner, or a file cannot be read.
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
    pixels = squash(open_image(path), "dropped" if compressed else "white")
    return decode_jpeg(encode_jpeg(pixels)) if compressed else pixels


def _seen(encoder: Encoder, pixels: UInt8[np.ndarray, "384 384 3"]) -> UInt8[np.ndarray, "size size 3"]:
    return encoder.preprocessing.resize(Image.fromarray(pixels))
