"""Columns of numbers in tables that users write: which columns they are, and their values."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.errors import InputError

# Headings of columns that name models, whatever is in them; pandas gives the numbers of rows none.
MODEL_COLUMNS = ("", "model", "name", "model_name", "model name", "models", "checkpoint")
_NUMBER = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)(\s*%)?", re.IGNORECASE)
_MISSING = ("", "-", "nan", "na", "n/a", "null", "none")


def is_number_column(cells: Sequence[str]) -> bool:
    """Return whether a cell is a number or looks like one: digits but no letters (45,3 or 45.3 ± 1)."""
    return any(
        bool(_NUMBER.fullmatch(cell)) or (any(map(str.isdigit, cell)) and not any(map(str.isalpha, cell)))
        for cell in cells
    )


def read_numbers(path: Path, name: str, cells: Sequence[str], otherwise: str = "") -> list[float]:
    """Return the numbers of a column, NaN for an empty cell.

    Raises InputError for any other cell; `otherwise` is what else the user may do.
    """
    matches = [_NUMBER.fullmatch(cell) for cell in cells]
    signs = {bool(match[2]) for match in matches if match}
    for row, (cell, match) in enumerate(zip(cells, matches, strict=True), 1):
        if (match is None and cell.lower() not in _MISSING) or (match and match[2] and len(signs) > 1):
            expected = f"a number such as 45.3, in percent in all rows or none, or nothing{otherwise}"
            raise InputError(path, f"row {row}, column {name!r}", repr(cell), expected)
    return [float(match[1]) if match else math.nan for match in matches]
