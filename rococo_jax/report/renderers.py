"""Renderers of a `blocks.Table`: rows for CSV, JSON and pandas, and a table of the terminal.

`markdown.table_lines` renders Markdown, `latex.latex_table` LaTeX, and the template of the page HTML.
"""

from collections.abc import Sequence
from typing import Any

from rococo_jax.report.blocks import Cell, Table


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
        texts = [line for row in rows for line in _lines(row[place])]
        width = max((len(text) for text in texts), default=1) if not head.words else 7
        label = "\n".join([head.label, *head.small])
        printed.add_column(label, justify="left" if head.words else "right", min_width=width, overflow="fold")
    for place, row in enumerate(rows):
        style = "italic" if place >= len(table.rows) else None
        printed.add_row(*(Text("\n".join(_lines(cell))) for cell in row), style=style)
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


def _lines(cell: Cell) -> list[str]:
    return [str(cell.text), *map(str, cell.small)]
