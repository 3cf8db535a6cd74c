"""Split the lines of a table into cells: delimiters, quotation marks, and the refusal of stray quotation marks.

In a table with commas, semicolons or bars, a cell may be quoted: `"` around it, doubled inside, as Python's `csv`
module reads it. A quoted cell that contains further rows of the table is refused, because its quotation mark was part
of a text. In a table with tabs, a quotation mark is a normal character (IANA, text/tab-separated-values), unless every
cell of the file that begins with one is quoted correctly and contains no further row; this is decided once, for all
cells.
"""

import csv
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rococo_jax.errors import InputError

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
# In characters. An image as base64 text has millions; a quoted cell that is never closed extends to the end of the
# file.
_LONGEST_CELL = 2**26
# Cells that distinguish a row from a line of text: names of files with a suffix, links, and numbers.
_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")
_LINK = re.compile(r"\w+://\S+")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?%?")


class _Row(NamedTuple):
    """A row of a table: its number, where 0 is the header; its cells; and its lines by number, from 1."""

    number: int
    cells: list[str]
    lines: dict[int, str]


def _names_of(header: _Row | None) -> list[str]:
    """Return the names of the columns, trimmed, without empty names at the end."""
    names = [name.strip() for name in header.cells] if header else []
    while names and not names[-1]:
        names.pop()
    return names


@dataclasses.dataclass(frozen=True)
class Layout:
    """The rules by which the lines of a table are split into cells.

    Attributes:
        has_delimiter_line: whether a line before the header names the delimiter, as Excel writes it (`sep=;`).
        skips_blanks: whether blanks after a delimiter are ignored, because the header has them as well.
        has_quotes: whether a quotation mark may enclose a cell.
    """

    delimiter: str
    has_delimiter_line: bool
    skips_blanks: bool
    has_quotes: bool = True

    def read(self, lines: Iterable[str], source: object) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
        """Return the names of the columns, and the rows as (number from 1, cells by name).

        Raises InputError: quotes are not closed, a row has more or fewer cells, or a cell contains further rows.
        """
        rows = self._split(lines, source)
        header = _names_of(next(rows, None))
        return header, self._name_cells(header, rows, source)

    def _split(self, lines: Iterable[str], source: object) -> Iterator[_Row]:
        """Yield each row that is not blank."""
        lines_of_row: dict[int, str] = {}

        def lines_of_table() -> Iterator[str]:
            numbered = itertools.dropwhile(lambda each: not each[1].strip(), enumerate(lines, 1))
            for number, line in itertools.islice(numbered, int(self.has_delimiter_line), None):
                lines_of_row[number] = line
                yield line

        csv.field_size_limit(_LONGEST_CELL)
        quoting = csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE
        reader = csv.reader(
            lines_of_table(), delimiter=self.delimiter, strict=True, skipinitialspace=self.skips_blanks, quoting=quoting
        )
        number = 0
        try:
            for cells in reader:
                if any(map(str.strip, cells)):
                    yield _Row(number, cells, dict(lines_of_row))
                    number += 1
                lines_of_row.clear()
        except csv.Error as error:
            field = f"row {number}" if number else "header"
            raise InputError(source, field, str(error), "cells whose quotes are closed, and doubled inside") from None

    def _name_cells(
        self, header: list[str], rows: Iterable[_Row], source: object
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the cells of each row by the names of their columns, and check the row."""
        for number, cells, lines in rows:
            if _contains_rows(cells, [*lines.values()], self.delimiter, len(header)):
                field = f"row {number} (lines {min(lines)} to {max(lines)})"
                problem = "a quotation mark that begins a cell and ends in a later row"
                expected = (
                    'a mark of a text doubled in a quoted cell (""), or a table with tabs, where marks are letters'
                )
                raise InputError(source, field, problem, expected)
            if len(cells) < len(header) or any(map(str.strip, cells[len(header) :])):
                expected = f"{len(header)} between {DELIMITERS[self.delimiter]}, as in the header"
                raise InputError(source, f"row {number} (to line {max(lines)})", f"{len(cells)} cells", expected)
            yield number, dict(zip(header, cells, strict=False))


def layout_of(lines: Iterator[str], usual_delimiter: str, has_columns: Callable[[set[str]], bool]) -> Layout:
    """Return the layout of the lines of a table.

    Args:
        usual_delimiter: the delimiter that the name of the file suggests.
        has_columns: as in `texts.open_table`.
    """
    header_line = next((line for line in lines if line.strip()), "")
    has_delimiter_line = header_line[:4].lower() == "sep=" and header_line[4:5] in DELIMITERS
    candidates = [usual_delimiter, *DELIMITERS]
    if has_delimiter_line:
        candidates = [header_line[4:5]]
        header_line = next(lines, "")
    csv.field_size_limit(_LONGEST_CELL)
    names = {delimiter: _split_header(header_line, delimiter) for delimiter in dict.fromkeys(candidates)}
    matching = (delimiter for delimiter in names if has_columns({name.lower() for name in names[delimiter]}))
    delimiter = next(matching, None) or max(names, key=lambda delimiter: len(names[delimiter]))
    return Layout(delimiter, has_delimiter_line, f"{delimiter} " in header_line)


def _split_header(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]


def _contains_rows(cells: Sequence[str], lines: Sequence[str], delimiter: str, columns: int) -> bool:
    """Return whether a row of several lines is really several rows, which a stray quotation mark put into one cell.

    In that case, at least two of its lines are rows themselves: they have enough cells, and file names, links and
    numbers in the same columns as the row. If the row has none of these, all lines must have exactly as many cells as
    the header. In a table with tabs, which are rare in texts, two lines with enough cells are sufficient.
    """
    broken = [column for column, cell in enumerate(cells) if "\n" in cell or "\r" in cell]
    if not broken or columns < 2:
        return False
    # The columns before the broken cells, and those behind them, counted from the end.
    intact = [*range(broken[0]), *range(broken[-1] - len(cells) + 1, 0)]
    kinds = {column: kind for column in intact if (kind := _kind_of(cells[column])) is not None}
    cells_by_line = [line.rstrip("\r\n").split(delimiter) for line in lines]
    long_enough = [line_cells for line_cells in cells_by_line if len(line_cells) >= max(columns, len(intact))]
    if delimiter == "\t":
        return len(long_enough) > 1
    if not kinds:
        return all(len(line_cells) == columns for line_cells in cells_by_line)
    rows = [
        line_cells
        for line_cells in long_enough
        if all(_kind_of(line_cells[column]) is kind for column, kind in kinds.items())
    ]
    return len(rows) > 1


def _kind_of(cell: str) -> re.Pattern | None:
    """Return the pattern that a cell matches, or None if it is a text."""
    cell = cell.strip().strip('"')
    return next((kind for kind in (_NUMBER, _LINK, _NAME) if kind.fullmatch(cell)), None)
