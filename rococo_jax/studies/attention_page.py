"""The page of `rococo attention`: each image before and after mixing, and where the model looks in both."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from markupsafe import Markup
from PIL import Image

from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan
from rococo_jax.encoders import Encoder
from rococo_jax.report import page_path
from rococo_jax.report.blocks import Block, Note, Page, Part, Picture, Strip, Terms, Text, Tile, Tiles, rich
from rococo_jax.report.markdown import write_page
from rococo_jax.report.tables import with_unit
from rococo_jax.report.vocabulary import percent
from rococo_jax.studies.attention import Pair, overlay, top_of_maps, vision_spec, whose_attention

_SIDE = 448  # px, at most; small images are enlarged by the browser alone
_LEDE = "The attention of an image tower over its patches, before and after another image is mixed in."
_DEFINITIONS = (
    (
        "Share on the box",
        "The part of the attention over patches that falls on the mixed-in box; a patch that the box covers in part "
        "counts in part.",
    ),
    (
        "Ratio",
        "That share divided by the box's share of the area that the model sees. 1: the model looks at the box no more "
        "than elsewhere; 2: twice as much.",
    ),
    (
        "Same place before",
        "The ratio for the same patches of the unmixed image: what the place alone attracts. A box matters by how far "
        "it leaves this figure.",
    ),
    (
        "Overlap",
        "The sum over patches of the smaller of the two weights, before and after mixing: 100 % where the model looks "
        "exactly where it did.",
    ),
)
_IMAGES = (
    "Both images are squashed to the square of the published mixing first (and compressed where that is), then resized "
    "and cropped as the model does it, so that they differ in what was mixed in and in nothing else."
)
_CAUTION = (
    "Attention shows what the last layer takes in, not what decides the vector: earlier layers have mixed the patches "
    "already, and a few patches without content can serve as a store and draw much attention."
)


def write_attention_page(
    out: str | Path, encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair], captions: dict[str, str] | None = None
) -> Path:
    """Writes the page, one self-contained file, by rename. Equal pairs give equal bytes.

    `pairs` is not empty. Raises InputError where `out` does not end in `.html` or `.htm`.
    """
    path, captions = page_path(out), captions or {}
    legend = rich("no attention {} most", Markup('<span class="glow" aria-hidden="true"></span>'))
    note = "Both maps of an image share one scale, whose end is given with each. So few images make no statistic."
    intro = Part("", [_setting(encoder, plan, pairs), _tiles(pairs), Note(legend, "scale"), Note(note)], style="group")
    shown = [_pair(pair, number, captions.get(pair.image)) for number, pair in enumerate(pairs, 1)]
    definitions = _DEFINITIONS if any(pair.has_box for pair in pairs) else _DEFINITIONS[-1:]
    terms = [(rich('{} <span class="ours">ours</span>', term), text) for term, text in definitions]
    after = Part("How to read this page", [Terms([*terms, ("Images", _IMAGES), ("Caution", _CAUTION)])], 2, "group",
                 "how-to-read")  # fmt: skip
    title = f"Where does {encoder.name} look?"
    return write_page(path, Page(title, "rococo attention", _LEDE, [intro, *shown], [after], script=False))


def _setting(encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair]) -> Terms:
    spec = vision_spec(encoder)
    facts = (
        ("Model", encoder.name),
        ("Patches", f"{spec.grid} × {spec.grid} of {spec.patch_size} px"),
        ("Mixing", f"{plan.variant}, seed {plan.seed}, protocol {plan.protocol}"),
        ("Images", f"{len(pairs)} of {len(plan.images):,}"),
        ("Attention", whose_attention(spec)),
    )
    return Terms(facts, "setting")


def _tiles(pairs: Sequence[Pair]) -> Tiles:
    """The few numbers that matter, as means over the images shown."""
    boxed, tiles = [pair for pair in pairs if pair.has_box], []
    if boxed:
        ratios = np.array([pair.ratios for pair in boxed])
        before, after, area = 100 * np.array([[*pair.shares, pair.area] for pair in boxed]).mean(0)
        more = f"more with the box: {int((ratios[:, 1] > ratios[:, 0]).sum())} of {len(boxed)}"
        around = f"{percent(before)} % before; {percent(area)} % of the area"
        tiles += [
            Tile("Ratio, mixed-in box", _times(ratios[:, 1].mean()), [f"mean over {len(boxed)} images"]),
            Tile("Ratio, same place before", _times(ratios[:, 0].mean()), [more]),
            Tile("Share on the box", with_unit(percent(after)), [around]),
        ]
    overlaps = [100 * pair.overlap for pair in pairs]
    spread = f"mean; {percent(min(overlaps))} to {percent(max(overlaps))} %"
    tiles.append(Tile("Overlap, before and after", with_unit(percent(float(np.mean(overlaps)))), [spread]))
    return Tiles(tiles)


def _times(value: float) -> str:
    return f"{value:.2f}"


def _pair(pair: Pair, number: int, caption: str | None) -> Part:
    top, boxed = top_of_maps(pair.original_map, pair.mixed_map), pair.has_box
    views = (
        ("Original", pair.original, ""),
        ("Attention on the original", overlay(pair.original, pair.original_map, top), "line ghost" if boxed else ""),
        ("Mixed", pair.mixed, "line" if boxed else ""),
        ("Attention on the mixed image", overlay(pair.mixed, pair.mixed_map, top), "line" if boxed else ""),
    )
    brightest = f"Brightest from {top:.1f} times the average patch"
    # Rounding leaves a trace where there is no class token.
    if max(pair.on_class_token) >= 0.0005:
        first, second = (percent(100 * share) for share in pair.on_class_token)
        brightest += f", {first} and {second} % stay on the class token"
    named = rich("<bdi>{}</bdi> ", pair.image) if caption else ""
    blocks: list[Block] = [
        Note(rich("{}with <bdi>{}</bdi> mixed in", named, pair.partner)),
        Strip("", [_view(label, pixels, pair, box) for label, pixels, box in views], "four"),
        Note(_verdict(pair), "verdict"),
        Note(f"{brightest}."),
    ]
    return Part(caption or pair.image, blocks, 3, "pair-of", f"image-{number}", element="article")


def _verdict(pair: Pair) -> Text:
    moved = f"{percent(100 * pair.overlap)}\u00a0% of the attention stays where it was."
    if not pair.has_box:
        return moved
    before, after = pair.shares
    return rich(
        "The box is <b>{}\u00a0%</b> of the area and takes <b>{}\u00a0%</b> of the attention: ratio <b>{}</b>. The "
        "same place took {} % before: ratio {}. {}",
        percent(100 * pair.area),
        percent(100 * after),
        _times(pair.ratios[1]),
        percent(100 * before),
        _times(pair.ratios[0]),
        moved,
    )


def _view(label: str, pixels: UInt8[np.ndarray, "size size 3"], pair: Pair, box: str) -> Picture:
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((_SIDE, _SIDE))
    image.save(buffer, "JPEG", quality=80, optimize=True)
    told = f"{label}: {pair.image}"
    return Picture(buffer.getvalue(), told, told, label, _frame(pair.coverage, box) if box else None)


def _frame(coverage: Float[np.ndarray, "grid grid"], line: str) -> Markup:
    """The box's outline, in units of patches; its edges lie where the outermost patches are covered in part."""
    (top, bottom), (left, right) = (_extent(coverage.max(axis)) for axis in (1, 0))
    place = [str(each) for each in (left, top, round(right - left, 3), round(bottom - top, 3))]
    rects = [rich('<rect x="{}" y="{}" width="{}" height="{}" class="{}"/>', *place, kind) for kind in ("edge", line)]
    grid = str(coverage.shape[0])
    return rich('<svg viewBox="0 0 {} {}" aria-hidden="true">{}{}</svg>', grid, grid, *rects)


def _extent(covered: Float[np.ndarray, " grid"]) -> tuple[float, float]:
    """From where to where an interval runs that covers these shares of consecutive patches."""
    places = np.flatnonzero(covered)
    first, last = int(places[0]), int(places[-1])
    if first == last:
        return float(first), round(first + float(covered[first]), 3)
    return round(first + 1 - float(covered[first]), 3), round(last + float(covered[last]), 3)
