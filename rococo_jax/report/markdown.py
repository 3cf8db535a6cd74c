"""Write a page as HTML (by `templates/blocks.html`) and as Markdown (for a README, an issue or a terminal).

The Markdown omits charts, whose numbers are also in tables, pictures and examples.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

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
