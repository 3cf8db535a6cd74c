"""A chart's canvas: a Matplotlib figure measured in px, and the plain SVG that is made of it.

In the SVG each colour of `PALETTE` is a CSS variable, so that one drawing is readable on light and dark screens and on
paper. Text stays text. Equal charts give equal bytes.
"""

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rococo_jax.report.vocabulary import printable

# Name -> (light, dark). Curves are told apart by most eyes (after Okabe and Ito).
PALETTE = {
    "ink": ("#1d2024", "#e6e6e2"),
    "soft": ("#5a6068", "#a0a6ad"),
    "grid": ("#e6e6e0", "#2b2f34"),
    "paper": ("#fdfdfb", "#16181b"),
    "drop": ("#5f93a1", "#5b94a3"),
    "false-recall": ("#d9744b", "#cf683d"),
    "own": ("#2f6fa8", "#5c9bd3"),
    "own-altered": ("#c2481b", "#e2703f"),
    "other-altered": ("#eeb34b", "#f2c46d"),
    "other": ("#b9bdc2", "#555b63"),
    "on-own": ("#ffffff", "#0d1a26"),
    "on-own-altered": ("#fffffe", "#210b02"),
    "on-other-altered": ("#2b1d00", "#2b1d01"),
    "on-other": ("#1d2025", "#f0f0ee"),
    "curve-0": ("#0072b2", "#5aaee0"),
    "curve-1": ("#c8501a", "#f0854f"),
    "curve-2": ("#00805c", "#35b891"),
    "curve-3": ("#a3447d", "#dc86bb"),
    "curve-4": ("#8a6d00", "#d3b13a"),
    "curve-5": ("#3a8fc4", "#8cc6ee"),
    "curve-6": ("#5b5b5b", "#b0b0b0"),
    "curve-7": ("#7a3fb0", "#b58be0"),
}
_NAMES = {light: name for name, (light, _) in PALETTE.items()}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rococo_jax",
    "text.parse_math": False,
    "text.color": PALETTE["ink"][0],
    "font.size": 12.5,
    "font.family": "DejaVu Sans",
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0,
    "axes.labelsize": 11,
    "axes.labelcolor": PALETTE["soft"][0],
    "axes.unicode_minus": True,
    "grid.color": PALETTE["grid"][0],
    "grid.linewidth": 1,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.color": PALETTE["soft"][0],
    "ytick.color": PALETTE["soft"][0],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "lines.solid_capstyle": "butt",
}


def palette_css(selector: str = ":root") -> str:
    """The variables that charts use, light and, on dark screens, dark."""
    light, dark = (" ".join(f"--{name}: {colours[side]};" for name, colours in PALETTE.items()) for side in (0, 1))
    return f"{selector} {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ {selector} {{ {dark} }} }}\n"


def colour_of(name: str) -> str:
    """What Matplotlib draws with: the light one."""
    return PALETTE[name][0]


class Chart:
    """A Matplotlib figure measured in px from the top left, and the titles of its marks."""

    def __init__(self, name: str, width: int, height: int):
        self.name, self.width, self.height, self.titles = printable(name), width, height, []
        self.drawing = Figure(figsize=(width / 72, height / 72), dpi=72)
        FigureCanvasSVG(self.drawing)
        self.drawing.patch.set_visible(False)

    def axes(
        self, left: float | int, top: float | int, width: float | int, height: float | int, behind: bool = False
    ) -> Axes:
        """Axes over that part of the chart; without marks and grid where they are `behind` others."""
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        axes = self.drawing.add_axes(box)
        if behind:
            axes.set_axis_off()
        return axes

    def title(self, told: str) -> str:
        """The id of a mark with that title."""
        self.titles.append(printable(told))
        return f"mark-{len(self.titles) - 1}"

    def markup(self) -> Markup:
        """The chart inside a page, whose style sheet holds the palette."""
        return Markup(ET.tostring(self._tree(), encoding="unicode"))

    def file(self) -> str:
        """The chart as a file that brings its style along, with plain colours for programs without CSS variables."""
        root = self._tree(plain=True)
        root.set("xmlns", "http://www.w3.org/2000/svg")
        style = ET.Element("style")
        style.text = palette_css(".chart") + ".chart { font-family: system-ui, sans-serif; background: var(--paper); }"
        root.insert(0, style)
        return ET.tostring(root, encoding="unicode") + "\n"

    def _tree(self, plain: bool = False) -> ET.Element:
        buffer = io.StringIO()
        for text in self.drawing.findobj(matplotlib.text.Text):
            text.set_text(" ".join(printable(text.get_text()).split("\n")))
        with warnings.catch_warnings():
            # Readers' browsers have glyphs that the font for measuring lacks.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            self.drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        root = _plain_svg(buffer.getvalue(), self)
        for element in root.iter():
            if "style" in element.attrib:
                element.set("style", _variables(element.get("style"), plain))
        return root


@contextmanager
def chart_of(name: str, width: int, height: int) -> Iterator[Chart]:
    """An empty chart of so many px, under Matplotlib's own defaults and our style."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Chart(name, width, height)


def _plain_svg(source: str, chart: Chart) -> ET.Element:
    """Matplotlib's SVG without namespaces, metadata, clips, ids and font names; dots become circles with titles."""
    root = ET.fromstring(source)
    markers: dict[str, float] = {}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        element.text = element.text if element.tag == "text" else None
        if element.tag == "path":
            element.set("d", _compact(element.get("d", "")))
            if element.get("id", "").startswith("m"):
                markers[element.get("id")] = abs(float(element.get("d").split()[2]))
    for parent in list(root.iter()):
        kept = []
        for child in parent:
            if child.tag == "use":
                child = _circle(child, markers)
            if child.tag in ("metadata", "defs", "clipPath"):
                continue
            mark = re.fullmatch(r"mark-(\d+)", child.get("id", ""))
            if mark:
                title = ET.Element("title")
                title.text = chart.titles[int(mark[1])]
                child.insert(0, title)
            kept.append(child)
        parent[:] = kept
    for element in root.iter():
        element.attrib.pop("id", None)
        element.attrib.pop("clip-path", None)
        if element.tag == "text":
            element.attrib.pop("transform", None)
            for name in ("x", "y"):
                element.set(name, _compact(element.get(name)))
            style = re.sub(
                r"font: (?:(\d+|bold) )?([\d.]+px)[^;]*", r"font-weight: \1; font-size: \2", element.get("style")
            )
            style = re.sub(r"font-weight: ;|font-family: [^;]*(; |$)", "", style).strip("; ")
            element.set("style", style)
    root.attrib.clear()
    root.attrib |= {"viewBox": f"0 0 {chart.width} {chart.height}", "width": str(chart.width), "role": "img"}
    root.attrib |= {"height": str(chart.height), "class": "chart", "aria-label": chart.name}
    title = ET.Element("title")
    title.text = chart.name
    root.insert(0, title)
    _drop_empty_groups(root)
    return root


def _circle(use: ET.Element, markers: dict[str, float]) -> ET.Element:
    target = next(value for name, value in use.attrib.items() if name.endswith("href"))
    place = {"cx": _compact(use.get("x")), "cy": _compact(use.get("y")), "r": f"{markers[target[1:]]:g}"}
    return ET.Element("circle", place | {"style": use.get("style", "")})


def _drop_empty_groups(element: ET.Element) -> None:
    """Groups that hold nothing are dropped; those that say nothing give way to what they hold."""
    children = []
    for child in element:
        _drop_empty_groups(child)
        plain = child.tag == "g" and not child.attrib and (len(child) == 0 or child[0].tag != "title")
        children.extend(child if plain else [child])
    element[:] = children


def _compact(numbers: str) -> str:
    """Numbers with at most two decimals, on one line."""
    return re.sub(
        r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), " ".join(numbers.split())
    )


def _variables(style: str, plain: bool) -> str:
    """Colours as CSS variables; with `plain`, the colour itself before each."""

    def variable(found: re.Match) -> str:
        name = _NAMES.get(found[2])
        if name is None:
            return found[0]
        return f"{found[0]}; {found[1]}: var(--{name})" if plain else f"{found[1]}: var(--{name})"

    return re.sub(r"\b(fill|stroke): (#[0-9a-f]{6})", variable, style)
