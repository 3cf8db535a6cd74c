"""Canvas of a chart: a Matplotlib figure measured in px, and its SVG.

In the SVG each colour of `PALETTE` is a CSS variable, so that one drawing is readable on light and dark screens and on
paper. Text stays text. The same chart always gives the same bytes.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rococo_jax.report.vocabulary import printable

# Name -> (light, dark). The colours of curves are distinguishable with colour blindness (after Okabe and Ito).
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
# Definitions of markers (their dots become circles), clips and line joins are removed. Pages have their own font.
_REMOVED = re.compile(r"<defs>.*?</defs>|<!--.*?-->|\s+(?=<)| font-family: 'DejaVu Sans';", re.DOTALL)
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
    "axes.labelsize": 12,
    "axes.labelcolor": PALETTE["soft"][0],
    "axes.unicode_minus": True,
    "grid.color": PALETTE["grid"][0],
    "grid.linewidth": 1,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "xtick.color": PALETTE["soft"][0],
    "ytick.color": PALETTE["soft"][0],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "lines.solid_capstyle": "butt",
}


def palette_css(selector: str = ":root") -> str:
    """Return the CSS variables of charts, with dark values on dark screens."""
    light, dark = (" ".join(f"--{name}: {colours[side]};" for name, colours in PALETTE.items()) for side in (0, 1))
    return f"{selector} {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ {selector} {{ {dark} }} }}\n"


def colour_of(name: str) -> str:
    """Return the light value of a colour, with which Matplotlib draws."""
    return PALETTE[name][0]


class Chart:
    """Matplotlib figure measured in px from the top left, with tooltips of its marks."""

    def __init__(self, name: str, width: int, height: int):
        self.name, self.width, self.height, self.titles = printable(name), width, height, []
        self.drawing = Figure(figsize=(width / 72, height / 72), dpi=72)
        FigureCanvasSVG(self.drawing)
        self.drawing.patch.set_visible(False)

    def axes(
        self, left: float | int, top: float | int, width: float | int, height: float | int, behind: bool = False
    ) -> Axes:
        """Add axes over a part of the chart, without tick marks and grid if they are `behind` other axes."""
        box = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        axes = self.drawing.add_axes(box)
        if behind:
            axes.set_axis_off()
        return axes

    def title(self, tooltip: str) -> str:
        """Register a tooltip and return the id of its mark."""
        self.titles.append(printable(tooltip))
        return f"mark-{len(self.titles) - 1}"

    def markup(self) -> Markup:
        """Return the chart for a page, whose style sheet contains the palette."""
        return Markup(self._svg())

    def file(self) -> str:
        """Return the chart as a file with its own style, and plain colours for programs without CSS variables."""
        style = palette_css(".chart") + ".chart { font-family: system-ui, sans-serif; background: var(--paper); }"
        head = f'xmlns="http://www.w3.org/2000/svg" class="chart"><style>{style}</style>'
        return self._svg(plain=True).replace('class="chart">', head, 1) + "\n"

    def _svg(self, plain: bool = False) -> str:
        """Return Matplotlib's SVG without names and references; dots are circles, and marks have tooltips."""
        buffer = io.StringIO()
        for text in self.drawing.findobj(matplotlib.text.Text):
            text.set_text(" ".join(printable(text.get_text()).split("\n")))
        with warnings.catch_warnings():
            # Browsers have glyphs that the font used for measuring does not have.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            self.drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        source = buffer.getvalue()
        radius = dict(re.findall(r'<path id="(m\w+)" d="M 0 (\S+)', source))
        source = _REMOVED.sub("", source[source.index("<g ") :])
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        name = escape(self.name)
        # In a page, letters keep their size on a narrow screen: the chart scrolls instead of shrinking.
        min_width = "" if plain else f' style="min-width: {self.width}px"'
        head = f'<svg {size} role="img" aria-label="{name}" class="chart"{min_width}><title>{name}</title>'
        return head + re.sub("<[^/][^>]*>", lambda tag: self._tag(tag[0], radius, plain), source)

    def _tag(self, tag: str, radius: Mapping[str, str], plain: bool) -> str:
        """Return an opening tag with numbers of two decimals, colours as CSS variables, and the tooltip of a mark."""
        mark = re.search(r'id="mark-(\d+)"', tag)
        if dot := re.match(r'<use xlink:href="#(\w+)"', tag):
            tag = tag.replace(dot[0], f'<circle r="{radius[dot[1]]}"').replace(' x="', ' cx="').replace(' y="', ' cy="')
        tag = re.sub(r' (id|clip-path)="[^"]*"', "", tag)
        tag = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
        tag = re.sub(r"\b(fill|stroke): (#[0-9a-f]{6})", lambda colour: _variable(colour, plain), tag)
        return tag + (f"<title>{escape(self.titles[int(mark[1])])}</title>" if mark else "")


def _variable(colour: re.Match, plain: bool) -> str:
    """Return a colour as a CSS variable; with `plain`, preceded by the colour itself."""
    name = _NAMES.get(colour[2])
    if name is None:
        return colour[0]
    return f"{colour[0]}; {colour[1]}: var(--{name})" if plain else f"{colour[1]}: var(--{name})"


@contextmanager
def chart_of(name: str, width: int, height: int) -> Iterator[Chart]:
    """Yield an empty chart of the given size in px, under Matplotlib's defaults and our style."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Chart(name, width, height)
