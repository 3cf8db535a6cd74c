"""Attention maps of an image tower before and after another image is mixed in: the share that falls on the box.

The map of an image is one row of attention weights, averaged over heads, of the pooled tokens:

    attention pooling        the pooling's own weights
    a class token is pooled  the class token's row in the last block
    patches are averaged     the mean over the patches' rows in the last block

Attention on a class token is left out, and the weights of the patches are normalised to sum 1. The original is resized
and compressed like the mixed image, so that a patch shows the same region in both.
"""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, UInt8
from PIL import Image, ImageDraw

from rococo_jax.benchmarks.rococo.mixed_galleries import box_of, mix_one, partner_of, place_of
from rococo_jax.benchmarks.rococo.published_mixing import SIDE, MixingPlan, decode_jpeg, encode_jpeg, resize_to_square
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.models.spec import ConvolutionalSpec, ResNetSpec, VisionSpec
from rococo_jax.models.vision import VisionTower
from rococo_jax.report.blocks import Card, Cards, Cell, Head, Note, Page, Part, Picture, Table, Terms, rich

_IMAGES_AT_ONCE = 16
_LEDE = "The attention of an image tower over its patches, before and after another image is mixed in."
_HEADS = (
    Head("Box, % of area", "share of the box in the model's input", edge=True),
    Head("On the box, %", "share of the attention over patches; a patch that the box covers in part counts in part"),
    Head("Before, %", "attention on the same region of the unmixed image"),
    Head("Ratio", "attention on the box divided by its area; 1: no more attention than elsewhere"),
    Head("Before", "the ratio for the same region of the unmixed image"),
    Head("Overlap, %", "sum over patches of the smaller weight; 100: the two maps are equal"),
)
_NOTE = (
    "Lighter patches receive more attention; both maps of an image share one scale, and the box is outlined. Attention "
    "shows what the last layer reads, not what determines the embedding."
)


def attention_rows(tower: VisionTower, pixels: Float[Array, "b h w 3"]) -> Float[Array, "b tokens"]:
    """Return the attention over all tokens of each image, a class token first; each row sums to 1."""
    tokens, weights = tower.tokens_and_attention(pixels)
    if tower.pooling is not None:
        return tower.pooling.mix(tokens)[1].mean((1, 2))
    if "cls" in tower.spec.pooling:
        return weights[:, :, 0].mean(1)
    return weights[:, :, tower.spec.first_patch :].mean((1, 2))


def patch_maps(encoder: Encoder, images: UInt8[np.ndarray, "n size size 3"]) -> Float[np.ndarray, "n grid grid"]:
    """Return attention maps over patches, each of sum 1. Raises InputError as `vision_spec`."""
    spec = vision_spec(encoder)
    run = nnx.jit(lambda tower, pixels: attention_rows(tower, encoder.preprocessing.normalise(pixels)))
    parts = [images[start : start + _IMAGES_AT_ONCE] for start in range(0, len(images), _IMAGES_AT_ONCE)]
    rows = np.concatenate([run(encoder.model.vision, part) for part in parts])[:, spec.first_patch :]
    return (rows / rows.sum(1, keepdims=True)).reshape(-1, spec.grid, spec.grid)


def vision_spec(encoder: Encoder) -> VisionSpec:
    """Return the spec of the image tower. Raises InputError: it has no attention, or there is no preprocessing."""
    spec = encoder.spec.vision
    if spec is None or (isinstance(spec, ConvolutionalSpec) and not isinstance(spec, ResNetSpec)):
        raise InputError(encoder.name, "image tower", "only convolutions" if spec else "none", "one with attention")
    if encoder.preprocessing is None:
        raise InputError(encoder.name, "preprocessing", "none", "a model that came with its image processor's file")
    return spec


def box_coverage(
    box: tuple[int, int, int, int], preprocessing: Preprocessing, spec: VisionSpec
) -> Float[np.ndarray, "grid grid"]:
    """Return the share of each patch that a box covers: rows x1 to x2, columns y1 to y2 of a mixed 384 x 384 image.

    The box is drawn as an image and preprocessed by the model, so that its position is the one in the model's input.
    """
    x1, y1, x2, y2 = box
    mask = np.zeros((SIDE, SIDE, 3), np.uint8)
    mask[x1:x2, y1:y2] = 255
    # Average over areas, because other filters overshoot at the edges of the box.
    by_area = dataclasses.replace(preprocessing, resample="box")
    resized = by_area.resize(Image.fromarray(mask))[: spec.grid * spec.patch_size, : spec.grid * spec.patch_size, 0]
    return resized.reshape(spec.grid, spec.patch_size, spec.grid, spec.patch_size).mean((1, 3)) / 255


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """An image before and after `partner` is mixed in, as preprocessed by the model, with attention over patches.

    `coverage` is the share of each patch in the mixed-in box; None if no part of the box is visible.
    """

    image: str
    partner: str
    pixels: UInt8[np.ndarray, "2 size size 3"]
    maps: Float[np.ndarray, "2 grid grid"]
    coverage: Float[np.ndarray, "grid grid"] | None

    @property
    def numbers(self) -> Float[np.ndarray, "numbers"]:
        """Numbers in the order of the table's headings; NaN without a box."""
        overlap = 100 * np.minimum(*self.maps).sum()
        if self.coverage is None:
            return np.array([*[np.nan] * (len(_HEADS) - 1), overlap], float)
        area, (before, after) = self.coverage.mean(), (self.maps * self.coverage).sum((1, 2))
        return np.array([100 * area, 100 * after, 100 * before, after / area, before / area, overlap], float)


def choose_pairs(encoder: Encoder, plan: MixingPlan, files: Mapping[str, Path], count: int) -> list[Pair]:
    """Return the first `count` images of the plan that have a partner, each with its mixed image.

    Raises InputError: the model has no image tower, no image has a partner, or a file cannot be read.
    """
    spec, preprocessing = vision_spec(encoder), encoder.preprocessing.with_fixed_grid
    places = [place_of(plan, name) for name in plan.images[: 4 * count + 64]]
    places = [place for place in places if plan.first[place] != plan.partner[place]][:count]
    if not places:
        raise InputError("mixing", "images", f"{len(plan.images)}, all mixed with themselves", "images with a partner")
    pairs = []
    for place in places:
        name = plan.images[plan.first[place]]
        original = resize_to_square(open_image(files[name]), "dropped" if plan.compressed else "white")
        original = decode_jpeg(encode_jpeg(original)) if plan.compressed else original
        both = (Image.fromarray(each) for each in (original, mix_one(plan, place, files)))
        pixels = np.stack([preprocessing.resize(each) for each in both])
        coverage = box_coverage(box_of(plan, place), preprocessing, spec) if plan.method == "patch" else np.zeros(1)
        pairs.append((name, partner_of(plan, place), pixels, coverage if coverage.any() else None))
    maps = patch_maps(encoder, np.concatenate([pixels for _, _, pixels, _ in pairs]))
    return [Pair(*pair[:3], maps[2 * row : 2 * row + 2], pair[3]) for row, pair in enumerate(pairs)]


def attention_page(encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair]) -> Page:
    """Return the page: a row of numbers and the maps of each image. `pairs` is not empty."""
    spec = vision_spec(encoder)
    facts = (
        ("Patches", f"{spec.grid} × {spec.grid} of {spec.patch_size} px, pooled by {spec.pooling}"),
        ("Mixing", f"{plan.variant}, seed {plan.seed}, protocol {plan.protocol}"),
        ("Images", f"{len(pairs)} of {len(plan.images):,}"),
    )
    heads = _HEADS if plan.method == "patch" else _HEADS[-1:]
    numbers = np.array([pair.numbers for pair in pairs])[:, -len(heads) :]
    named = zip([*(pair.image for pair in pairs), "Mean"], [*numbers, np.nanmean(numbers, axis=0)], strict=True)
    rows = [[Cell(name), *(Cell("–" if np.isnan(each) else f"{each:.2f}") for each in row)] for name, row in named]
    table = Table("Attention", [Head("Image", words=True), *heads], rows)
    blocks = [Terms(facts, "setting"), table, Note(_NOTE), Cards([_card(pair) for pair in pairs])]
    return Page(f"Where does {encoder.name} look?", "rococo attention", _LEDE, [Part("", blocks, style="group")])


def _card(pair: Pair) -> Card:
    # A few outliers often receive far more attention than all other patches; scaled to them, the rest would be dark.
    top, pictures = max(1.5 / pair.maps[0].size, float(np.quantile(pair.maps, 0.98))), []
    for label, pixels, attention in zip(("before", "after"), pair.pixels, pair.maps, strict=True):
        image, buffer = Image.fromarray(overlay(pixels, attention / top)), io.BytesIO()
        if pair.coverage is not None:
            patch = image.width / len(attention)
            rows, columns = (np.flatnonzero(pair.coverage.max(axis)) for axis in (1, 0))
            corners = (columns[0] * patch, rows[0] * patch, (columns[-1] + 1) * patch - 1, (rows[-1] + 1) * patch - 1)
            ImageDraw.Draw(image).rectangle(corners, outline="white")
        image.save(buffer, "JPEG", quality=80, optimize=True)
        pictures.append(Picture(buffer.getvalue(), pair.image, f"attention {label}: {pair.image}", label))
    return Card(rich("<b>{}</b> with {} mixed in", pair.image, pair.partner), pictures, [])


def overlay(image: UInt8[np.ndarray, "h w 3"], strength: Float[np.ndarray, "grid grid"]) -> UInt8[np.ndarray, "h w 3"]:
    """Return the image in grey with its map on top, interpolated between patch centres; 1 is brightest."""
    smooth = Image.fromarray(strength.astype(np.float32)).resize(image.shape[1::-1], Image.Resampling.BICUBIC)
    strength = np.clip(np.asarray(smooth), 0.0, 1.0)
    glow = matplotlib.colormaps["inferno"](strength)[..., :3]  # lighter all the way, so readable without colour vision
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float64)[..., None] / 255
    # More opaque where attention is stronger, and darker where the image is, so that the image shows through.
    opacity = 0.5 + 0.35 * strength[..., None]
    return np.round(255 * ((1 - opacity) * grey + opacity * glow * (0.6 + 0.4 * grey))).astype(np.uint8)
