"""Clean against altered: a panel for each altered variant, a point for each model, a line where nothing is lost."""

from collections.abc import Sequence

from rococo_jax.report.charts import Scale, common_scale
from rococo_jax.report.markup import Markup, element, isolated, join
from rococo_jax.report.scores import Figure, Run, altered_variants, by_clean_recall
from rococo_jax.report.vocabulary import CLEAN, percent, variant_label

_SIDE, _LEFT, _TOP, _BELOW = 260, 34, 8, 36  # px
_MOST_PANELS = 8

SCATTER_CAPTION = (
    "R@1 on the clean gallery (across) and on the altered one (up), in per cent. On the dashed line nothing is lost; "
    "the further below it, the more. Lines through a point are its 95 % intervals; the numbered names are below."
)


def scatter_panels(runs: Sequence[Run], task: str) -> Markup | None:
    """The panels and the names of the numbered points; None with fewer than two models or without altered variants."""
    runs = by_clean_recall(runs, task)
    points = {
        variant: [(place, run, clean, altered) for place, run, clean, altered in _points(runs, task, variant)]
        for variant in altered_variants(runs, task, "r1")[:_MOST_PANELS]
    }
    points = {variant: found for variant, found in points.items() if len(found) > 1}
    if not points:
        return None
    scale = common_scale([figure for found in points.values() for each in found for figure in each[2:]])
    drawn = [
        element("div", element("h5", variant_label(variant)), _panel(variant, found, scale), class_="panel")
        for variant, found in points.items()
    ]
    names = element("ol", [element("li", isolated(run.label)) for run in runs], class_="numbered")
    return join(element("div", drawn, class_="panels scatters"), names)


def _points(runs: Sequence[Run], task: str, variant: str) -> list[tuple[int, Run, Figure, Figure]]:
    pairs = [(run.figure(task, CLEAN, "r1"), run.figure(task, variant, "r1")) for run in runs]
    return [
        (place, run, clean, altered)
        for place, (run, (clean, altered)) in enumerate(zip(runs, pairs, strict=True), 1)
        if clean.value is not None and altered.value is not None
    ]


def _panel(variant: str, points: Sequence[tuple[int, Run, Figure, Figure]], scale: Scale) -> Markup:
    def x(value: float) -> float:
        return round(_LEFT + (value - scale.low) / (scale.high - scale.low) * _SIDE, 1)

    def y(value: float) -> float:
        return round(_TOP + _SIDE - (value - scale.low) / (scale.high - scale.low) * _SIDE, 1)

    left, right, top, bottom = x(scale.low), x(scale.high), y(scale.high), y(scale.low)
    marks = [
        join(
            element("path", d=f"M{x(tick)} {top}V{bottom}M{left} {y(tick)}H{right}", class_="grid"),
            element("text", f"{tick:g}", x=x(tick), y=bottom + 15, class_="tick"),
            element("text", f"{tick:g}", x=left - 6, y=y(tick), dy="0.35em", class_="tick side"),
        )
        for tick in scale.ticks
    ]
    diagonal = element("path", d=f"M{left} {bottom}L{right} {top}", class_="nothing-lost")
    axis = element("text", "clean R@1", x=(left + right) / 2, y=bottom + 30, class_="tick")
    drawn = [_point(place, run, clean, altered, x, y) for place, run, clean, altered in points]
    width, height = _LEFT + _SIDE + 24, _TOP + _SIDE + _BELOW
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    label = f"Clean against altered R@1: {variant_label(variant)}"
    return element("svg", marks, diagonal, axis, drawn, **size, class_="chart", role="img", aria_label=label)


def _point(place: int, run: Run, clean: Figure, altered: Figure, x, y) -> Markup:
    across, up = x(clean.value), y(altered.value)
    path = ""
    if clean.has_interval:
        path += f"M{x(clean.low)} {up}H{x(clean.high)}"
    if altered.has_interval:
        path += f"M{across} {y(altered.low)}V{y(altered.high)}"
    told = f"{run.label}: clean {percent(clean.value)} %, altered {percent(altered.value)} %"
    return element(
        "g",
        element("title", told),
        element("path", d=path, class_="reach") if path else None,
        element("circle", cx=across, cy=up, r=4, class_="dot"),
        element("text", str(place), x=across + 6, y=up - 6, class_="point-name"),
    )
