"""Declaration of a metric: its label, which end is better, and its formula.

Results, report, documentation and CSV read these declarations. A new metric is one row in the file of its kind of task
(`metrics/retrieval.py`, `metrics/choice.py`), computed from the shares that the kind counts for every query or item.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

# Column that counts the rows of a variant.
ROWS = "rows"
# Name of a counted column -> its share in percent, as a scalar or for many bootstrap draws at once.
Shares = Mapping[str, Float[np.ndarray, "*draws"]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: its key in `results.json`.
        better: which end is better; None if neither is.
        unit: `%` (0 to 100), `points` (difference of percentages) or `` (a plain number).
        definition: one phrase.
        origin: `benchmark` if the formula is in the benchmark's public code, `paper` if it is only in the paper, `ours`
            if it is not published.
        function: from the shares of the counted columns to the value; None if it is no function of them (drops).
        is_share: whether it is a share or a sum of shares, so that the counts of an image's queries add up.
        is_distance: whether it is a sum of absolute values, so that chance alone makes it larger.
        neutral: the value that is best if neither end is; models are compared by their distance from it.
        per: column that counts the entries which the shares are of: the rows, or another unit of counting.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    unit: Literal["%", "points", ""]
    definition: str
    origin: Literal["benchmark", "paper", "ours"] | None
    function: Callable[[Shares], Float[np.ndarray, "*draws"]] | None = None
    is_share: bool = False
    is_distance: bool = False
    neutral: float | None = None
    per: str = ROWS

    @property
    def bounds(self) -> tuple[float, float]:
        """Range of valid values; a drop in percent may be any negative number."""
        if self.function is None or self.unit == "":
            return -np.inf, np.inf
        return (0.0, 100.0) if self.unit == "%" else (-100.0, 100.0)


def columns_of(metric: Metric, names: Sequence[str]) -> list[str]:
    """Return the counted columns, among `names`, that a metric is computed from.

    >>> columns_of(percent("ota", "OTA", "higher", "accuracy", "ours"), ["ata", "ota"])
    ['ota']
    """
    assert metric.function is not None
    recorder = _Recorder({name: np.ones(()) for name in names})
    metric.function(recorder)
    return [name for name in names if name in recorder.read]


class _Recorder(dict[str, np.ndarray]):
    """Shares that record which of them were read."""

    def __init__(self, shares: Mapping[str, np.ndarray]):
        super().__init__(shares)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        self.read.add(name)
        return super().__getitem__(name)


def share(name: str) -> Callable[[Shares], Float[np.ndarray, "*draws"]]:
    """Return the function of a metric that is one counted share."""
    return lambda shares: shares[name]


def raw_mean(name: str) -> Callable[[Shares], Float[np.ndarray, "*draws"]]:
    """Return the function of a metric that is the mean of a column in its own unit."""
    return lambda shares: np.asarray(shares[name] / 100.0)


def percent(
    name: str,
    label: str,
    better: Literal["higher", "lower"] | None,
    definition: str,
    origin: Literal["benchmark", "paper", "ours"],
    column: str = "",
) -> Metric:
    """Return a metric that is one counted share, of the column of its name or of another column."""
    return Metric(name, label, better, "%", definition, origin, share(column or name), is_share=True)


# For every kind of task whose variants have a baseline; computed from two variants by `drop`.
DROPS = (
    Metric("drop", "Drop", "lower", "%", "100 × (clean − altered) / clean, of R@1 or of the accuracy", "ours"),
    Metric("drop_points", "Drop, points", "lower", "points", "clean − altered, in percentage points", "ours"),
)


def drop(clean: float, altered: float) -> dict[str, float | None]:
    """Return the cost of an alteration: `drop` in percent of the clean value, and `drop_points` in points.

    `drop` is None if the clean value is 0. The formula of `drop` is [ours].

    >>> drop(50.0, 40.0)
    {'drop': 20.0, 'drop_points': 10.0}
    """
    points = clean - altered
    return {"drop": 100.0 * points / clean if clean else None, "drop_points": points}
