"""One row a metric: what it is called, which way is better, and how it is computed.

Results, report, documentation and CSV read these rows; a new metric is one row in the file of its kind of task
(`metrics/retrieval.py`, `metrics/choice.py`), computed from the shares that the kind counts for every query or item.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

# Name of a counted column -> its share in percent, for one figure (a scalar) or for many bootstrap draws at once.
Shares = Mapping[str, Float[np.ndarray, "*draws"]]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: its key in `results.json`.
        better: which end is better, or None for a part of a whole.
        unit: `%` (0 to 100), `points` (difference of percentages) or `` (a plain number).
        definition: one phrase.
        origin: `benchmark` where the formula is read in the benchmark's public code, `paper` where it is in the paper
            alone, `ours` where the public material gives none.
        function: from the shares of the counted columns to the value; None where it needs a second variant (drops).
        is_share: whether it is one share, or a sum of some: what the queries of an image count for it adds up.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None
    unit: Literal["%", "points", ""]
    definition: str
    origin: Literal["benchmark", "paper", "ours"] | None
    function: Callable[[Shares], Float[np.ndarray, "*draws"]] | None = None
    is_share: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The range that a value must lie in; a drop in percent may be any negative number."""
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
    """Shares that remember which of them were read."""

    def __init__(self, shares: Mapping[str, np.ndarray]):
        super().__init__(shares)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        self.read.add(name)
        return super().__getitem__(name)


def share(name: str) -> Callable[[Shares], Float[np.ndarray, "*draws"]]:
    """The function of a metric that is one counted share itself."""
    return lambda shares: shares[name]


def percent(
    name: str,
    label: str,
    better: Literal["higher", "lower"] | None,
    definition: str,
    origin: Literal["benchmark", "paper", "ours"],
    column: str = "",
) -> Metric:
    """A metric that is one counted share itself, of the column of its name or of another one."""
    return Metric(name, label, better, "%", definition, origin, share(column or name), is_share=True)


# Of any kind of task whose variants have a baseline; computed from two variants by `drop`.
DROPS = (
    Metric("drop", "Drop", "lower", "%", "100 × (clean − altered) / clean, of R@1 or of the accuracy", "ours"),
    Metric("drop_points", "Drop, points", "lower", "points", "clean − altered, in percentage points", "ours"),
)


def drop(clean: float, altered: float) -> dict[str, float | None]:
    """The cost of an alteration: `drop` in percent of the clean figure, and `drop_points` in points.

    `drop` is None where the clean figure is 0 and nothing can be lost.

    >>> drop(50.0, 40.0)
    {'drop': 20.0, 'drop_points': 10.0}
    """
    points = clean - altered
    return {"drop": 100.0 * points / clean if clean else None, "drop_points": points}
