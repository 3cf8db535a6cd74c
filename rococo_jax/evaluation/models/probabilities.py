"""Recognise probabilities, percentages and cosines that were handed in as logits or similarities.

Metrics of classes and options are computed from a softmax of the logits, which is flatter for probabilities, and for
cosines without the model's scale, than the model itself. Logits of a trained model are not all between 0 and 1.

Similarities are ranked along both axes. A softmax over one axis keeps the order along it and changes the order along
the other. Its signs are that no row sums to more than 1, and that rows sum to 1:

- in every row, up to rounding; or
- in many rows that are not decided (95 % or more, of which the largest number has not all), and in no row to more: part
  of a softmax, such as that over other captions as well. Independent probabilities of pairs exceed 1 in some rows.

Cosines that are all positive have larger sums, which differ from row to row.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rococo_jax.errors import InputError

EXPECTED_LOGITS = "logits as they are before the softmax, or log-probabilities"
_SCALED = "; cosines are multiplied by the model's logit scale"
_NUMBERS_AT_ONCE = 2**20
# In float16, probabilities of 1,000 classes sum to 1 within half of this tolerance.
_TOLERANCE = 1e-3
# Rounding changes a sum by at most half a digit for each number; in practice by much less.
_MOST_ROUNDING = 0.05
# Rounded numbers have at most this many decimal places.
_MOST_DIGITS = 6
_UNDECIDED_ROWS, _UNDECIDED_SHARE = 10, 0.05
# A softmax that leaves less than this to all but the largest number of each row changes no rank of a right pair.
_LEAST_REST = 0.01
# Fewer numbers than this sum to less than 1 if they are cosines.
_FEWEST_COLUMNS = 10


def check_logits(tables: Sequence[np.ndarray], path: str | os.PathLike) -> list[str]:
    """Return a note if logits may be cosines; -inf, which stands for classes that are never predicted, is ignored.

    Args:
        tables: of shape (images, classes); several if images differ in the number of their classes.

    Raises InputError: the numbers are probabilities or percentages.
    """
    low, high, images = np.inf, -np.inf, sum(map(len, tables))
    normalised = {1.0: 0, 100.0: 0}
    for table in tables:
        rounding = _half_digit(table)
        for block in _blocks(table):
            is_number = np.isfinite(block)
            low = min(low, block.min(where=is_number, initial=np.inf))
            high = max(high, block.max(where=is_number, initial=-np.inf))
            sums, are_positive = block.sum(axis=1, where=is_number), (block >= 0).all(axis=1, where=is_number)
            for total in normalised:
                tolerance = total * _TOLERANCE + min(rounding * table.shape[1], total * _MOST_ROUNDING)
                normalised[total] += int((are_positive & (np.abs(sums - total) <= tolerance)).sum())
    for total, count in normalised.items():
        if 2 * count > images:
            rows = "every row sums" if count == images else f"{count:,} of {images:,} rows sum"
            problem = f"probabilities{' in percent' * (total == 100)}: none below 0, and {rows} to {total:g}"
            raise InputError(path, "logits", problem, EXPECTED_LOGITS)
    if not low < high:
        return []
    numbers = f"all numbers are between {low:.3g} and {high:.3g}"
    if low >= -_TOLERANCE and high <= 1 + _TOLERANCE:
        raise InputError(path, "logits", f"probabilities or cosines: {numbers}", EXPECTED_LOGITS + _SCALED)
    if 0 <= low < 1 and 50 < high <= 100 * (1 + _TOLERANCE):
        raise InputError(path, "logits", f"percentages: {numbers}", EXPECTED_LOGITS)
    if low >= -1 - _TOLERANCE and high <= 1 + _TOLERANCE:
        name = Path(path).name
        return [f"{name}: {numbers}; if these are cosines, multiply them by the model's logit scale, on which all "
                "results but Top-1 depend"]  # fmt: skip
    return []


def check_similarities(similarities: np.ndarray, path: str | os.PathLike) -> list[str]:
    """Return a note if similarities may be part of a softmax.

    Raises InputError: they are probabilities, percentages or log-probabilities over the captions of an image, or over
        the images of a caption.
    """
    notes = []
    for over, table in (("captions of an image", similarities), ("images of a caption", similarities.T)):
        if table.shape[1] < 2:
            continue
        signs = {form: _signs_of_softmax(table, *form) for form in ((1.0, False), (100.0, False), (1.0, True))}
        for (_, are_logarithms), sign in signs.items():
            if sign.is_certain:
                problem = f"{'logarithms of ' * are_logarithms}probabilities over the {over}"
                raise InputError(path, "similarities", problem, "similarities, or logits, before the softmax")
        if signs[1.0, False].is_possible:
            notes.append(
                f"{Path(path).name}: none below 0, and the {over} sum to at most 1: right if each number is the "
                f"probability of a pair by itself; wrong after a softmax over the {over}, which changes the ranks of "
                "the other direction"
            )
    return notes


class _Signs(NamedTuple):
    """Whether the rows of a table are certainly, or possibly, a softmax or part of one."""

    is_certain: bool = False
    is_possible: bool = False


def _signs_of_softmax(table: np.ndarray, total: float, are_logarithms: bool) -> _Signs:
    """Return the signs that rows sum to `total`; with `are_logarithms`, of the exponentials of the numbers."""
    columns, rounding = table.shape[1], _half_digit(table)
    # Numbers below exp(-10) do not matter.
    error = _precision(table) * (10 if are_logarithms else 1)
    is_exact = is_complete = True
    undecided, most_rest, low, high = 0, 0.0, np.inf, 0.0
    for block in _blocks(table):
        with np.errstate(over="ignore", invalid="ignore"):
            block = np.exp(block) if are_logarithms else block / total
            sums = block.sum(axis=1)
        if are_logarithms:
            gained = lost = np.expm1(rounding)
        else:
            gained, lost = rounding / total * np.count_nonzero(block, axis=1), rounding / total * columns
        if not block.min() >= 0 or not (sums <= 1 + error + np.minimum(gained, _MOST_ROUNDING)).all():
            return _Signs()
        rest = sums - block.max(axis=1)
        is_exact &= bool((sums >= 1 - error).all())
        is_complete &= bool((sums >= 1 - error - min(lost, _MOST_ROUNDING)).all())
        undecided += int(((sums >= 0.95) & (rest >= 0.05)).sum())
        most_rest, low, high = max(most_rest, rest.max()), min(low, block.min()), max(high, block.max())
    is_part = undecided >= max(_UNDECIDED_ROWS, len(table) * _UNDECIDED_SHARE) and low < high / 10
    is_certain = (is_exact and most_rest >= _LEAST_REST) or (is_complete and undecided > 0) or is_part
    return _Signs(is_certain, columns >= _FEWEST_COLUMNS and most_rest > 0)


def _precision(table: np.ndarray) -> float:
    """Return the relative error of sums of the numbers, which may have been computed in a shorter format."""
    block = next(_blocks(table), np.zeros((1, 1))).astype(np.float32)
    if (block.view(np.uint32) & 0xFFFF == 0).all():
        return 2.0**-8  # bfloat16
    with np.errstate(over="ignore"):
        is_short = np.array_equal(block.astype(np.float16).astype(np.float32), block)
    return 2.0**-10 if is_short else 1e-5


def _blocks(table: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of a table in float64, a million numbers at once."""
    step = max(1, _NUMBERS_AT_ONCE // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        yield table[start : start + step].astype(np.float64)


def _half_digit(table: np.ndarray) -> float:
    """Return half a unit of the last decimal place if the numbers are rounded to a few places, else 0."""
    block = next(_blocks(table), np.zeros((1, 1)))
    block = block[np.isfinite(block)]
    precision = np.finfo(table.dtype).eps * max(1.0, np.abs(block).max(initial=0.0))
    for digits in range(_MOST_DIGITS + 1):
        unit = 10.0**-digits
        if precision > unit / 8:
            return 0.0
        if (np.abs(block - np.round(block, digits)) <= precision).all():
            return unit / 2
    return 0.0
