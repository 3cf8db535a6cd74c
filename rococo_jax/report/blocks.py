"""What a page is made of: tables, charts, tiles, notes, ... as data, which `templates/blocks.html` turns into HTML.

Plain strings are escaped by the templates (Jinja2); only `Markup` is taken as it is. `render_page` makes one
self-contained file, in which a content security policy forbids every load and every script but our own (by its hash).
"""

import base64
import dataclasses
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from rococo_jax.report.collection import Figure
from rococo_jax.report.svg import palette_css
from rococo_jax.report.vocabulary import percent, printable, sort_key
from rococo_jax.version import __version__

Text = str | Markup


def rich(template: str, *values: str) -> Markup:
    """HTML with `{}` for each value, which is escaped.

    >>> rich("lowest <bdi>{}</bdi>", "a<b")
    Markup('lowest <bdi>a&lt;b</bdi>')
    """
    return Markup(template).format(*(value if isinstance(value, Markup) else printable(value) for value in values))


class Block:
    """Base of all blocks; the template has a macro of the class's name for each."""

    @property
    def kind(self) -> str:
        """The name of the class."""
        return type(self).__name__


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        small: lines below, such as the interval.
        value: the number, which columns are sorted by (`sort_key`).
        words: whether it is text that the filter looks at.
        edge: whether a group of columns begins here.
        title: told on demand.
        soft: whether it is greyed: no figure of the model.
        shade: of a heat map, 0 to 9.
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


@dataclasses.dataclass(frozen=True)
class Head:
    """The heading of a column; with `sorted_now`, rows come in its descending order."""

    label: str
    title: str = ""
    edge: bool = False
    words: bool = False
    sorted_now: bool = False


@dataclasses.dataclass(frozen=True)
class Table(Block):
    """A table of figures that scrolls sideways where it is wider than the screen. The first column names the rows.

    Attributes:
        caption: for readers who hear it.
        groups: `(label, columns, title)` of headings above the columns but the first `lead` ones.
        sortable: whether a click on a heading sorts.
        filterable: whether a field above takes rows away by their words.
    """

    caption: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    groups: Sequence[tuple[str, int, str]] = ()
    lead: int = 1
    sortable: bool = False
    filterable: bool = False


@dataclasses.dataclass(frozen=True)
class PlainTable(Block):
    """A table of words: rows of `(name, text, ...)`."""

    rows: Sequence[Sequence[Text]]
    head: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class HeatMap(Block):
    """A table whose cells are shaded; `rows` are `(group, label, cells)`, a row without a group is a mean."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]


@dataclasses.dataclass(frozen=True)
class Scale(Block):
    """The shades of heat maps, from `lowest` to `highest`."""

    lowest: str
    highest: str


@dataclasses.dataclass(frozen=True)
class Tile:
    """One number that matters, with its unit and notes; `ours` says that the formula is this project's."""

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
        """The tiles that are there; None where none is."""
        there = [each for each in tiles if each is not None]
        return cls(there) if there else None


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
    """What a reader must not miss."""

    head: str
    text: str


@dataclasses.dataclass(frozen=True)
class Charts(Block):
    """Charts as `(title, SVG)` in a grid of class `style`, with a legend of `(colour, name)`, names of numbered points,
    and a note below.
    """

    charts: Sequence[tuple[str, Markup]]
    legend: Sequence[tuple[str, str]] = ()
    numbered: Sequence[str] = ()
    style: str = ""
    note: str = ""

    @property
    def columns(self) -> int:
        """How many charts stand in a row of a wide page, so that rows are full where they can be.

        >>> [Charts([("", Markup())] * count).columns for count in (1, 3, 4, 5, 7, 9)]
        [1, 3, 2, 3, 2, 3]
        """
        most, count = 4 if self.style == "scatters" else 3, len(self.charts)
        return count if count <= most else min(range(most, 1, -1), key=lambda columns: -count % columns)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture as bytes of a JPEG; without bytes, its name stands instead."""

    jpeg: bytes | None
    name: str
    alt: str
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a card: what it is, its text, its score."""

    term: str
    text: Text
    score: float | None
    style: str


@dataclasses.dataclass(frozen=True)
class Card:
    """An example: pictures, a head, and lines."""

    head: Text
    pictures: Sequence[Picture]
    lines: Sequence[Line]


@dataclasses.dataclass(frozen=True)
class Cards(Block):
    """Cards side by side."""

    cards: Sequence[Card]


@dataclasses.dataclass(frozen=True)
class Part(Block):
    """A part of the page with a heading of `level` 2 to 5. Blocks that are None are left out.

    `style` is the class of the element ("group", "task", "figure", "panels pair", ...), `anchor` its id.
    """

    title: Text
    blocks: Sequence[Block | None]
    level: int = 4
    style: str = "figure"
    anchor: str = ""


@dataclasses.dataclass(frozen=True)
class Folded(Block):
    """Blocks under a line that unfolds them."""

    summary: str
    blocks: Sequence[Block | None]
    open: bool = False
    style: str = ""


def figure_cell(figure: Figure, edge: bool = False, strong: bool = False) -> Cell:
    """A number with its interval and its spread over seeds below."""
    small = []
    if figure.has_interval:
        # Beside a minus sign a bare dash would read as another one.
        dash = "\u2009–\u2009" if figure.low < 0 else "–"
        small.append(f"{percent(figure.low, figure.digits)}{dash}{percent(figure.high, figure.digits)}")
    if figure.spread is not None:
        small.append(f"sd\u00a0{percent(figure.spread, figure.digits)}")
    return Cell(percent(figure.value, figure.digits), tuple(small), figure.value, edge=edge, strong=strong)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page, which `render_page` and `markdown.render_markdown` write.

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
    """The whole page as HTML."""
    code = asset("page.js")
    return _environment().get_template("page.html").render(
        page=page, version=__version__,
        style=Markup(palette_css() + asset("page.css")), script=Markup(code),
        script_hash=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
    )  # fmt: skip


def render_block(block: Block) -> Markup:
    """One block as HTML."""
    return _environment().get_template("blocks.html").module.show(block)


def asset(name: str) -> str:
    """The text of a file of `assets/`."""
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def data_uri(jpeg: bytes) -> str:
    """A JPEG inside a `data:` address."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def jpeg_size(jpeg: bytes | None) -> tuple[int, int]:
    """Width and height of a JPEG, from its frame header; (0, 0) where there is none."""
    place, jpeg = 2, jpeg or b""
    while place + 9 <= len(jpeg) and jpeg[place] == 0xFF:
        marker, length = jpeg[place + 1], int.from_bytes(jpeg[place + 2 : place + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(jpeg[place + 7 : place + 9]), int.from_bytes(jpeg[place + 5 : place + 7])
        place += 2 + length
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
