"""Correlations over a table of scores that others published: a CSV with a heading and a row for each model.

Columns of numbers are metrics; the words of the other columns together are a model's name.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.report.correlations import LEAST_MODELS, Study, comparable, study_of_figures


def correlate_table(path: Path, names: Sequence[str] | None = None, given: str | None = None) -> Study:
    """Correlations of the columns `names`, by default of all with a number in every row, `given` held constant.

    Raises InputError: a file that is no such table, fewer than five models, one named twice, a column that is unknown
    or lacks a number, fewer than two columns.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            heads, *rows = csv.reader(file, strict=True)
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as error:
        raise InputError(path, "table", error, "a CSV file with a heading and a row for each model") from None
    for number, row in enumerate(rows, 2):
        if len(row) != len(heads):
            raise InputError(path, f"row {number}, cells", len(row), len(heads))
    if len(rows) < LEAST_MODELS:
        raise InputError(path, "models", len(rows), f"{LEAST_MODELS} or more")
    columns = {head: [_number(row[place]) for row in rows] for place, head in enumerate(heads)}
    words = [place for place, head in enumerate(heads) if not np.isfinite(columns[head]).any()]
    models = [" ".join(row[place] for place in words) for row in rows]
    if twice := next((model for place, model in enumerate(models) if model in models[:place]), None):
        raise InputError(path, "model", f"{twice!r} twice", "each of them once")
    known = [head for place, head in enumerate(heads) if place not in words]
    for option, name in [("--metrics", name) for name in names or ()] + [("--given", given)] * (given is not None):
        if name not in known:
            raise unknown_name(option, "column", name, known)
    wanted = dict.fromkeys([*([given] if given else []), *(known if names is None else names)])
    held = (given, "", "") if given else None
    kept, left_out = comparable({(name, "", ""): columns[name] for name in wanted})
    if len(kept) < 2 or (held and held not in kept):
        raise InputError(path, "columns", "; ".join(left_out) or f"{len(kept)} of numbers", "two or more, and --given")
    return study_of_figures(models, list(kept), np.array(list(kept.values())), held, left_out, beside=False)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
