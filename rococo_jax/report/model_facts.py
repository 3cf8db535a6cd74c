"""Facts about models: a table by the user of architecture, training data and its size, link, reported value, ...

A column of numbers is a further variable of a study; a column of words divides the models into groups. The leaderboard
shows all of them.

`is_number_column` and `read_numbers` decide which columns of a user's table are numbers, and read them.
"""

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import read_json
from rococo_jax.texts import open_table

# Headings of columns that name models, whatever is in them; pandas gives the numbers of rows none.
MODEL_COLUMNS = ("", "model", "name", "model_name", "model name", "models", "checkpoint")
_NUMBER = re.compile(r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)(\s*%)?", re.IGNORECASE)
_MISSING = ("", "-", "nan", "na", "n/a", "null", "none")
_EXPECTED = "a table with a column `model` and facts"


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


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """Facts about models, in the order of the models.

    Attributes:
        cells: every column as it was written.
        numbers: values of each column of numbers.
    """

    cells: dict[str, list[str]]
    numbers: dict[str, list[float]]

    @property
    def groups(self) -> dict[str, list[str]]:
        """Group of each model, for each column of words; empty if the cell is."""
        return {name: cells for name, cells in self.cells.items() if name not in self.numbers}


def read_facts(path: Path, models: Sequence[str]) -> ModelFacts:
    """Read the facts of some models. Rows of other models are ignored with a message.

    Args:
        path: table with a row for each model; with the suffix `.json` a list of objects, each with `model`, or one
            object of facts by the model's name.

    Raises:
        InputError: the file is no table with a column that names models and one more, a model has two rows or none, or
            a cell in a column of numbers is no number.
    """
    if path.suffix.lower() == ".json":
        header, rows = _json_table(path)
    else:
        header, lines = open_table(path, _EXPECTED)
        rows = [row for _, row in lines]
    name_column = next((head for head in header if head and head.lower() in MODEL_COLUMNS), None)
    if name_column is None or len(header) < 2:
        raise InputError(path, "columns", ", ".join(header), "`model`, and at least one fact")
    row_of_model: dict[str, dict[str, str]] = {}
    for row in rows:
        if row[name_column].strip() in row_of_model:
            raise InputError(path, "model", f"{row[name_column].strip()!r} twice", "one row for each model")
        row_of_model[row[name_column].strip()] = row
    if missing := [model for model in models if model not in row_of_model]:
        problem = f"no row for {missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        raise InputError(path, "model", problem, f"one row for each of the {len(models)} models")
    if others := len(row_of_model) - len(models):
        say(f"{path.name}: {others} rows of models without results are not used")
    columns = [column for column in header if column != name_column]
    cells = {column: [row_of_model[model][column].strip() for model in models] for column in columns}
    numbers = {name: read_numbers(path, name, column) for name, column in cells.items() if is_number_column(column)}
    return ModelFacts(cells, numbers)


def _json_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    expected = "a list of objects, each with `model`, or an object of facts by model"
    content = read_json(path, expected)
    if isinstance(content, dict):
        content = [{"model": model, **facts} if isinstance(facts, dict) else facts for model, facts in content.items()]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise InputError(path, "content", "other values", expected)
    header = list(dict.fromkeys(name for row in content for name in row))
    return header, [{name: _text(row.get(name)) for name in header} for row in content]


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
