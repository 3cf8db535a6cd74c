"""Write a page as HTML (by `templates/blocks.html`) and as Markdown (for a README, an issue or a terminal).

The Markdown omits charts, whose numbers are also in tables, pictures and examples.

Tables are also printed on the terminal, and are records for CSV, JSON and pandas; `latex.latex_table` renders LaTeX.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rococo_jax.evaluation.summary import new_table
from rococo_jax.report.blocks import (
    Alert,
    Block,
    Cell,
    Folded,
    HeatMap,
    Note,
    Notes,
    Page,
    Part,
    PlainTable,
    Table,
    Terms,
    Text,
    Tiles,
    render_page,
)
from rococo_jax.report.vocabulary import printable
from rococo_jax.storage import write_text

_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def write_page(path: Path, page: Page) -> Path:
    """Write the page and, with the suffix `.md`, its Markdown, each by rename; return the page's path."""
    write_text(path.with_suffix(".md"), render_markdown(page))
    return write_text(path, render_page(page))


def render_markdown(page: Page) -> str:
    """Return the page as Markdown."""
    lines = [f"# {escaped(page.title)}", "", escaped(page.lede), *markdown_lines([*page.blocks, *page.after])]
    return "\n".join(lines) + "\n"


def markdown_lines(blocks: Iterable[Block | None], level: int = 2) -> list[str]:
    """Return the blocks line by line, with an empty line before each.

    There are none where only notes on omitted blocks would remain.

    Args:
        level: of the outermost headings.
    """
    pieces = [(block, _lines(block, level)) for block in blocks if block is not None]
    content = [lines for block, lines in pieces if not isinstance(block, Note)]
    return [line for _, lines in pieces for line in lines] if any(content) or not content else []


def _lines(block: Block, level: int) -> list[str]:
    match block:
        case Part():
            inside = markdown_lines(block.blocks, level + 1 if block.title else level)
            return ["", f"{'#' * level} {escaped(block.title)}", *inside] if inside and block.title else inside
        case Folded():
            inside = markdown_lines(block.blocks, level)
            head = f"<details><summary>{escaped(block.summary)}</summary>"
            return ["", head, *inside, "", "</details>"] if inside else []
        case Note():
            return ["", escaped(block.text)]
        case Alert():
            return ["", f"**{escaped(block.head)}** {escaped(block.text)}"]
        case Notes():
            return ["", *(f"- {escaped(line)}" for line in block.lines)]
        case Terms():
            return ["", *(f"- {escaped(term)}: {escaped(text)}" for term, text in block.entries)]
        case Tiles():
            return ["", *(f"- {escaped(tile.label)}: {_with_small(tile.number, tile.notes)}" for tile in block.tiles)]
        case PlainTable(head=()):
            return ["", *(f"- {escaped(name)}: {', '.join(map(escaped, texts))}" for name, *texts in block.rows)]
        case PlainTable():
            return table_lines([(name, True) for name in block.head], [map(escaped, row) for row in block.rows])
        case HeatMap():
            heads = [(name, place == 0) for place, name in enumerate(block.heads)]
            return table_lines(heads, [[escaped(label), *map(_cell, cells)] for _, label, cells in block.rows])
        case Table():
            above = [label for label, count, _ in block.groups for _ in range(count)]
            above = [""] * block.lead + above
            above += [""] * (len(block.heads) - len(above))
            heads = [
                (", ".join([": ".join(filter(None, (group, head.label))), *head.small]), head.words)
                for group, head in zip(above, block.heads, strict=True)
            ]
            lines = table_lines(heads, [map(_cell, row) for row in (*block.rows, *block.references)])
            return [*lines, *(line for note in block.notes for line in ("", escaped(note)))]
    return []


def table_lines(heads: Sequence[tuple[str, bool]], rows: Sequence[Iterable[str]]) -> list[str]:
    """Return a Markdown table; columns of words are aligned to the left, columns of numbers to the right."""
    rule = ["---" if words else "---:" for _, words in heads]
    lines = [[escaped(label) for label, _ in heads], rule, *rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in lines)]


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table: aligned to a terminal, as Markdown to a file or a pipe.

    Args:
        numbers: names of the columns that a terminal aligns to the right. In Markdown, which is also read as it is,
            none are.
    """
    if not sys.stdout.isatty():
        print(*table_lines([(name, True) for name in names], [map(escaped, row) for row in rows])[1:], sep="\n")
        return
    from rich.console import Console
    from rich.text import Text

    table = new_table(names, numbers)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table, crop=False)


def _cell(cell: Cell) -> str:
    text = _with_small(cell.text, cell.small)
    return f"**{text}**" if cell.strong else text


def _with_small(text: Text, small: Sequence[Text]) -> str:
    return f"{escaped(text)} ({', '.join(map(escaped, small))})" if small else escaped(text)


def escaped(text: Text) -> str:
    """Escape text for one line of Markdown or HTML; our own markup loses its tags.

    >>> escaped("a|b <i> x_y"), escaped(Markup("<b>a</b> &lt; b"))
    ('a\\\\|b &lt;i&gt; x\\\\_y', 'a &lt; b')
    """
    plain = text.striptags() if isinstance(text, Markup) else text
    one_line = " ".join(printable(plain).split())
    return _SPECIAL.sub(r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def records(table: Table) -> list[dict[str, Any]]:
    """Return the rows as records: text of words, numbers with all digits, and `NAME_low` and so on beside a number.

    Rows of people have no place here: they are no results.
    """
    names = [head.name or head.label for head in table.heads]
    ends = [list(dict.fromkeys(end for row in table.rows for end in row[place].numbers)) for place in range(len(names))]
    rows = []
    for cells in table.rows:
        row: dict[str, Any] = {}
        for name, of_column, head, cell in zip(names, ends, table.heads, cells, strict=True):
            row[name] = str(cell.text) if head.words else cell.value
            row |= {f"{name}_{end}": cell.numbers.get(end) for end in of_column}
        rows.append(row)
    return rows


def records_of(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Return the rows of several tables, each with the number of its table as `section`, and the same columns."""
    rows = [{"section": number, **row} for number, table in enumerate(tables, 1) for row in records(table)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in columns} for row in rows]


def print_aligned(table: Table) -> None:
    """Print a table with its notes, aligned to the width of the terminal; of 80 letters in a file or a pipe."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    # A column is as wide as its longest line: numbers are never cut, and a narrow terminal wraps whole lines.
    printed = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_lines=False)
    rows = [*table.rows, *table.references]
    for place, head in enumerate(table.heads):
        texts = [line for row in rows for line in _cell_lines(row[place])]
        width = max((len(text) for text in texts), default=1) if not head.words else 7
        label = "\n".join([head.label, *head.small])
        printed.add_column(label, justify="left" if head.words else "right", min_width=width, overflow="fold")
    for place, row in enumerate(rows):
        style = "italic" if place >= len(table.rows) else None
        printed.add_row(*(Text("\n".join(_cell_lines(cell))) for cell in row), style=style)
    console = Console()
    console.print(printed, crop=False)
    for note in table.notes:
        console.print(note, highlight=False, markup=False)


def compact_lines(table: Table) -> list[str]:
    """Return the table as lines without rules; words above a group of columns begin at its first one."""
    texts = [[head.label for head in table.heads], *([str(cell.text) for cell in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    above, place = "", table.lead
    for label, count, _ in table.groups:
        above = above.ljust(sum(widths[:place]) + 2 * place) + label if label else above
        widths[place + count - 1] += max(0, len(label) - sum(widths[place : place + count]) - 2 * (count - 1))
        place += count
    lines = ["  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip() for row in texts]
    return [above, *lines]


def _cell_lines(cell: Cell) -> list[str]:
    return [str(cell.text), *map(str, cell.small)]
