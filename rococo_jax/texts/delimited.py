"""Lines of a table as rows of cells: delimiters, quotation marks, and rows that a stray mark would swallow.

In a table with commas, semicolons or bars a cell may be quoted: `"` around it, doubled inside, as the `csv` module of
Python reads it. A quoted cell that holds further rows of the table is refused: its mark was part of a text. In a table
with tabs a quotation mark is a letter like any other (IANA, text/tab-separated-values), unless every cell of the file
that begins with one is quoted correctly and holds no further row; this is decided once, for all cells.
"""

import csv
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rococo_jax.errors import InputError

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
# Characters of a cell: an image as base64 text has millions, and a mark that is never closed has the rest of a file.
_LONGEST_CELL = 2**26
# Cells that tell a row from a line of a text: names of files with a suffix, links, and numbers.
_NAME = re.compile(r"[^\n]*\.[A-Za-z]\w{1,4}")
_LINK = re.compile(r"\w+://\S+")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?%?")


class _Row(NamedTuple):
    """A row of a table: its number, from 0, which is the header; its cells; its lines by number, from 1."""

    number: int
    cells: list[str]
    lines: dict[int, str]


def _names_of(header: _Row | None) -> list[str]:
    """The names of the columns, trimmed, without the empty ones at the end."""
    names = [name.strip() for name in header.cells] if header else []
    while names and not names[-1]:
        names.pop()
    return names


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the lines of a table become cells.

    Attributes:
        is_named: whether a line before the header names the delimiter, as Excel writes it (`sep=;`).
        skips_blanks: whether blanks after a delimiter belong to no cell, as where the header has them, too.
        has_quotes: whether a quotation mark may enclose a cell.
    """

    delimiter: str
    is_named: bool
    skips_blanks: bool
    has_quotes: bool = True

    def read(self, lines: Iterable[str], source: object) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
        """Return the names of the columns, and the rows by them, counted from 1.

        Raises InputError: quotes are not closed, a row has more or fewer cells, or a cell holds further rows.
        """
        rows = self._split(lines, source)
        header = _names_of(next(rows, None))
        return header, self._named(header, rows, source)

    def _split(self, lines: Iterable[str], source: object) -> Iterator[_Row]:
        """Yield each row that has a word."""
        lines_of_row: dict[int, str] = {}

        def lines_of_table() -> Iterator[str]:
            numbered = itertools.dropwhile(lambda each: not each[1].strip(), enumerate(lines, 1))
            for number, line in itertools.islice(numbered, int(self.is_named), None):
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
            where = f"row {number}" if number else "header"
            raise InputError(source, where, str(error), "cells whose quotes are closed, and doubled inside") from None

    def _named(self, header: list[str], rows: Iterable[_Row], source: object) -> Iterator[tuple[int, dict[str, str]]]:
        for number, cells, lines in rows:
            if _holds_rows(cells, [*lines.values()], self.delimiter, len(header)):
                where = f"row {number} (lines {min(lines)} to {max(lines)})"
                found = "a quotation mark that begins a cell and ends in a later row"
                wanted = 'a mark of a text doubled in a quoted cell (""), or a table with tabs, where marks are letters'
                raise InputError(source, where, found, wanted)
            if len(cells) < len(header) or any(map(str.strip, cells[len(header) :])):
                wanted = f"{len(header)} between {DELIMITERS[self.delimiter]}, as in the header"
                raise InputError(source, f"row {number} (to line {max(lines)})", f"{len(cells)} cells", wanted)
            yield number, dict(zip(header, cells, strict=False))


def layout_of(lines: Iterator[str], usual: str, fits: Callable[[set[str]], bool]) -> Layout:
    """Return the layout of the lines of a table; `usual` is the delimiter that its name suggests.

    `fits` as `texts.open_table` has it.
    """
    first = next((line for line in lines if line.strip()), "")
    named = first[4:5] if first[:4].lower() == "sep=" and first[4:5] in DELIMITERS else ""
    first = next(lines, "") if named else first
    csv.field_size_limit(_LONGEST_CELL)
    names = {each: _header(first, each) for each in ([named] if named else dict.fromkeys([usual, *DELIMITERS]))}
    fitting = (each for each in names if fits({name.lower() for name in names[each]}))
    delimiter = next(fitting, None) or max(names, key=lambda each: len(names[each]))
    return Layout(delimiter, bool(named), f"{delimiter} " in first)


def _header(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]


def _holds_rows(cells: Sequence[str], lines: Sequence[str], delimiter: str, columns: int) -> bool:
    """Whether a row of several lines is several rows, which a quotation mark put into one cell.

    Two of its lines or more are then rows of their own: they have enough cells, and names of files, links and numbers
    where the row has them. In a row without any of these all lines must have exactly as many cells as the header; in
    a table with tabs, which are rare in texts, two that have enough will do.
    """
    broken = [place for place, cell in enumerate(cells) if "\n" in cell or "\r" in cell]
    if not broken or columns < 2:
        return False
    places = [*range(broken[0]), *range(broken[-1] - len(cells) + 1, 0)]  # from the end behind the broken cells
    kinds = {place: kind for place in places if (kind := _kind_of(cells[place])) is not None}
    split = [line.rstrip("\r\n").split(delimiter) for line in lines]
    enough = [each for each in split if len(each) >= max(columns, len(places))]
    if delimiter == "\t":
        return len(enough) > 1
    if not kinds:
        return all(len(each) == columns for each in split)
    return sum(all(_kind_of(each[place]) is kind for place, kind in kinds.items()) for each in enough) > 1


def _kind_of(cell: str) -> re.Pattern | None:
    """The pattern of a cell that is no text."""
    cell = cell.strip().strip('"')
    return next((kind for kind in (_NUMBER, _LINK, _NAME) if kind.fullmatch(cell)), None)
