"""Page blocks (tables, charts, tiles, notes, ...) as data, which `templates/blocks.html` turns into HTML.

Plain strings are escaped by the templates (Jinja2); only `Markup` is inserted unchanged. `render_page` returns one
self-contained file. Its content security policy forbids every load and every script but our own (by its hash).
"""

import base64
import dataclasses
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from rococo_jax.data.pictures import encoded_size
from rococo_jax.errors import InputError
from rococo_jax.report.collection import Estimate
from rococo_jax.report.svg import palette_css
from rococo_jax.report.vocabulary import percent, printable, sort_key
from rococo_jax.version import __version__

Text = str | Markup
# A shorter table can be read without a filter.
_FILTERED_ROWS = 10


def rich(template: str, *values: str) -> Markup:
    """Insert escaped values at each `{}` of a piece of HTML.

    >>> rich("lowest <bdi>{}</bdi>", "a<b")
    Markup('lowest <bdi>a&lt;b</bdi>')
    """
    return Markup(template).format(*(value if isinstance(value, Markup) else printable(value) for value in values))


class Block:
    """Base class of all blocks; the template has one macro for each class name."""

    @property
    def kind(self) -> str:
        """The name of the class."""
        return type(self).__name__


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        small: lines below the text, such as the interval.
        value: the number by which columns are sorted (`sort_key`).
        words: whether the cell contains words, which the filter searches.
        edge: whether a group of columns begins here.
        title: tooltip.
        soft: whether the cell is greyed, as a number that is not the model's own.
        shade: shade of a heat map, 0 to 9.
        numbers: what a file has beside the value, by the end of its column's name: `low`, `high`, `sd`, `n`, ...
    """

    text: Text
    small: tuple[str, ...] = ()
    value: float | int | None = None
    words: bool = False
    edge: bool = False
    strong: bool = False
    title: str = ""
    shade: int | None = None
    soft: bool = False
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Head:
    """Heading of a column.

    Attributes:
        title: tooltip.
        edge: whether a group of columns begins here.
        words: whether the cells contain words.
        sorted_now: whether the rows are in descending order of the column.
        small: lines below the label.
        name: name of the column in files; the label by default.
    """

    label: str
    title: str = ""
    edge: bool = False
    words: bool = False
    sorted_now: bool = False
    small: tuple[str, ...] = ()
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Table(Block):
    """Table of numbers that scrolls sideways where it is wider than the screen. The first column names the rows.

    Attributes:
        caption: title for screen readers.
        groups: `(label, columns, title)` of the headings above the columns, after the first `lead` columns.
        sortable: whether a click on a heading sorts the rows.
        filterable: whether a long table can be filtered by the words of its rows.
        references: rows below the table that are not of models and stay there.
        notes: sentences on the table, which LaTeX has in a footnote and the page in a note of its own.
    """

    caption: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int, str]] = ()
    lead: int = 1
    sortable: bool = False
    filterable: bool = False
    references: Sequence[Sequence[Cell]] = ()
    notes: Sequence[str] = ()

    @property
    def has_filter(self) -> bool:
        """Whether the page shows a filter above the table."""
        return self.filterable and len(self.rows) >= _FILTERED_ROWS


@dataclasses.dataclass(frozen=True)
class PlainTable(Block):
    """Table of words: rows of `(name, text, ...)`."""

    rows: Sequence[Sequence[Text]]
    head: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class HeatMap(Block):
    """Table with shaded cells; `rows` are `(group, label, cells)`, and a row without a group is a mean."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]


@dataclasses.dataclass(frozen=True)
class Scale(Block):
    """Legend of the shades of heat maps, from `lowest` to `highest`."""

    lowest: str
    highest: str


@dataclasses.dataclass(frozen=True)
class Tile:
    """Important number with its unit and notes; `ours` marks a formula that this project defined."""

    label: str
    number: Text
    notes: Sequence[Text]
    ours: bool = False


@dataclasses.dataclass(frozen=True)
class Tiles(Block):
    """Tiles side by side."""

    tiles: Sequence[Tile]

    @classmethod
    def of(cls, tiles: Sequence[Tile | None]) -> "Tiles | None":
        """Return the tiles that are not None; None if there are none."""
        present = [each for each in tiles if each is not None]
        return cls(present) if present else None


@dataclasses.dataclass(frozen=True)
class Terms(Block):
    """Terms with their explanations; `style` is "setting" for a row of facts or "reading" for a list."""

    entries: Sequence[tuple[Text, Text]]
    style: str = "reading"


@dataclasses.dataclass(frozen=True)
class Note(Block):
    """A sentence or two; `style` is "note", "question" or "verdict"."""

    text: Text
    style: str = "note"


@dataclasses.dataclass(frozen=True)
class Notes(Block):
    """A list of sentences."""

    lines: Sequence[Text]


@dataclasses.dataclass(frozen=True)
class Alert(Block):
    """Warning in a box."""

    head: str
    text: str


@dataclasses.dataclass(frozen=True)
class Charts(Block):
    """Charts as `(title, SVG)` in a grid of class `style`.

    They have a legend of `(colour, name)`, names of numbered points, and a note below.
    """

    charts: Sequence[tuple[str, Markup]]
    legend: Sequence[tuple[str, str]] = ()
    numbered: Sequence[str] = ()
    style: str = ""
    note: str = ""

    @property
    def columns(self) -> int:
        """Number of charts in a row of a wide page, chosen so that rows are full where possible.

        >>> [Charts([("", Markup())] * count).columns for count in (1, 3, 4, 5, 7, 9)]
        [1, 3, 2, 3, 2, 3]
        """
        count = len(self.charts)
        return count if count <= 3 else min((3, 2), key=lambda columns: -count % columns)


@dataclasses.dataclass(frozen=True)
class Picture:
    """Picture as the bytes of a JPEG; without bytes, the page shows its name."""

    jpeg: bytes | None
    name: str
    alt: str
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """Line of a card: a term, its text and its score."""

    term: str
    text: Text
    score: float | None
    style: str


@dataclasses.dataclass(frozen=True)
class Card:
    """Example with pictures, a heading and lines."""

    head: Text
    pictures: Sequence[Picture]
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class Cards(Block):
    """Cards side by side."""

    cards: Sequence[Card]


@dataclasses.dataclass(frozen=True)
class Part(Block):
    """A part of the page under a heading, one level below the part that contains it; `None` blocks are skipped.

    `style` is the class of the element ("group", "task", "figure", "panels pair", ...), `anchor` its id.
    """

    title: Text
    blocks: Sequence[Block | None]
    style: str = "figure"
    anchor: str = ""


@dataclasses.dataclass(frozen=True)
class Folded(Block):
    """Blocks under a summary line that unfolds them."""

    summary: str
    blocks: Sequence[Block | None]
    open: bool = False
    style: str = ""


def estimate_cell(estimate: Estimate) -> Cell:
    """Return a cell with a number and, below it, its interval and its spread over seeds."""
    small = []
    if estimate.has_interval:
        # Beside a minus sign a bare dash would read as another one.
        dash = "\u2009–\u2009" if estimate.low < 0 else "–"
        small.append(f"{percent(estimate.low, estimate.digits)}{dash}{percent(estimate.high, estimate.digits)}")
    if estimate.spread is not None:
        small.append(f"sd\u00a0{percent(estimate.spread, estimate.digits)}")
    numbers = {"low": estimate.low, "high": estimate.high, "sd": estimate.spread}
    numbers = {name: number for name, number in numbers.items() if number is not None}
    text = percent(estimate.value, estimate.digits)
    return Cell(text, tuple(small), estimate.value, numbers=numbers)


@dataclasses.dataclass(frozen=True)
class Page:
    """Page that `render_page` writes as HTML and `markdown.render_markdown` as Markdown.

    Attributes:
        command: the command that made the page.
        lede: what the page is about.
        after: what follows the main content.
        links: `(text, address)` of the table of contents.
    """

    title: str
    command: str
    lede: str
    blocks: Sequence[Block | None]
    after: Sequence[Block | None] = ()
    links: Sequence[tuple[str, str]] = ()


def render_page(page: Page) -> str:
    """Return the page as HTML."""
    return render_with_script("page", title=page.title, command=page.command, page=page)


def render_with_script(name: str, **values: Any) -> str:
    """Return a template in the frame of all pages, with their style and the script of the template's name.

    Args:
        values: `title` and `command` of the page, and what the template itself needs.
    """
    code = asset(f"{name}.js")
    script_hash = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    style = Markup(palette_css() + asset("page.css"))
    template = _environment().get_template(f"{name}.html")
    return template.render(**values, version=__version__, style=style, script=Markup(code), script_hash=script_hash)


def render_block(block: Block) -> Markup:
    """Return one block as HTML, its headings below those of the page's groups."""
    return _environment().get_template("blocks.html").module.show(block, 3)


def draw(macro: str, *arguments: Any) -> Markup:
    """Return a chart of `templates/bars.html`."""
    return Markup(getattr(_environment().get_template("bars.html").module, macro)(*arguments))


def asset(name: str) -> str:
    """Return the text of a file of `assets/`."""
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def data_uri(jpeg: bytes) -> str:
    """Return a `data:` address that contains a JPEG."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def jpeg_size(jpeg: bytes | None) -> tuple[int, int]:
    """Return width and height of a JPEG; (0, 0) if it is absent or damaged."""
    try:
        return encoded_size(jpeg or b"", "picture of the page")
    except InputError:
        return 0, 0


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters |= {"data_uri": data_uri, "jpeg_size": jpeg_size, "sort_key": sort_key}
    environment.filters["score"] = lambda score: f"{score:.3f}".replace("-", "−")
    return environment
