"""The page of `rococo attention`: each image before and after mixing, and where the model looks in both."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.report.archive import small_jpeg
from rococo_jax.report.document import document
from rococo_jax.report.markup import Markup, element, isolated, join
from rococo_jax.report.vocabulary import percent
from rococo_jax.storage import atomic_write
from rococo_jax.studies.attention.definitions import how_to_read
from rococo_jax.studies.attention.maps import vision_spec, whose_attention
from rococo_jax.studies.attention.overlay import overlay, top_of_maps
from rococo_jax.studies.attention.pairs import Pair

_SIDE = 448  # px, at most; small images are enlarged by the browser alone


def write_attention_page(
    out: str | Path, encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair], captions: dict[str, str] | None = None
) -> Path:
    """Writes the page, one self-contained file, by rename. Equal pairs give equal bytes.

    Args:
        out: its name ends in `.html` or `.htm`.
        encoder: the model.
        plan: how the images were mixed.
        pairs: what to show; not empty.
        captions: a caption for each image, where there are any.

    Raises:
        InputError: `out` is no page's name.
    """
    path = check_page_name(out)
    html = render_attention_page(encoder, plan, pairs, captions or {})
    with atomic_write(path) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="replace")
    return path


def check_page_name(out: str | Path) -> Path:
    """`out` as a path.

    Raises:
        InputError: it does not end in `.html` or `.htm`.
    """
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(out, "--out", f"a name that ends in {path.suffix!r}", "a name that ends in .html")
    return path


def render_attention_page(encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair], captions: dict[str, str]) -> str:
    """The page as HTML."""
    title = f"Where does {encoder.name} look?"
    shown = [_pair(pair, number, captions.get(pair.image)) for number, pair in enumerate(pairs, 1)]
    intro = element("section", _setting(encoder, plan, pairs), _tiles(pairs), _legend(), class_="group")
    body = join(_masthead(title), element("main", intro, shown, id="main"), how_to_read(pairs))
    return document(title, body, "rococo attention", ("page.css", "attention.css"), script=None)


def _masthead(title: str) -> Markup:
    lede = "The attention of an image tower over its patches, before and after another image is mixed in."
    return element(
        "header",
        element("p", "rococo attention", class_="kicker"),
        element("h1", element("bdi", title)),
        element("p", lede, class_="lede"),
    )


def _setting(encoder: Encoder, plan: MixingPlan, pairs: Sequence[Pair]) -> Markup:
    spec = vision_spec(encoder)
    mixing = f"{plan.variant}, seed {plan.seed}, protocol {plan.protocol}"
    facts = (
        ("Model", isolated(encoder.name)),
        ("Patches", f"{spec.grid} × {spec.grid} of {spec.patch_size} px"),
        ("Mixing", mixing),
        ("Images", f"{len(pairs)} of {len(plan.images):,}"),
        ("Attention", whose_attention(spec)),
    )
    return element("dl", [element("div", element("dt", a), element("dd", b)) for a, b in facts], class_="setting")


def _tiles(pairs: Sequence[Pair]) -> Markup:
    """The few numbers that matter, as means over the images shown."""
    boxed = [pair for pair in pairs if pair.has_box]
    tiles = []
    if boxed:
        ratios = np.array([pair.ratios for pair in boxed])
        shares = 100 * np.array([[*pair.shares, pair.area] for pair in boxed]).mean(0)
        more = int((ratios[:, 1] > ratios[:, 0]).sum())
        tiles += [
            _tile("Ratio, mixed-in box", _times(ratios[:, 1].mean()), f"mean over {len(boxed)} images"),
            _tile(
                "Ratio, same place before", _times(ratios[:, 0].mean()), f"more with the box: {more} of {len(boxed)}"
            ),
            _tile(
                "Share on the box",
                _with_unit(shares[1]),
                f"{percent(shares[0])} % before; {percent(shares[2])} % of the area",
            ),
        ]
    overlaps = [100 * pair.overlap for pair in pairs]
    spread = f"{percent(min(overlaps))} to {percent(max(overlaps))} %"
    tiles.append(_tile("Overlap, before and after", _with_unit(float(np.mean(overlaps))), f"mean; {spread}"))
    return element("div", tiles, class_="tiles")


def _tile(label: str, number: Markup | str, note: str) -> Markup:
    return element(
        "div",
        element("h4", label),
        element("p", number, class_="number"),
        element("p", note, class_="note"),
        class_="tile",
    )


def _with_unit(value: float) -> Markup:
    return join(percent(value), element("span", " %", class_="unit"))


def _times(value: float) -> str:
    return f"{value:.2f}"


def _legend() -> Markup:
    glow = element("span", class_="glow", aria_hidden="true")
    note = "Both maps of an image share one scale, whose end is said with each. So few images make no statistic."
    return join(element("p", "no attention ", glow, " most", class_="scale"), element("p", note, class_="note"))


def _pair(pair: Pair, number: int, caption: str | None) -> Markup:
    top = top_of_maps(pair.original_map, pair.mixed_map)
    boxed = pair.has_box
    views = (
        ("Original", pair.original, None),
        ("Attention on the original", overlay(pair.original, pair.original_map, top), "ghost" if boxed else None),
        ("Mixed", pair.mixed, "line" if boxed else None),
        ("Attention on the mixed image", overlay(pair.mixed, pair.mixed_map, top), "line" if boxed else None),
    )
    kept = f", {percent(100 * pair.on_class_token[0])} and {percent(100 * pair.on_class_token[1])} % stay on the class "
    kept = kept + "token" if max(pair.on_class_token) > 0 else ""
    return element(
        "article",
        element("h3", isolated(caption or pair.image)),
        element(
            "p", isolated(pair.image) if caption else None, " with ", isolated(pair.partner), " mixed in", class_="note"
        ),
        element("div", [_view(label, pixels, pair, box) for label, pixels, box in views], class_="four"),
        element("p", _verdict(pair), class_="verdict"),
        element("p", f"Brightest from {top:.1f} times the average patch{kept}.", class_="note"),
        class_="pair-of",
        id=f"image-{number}",
    )


def _verdict(pair: Pair) -> list:
    moved = [f"{percent(100 * pair.overlap)}\u00a0% of the attention stays where it was."]
    if not pair.has_box:
        return moved
    before, after = pair.shares
    return [
        "The box is ",
        element("b", f"{percent(100 * pair.area)}\u00a0%"),
        " of the area and takes ",
        element("b", f"{percent(100 * after)}\u00a0%"),
        " of the attention: ratio ",
        element("b", _times(pair.ratios[1])),
        f". The same place took {percent(100 * before)} % before: ratio {_times(pair.ratios[0])}. ",
        *moved,
    ]


def _view(label: str, pixels: UInt8[np.ndarray, "size size 3"], pair: Pair, box: str | None) -> Markup:
    picture = small_jpeg(pixels, _SIDE)
    told = f"{label}: {pair.image}"
    image = element("img", src=picture.uri, width=picture.width, height=picture.height, alt=told, title=told)
    frame = _frame(pair.coverage, box) if box is not None else None
    return element("figure", element("div", image, frame, class_="view"), element("figcaption", label))


def _frame(coverage: Float[np.ndarray, "grid grid"], kind: str) -> Markup:
    """The box's outline, in units of patches; its edges lie where the outermost patches are covered in part."""
    (top, bottom), (left, right) = (_extent(coverage.max(axis)) for axis in (1, 0))
    place = {"x": left, "y": top, "width": round(right - left, 3), "height": round(bottom - top, 3)}
    grid = coverage.shape[0]
    classes = ("edge", "line ghost" if kind == "ghost" else "line")
    shown = [element("rect", **place, class_=each) for each in classes]
    return element("svg", shown, viewBox=f"0 0 {grid} {grid}", aria_hidden="true")


def _extent(covered: Float[np.ndarray, " grid"]) -> tuple[float, float]:
    """From where to where an interval runs that covers these shares of consecutive patches."""
    places = np.flatnonzero(covered)
    first, last = int(places[0]), int(places[-1])
    if first == last:
        return float(first), round(first + float(covered[first]), 3)
    return round(first + 1 - float(covered[first]), 3), round(last + float(covered[last]), 3)
