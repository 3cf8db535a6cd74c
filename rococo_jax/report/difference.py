"""The record of a difference between two models, which the page, the terminal, Markdown, JSON and a sweep print."""

import dataclasses
from typing import Any

from rococo_jax.metrics.paired import ALPHA, Verdict
from rococo_jax.report.blocks import Cell
from rococo_jax.report.vocabulary import percent, signed

# Attributes that are not part of the record.
_NOT_PRINTED = ("coverage", "spread", "critical")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference between a model and the reference in one metric of one variant, with all digits.

    Attributes:
        model, reference: labels of the two models.
        value, reference_value: the metric of each, in its unit.
        points: value minus reference value; for a metric with a neutral value, the change of the distance from it.
        low, high: 95 % interval of `points`. Of a primary difference it is simultaneous over the family, so that it
            excludes zero if and only if `p_corrected` is below 0.05.
        p: p-value of the test alone.
        p_corrected: p-value corrected over the family; None if the difference is not primary.
        mde: minimum detectable effect of the test; None if no image differs.
        images: number of images; 0 of a difference over seeds.
        spread, critical: see `PairedDifference`.
        is_primary: whether the difference belongs to the family of tests that are corrected together.
        verdict: see `PairedDifference.verdict`, or `at chance`; None if the difference is not primary.
        coverage: phrase with the number of the benchmark's parts, if some are absent.
    """

    model: str
    reference: str
    benchmark: str
    task: str
    variant: str
    metric: str
    value: float | None
    reference_value: float | None
    points: float
    low: float | None
    high: float | None
    p: float
    p_corrected: float | None = None
    mde: float | None = None
    images: int = 0
    is_primary: bool = False
    verdict: Verdict | None = None
    coverage: str = ""
    spread: float = 0.0
    critical: float = float("inf")

    @property
    def is_significant(self) -> bool:
        """Whether it is a primary difference with a corrected p below 5 %."""
        return self.p_corrected is not None and self.p_corrected < ALPHA

    @property
    def bounds(self) -> str:
        """The interval as text; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{self._end(self.low)} to {self._end(self.high)}"

    def _end(self, value: float) -> str:
        """Return an end of the interval as text; one that excludes zero is not rounded to zero."""
        digits = 1
        if not self.low <= 0 <= self.high:
            digits = next(digits for digits in range(1, 9) if round(value, digits) or digits == 8)
        return signed(value, digits)

    @property
    def p_text(self) -> str:
        """The p-value that decides, corrected if it is primary, as text."""
        return p_value(self.p if self.p_corrected is None else self.p_corrected)

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _NOT_PRINTED}


def difference_cells(row: Difference) -> list[Cell]:
    """Return the cells of a difference with its interval and MDE, and of its p-values."""
    small = (row.bounds.replace(" to ", "\u00a0to "), *([] if row.mde is None else [f"MDE\u00a0{percent(row.mde)}"]))
    difference = Cell(signed(row.points), small, row.points, edge=True, strong=row.is_significant)
    if row.p_corrected is None:
        return [difference, Cell("", (f"uncorrected\u00a0{p_value(row.p)}",))]
    return [difference, Cell(row.p_text, (f"uncorrected\u00a0{p_value(row.p)}",), row.p_corrected)]


def p_value(p: float) -> str:
    """Return a p-value as text, with three decimals, or four if it is small.

    >>> p_value(0.0301), p_value(0.0001), p_value(2e-9)
    ('0.030', '0.0001', '<0.0001')
    """
    if p < 0.00005:
        return "<0.0001"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"
