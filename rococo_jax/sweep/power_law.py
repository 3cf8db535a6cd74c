"""Power laws over the first axis of a sweep, this project's own fit [ours].

    y = a x^-b + c      of five values of x or more
    y = a x^-b          of four

by least squares over the means over seeds, each x counted alike. For a given b both forms are linear in a and c, so
that only b is searched for, in [-4, 4], as in variable projection (Golub and Pereyra, 1973). Rising and falling curves
are fitted alike: a has the sign of what the data do.

Intervals are percentiles (2.5 and 97.5) of fits to 1,000 bootstrap draws. Of several seeds each x draws its runs again,
with replacement; of one seed the residuals of the fit are drawn again, and scaled by sqrt(n / (n - parameters)). They
tell how far the fit depends on the runs at hand, not whether a power law is the right form.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.data.sample_order import derive_seed
from rococo_jax.errors import is_number

LEAST_POINTS = 4
_POINTS_FOR_OFFSET = 5
_DRAWS = 1000
_EXPONENTS = (-4.0, 4.0)


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """A fitted curve, or why there is none.

    Attributes:
        curve: the arm and the values of the other axes.
        task, variant, metric: what is fitted; the loss at the end has neither task nor variant.
        points: values of x that have a figure.
        parameters: `a`, `b` and, where it was fitted, `c`.
        intervals: 95 % bounds of each.
        residual: root of the mean squared residual, in the unit of the metric.
        reason: why there is no fit; "" where there is one.
    """

    curve: str
    task: str
    variant: str
    metric: str
    points: int
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    residual: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON values; intervals are lists."""
        return dataclasses.asdict(self) | {"intervals": {name: list(pair) for name, pair in self.intervals.items()}}


def fit_power_law(
    curve: str, place: tuple[str, str, str], values: Sequence[Any], seeds: Sequence[Sequence[float]]
) -> PowerLaw:
    """Fits one curve.

    Args:
        curve: its name.
        place: task, variant and metric.
        values: of the axis, one a point.
        seeds: the runs' figures, as many or fewer at each point as the sweep has seeds.
    """
    usable = [
        (float(value), np.asarray(runs, float))
        for value, runs in zip(values, seeds, strict=True)
        if is_number(value) and value > 0 and len(runs)
    ]
    none = PowerLaw(curve, *place, points=len(usable))
    if len(usable) < LEAST_POINTS:
        return dataclasses.replace(none, reason=f"{len(usable)} points above 0; {LEAST_POINTS} are needed")
    x, runs = np.array([value for value, _ in usable]), [each for _, each in usable]
    means = np.array([each.mean() for each in runs])
    if np.ptp(means) <= 1e-12 * np.abs(means).max():
        return dataclasses.replace(none, reason="the same at every point")
    offset = len(x) >= _POINTS_FOR_OFFSET
    fitted = _fit(x, means[None], offset)
    (a, b, c), residuals = fitted[0], means - _curve(x, fitted)[0]
    if abs(b) >= _EXPONENTS[1] * 0.999 or (offset and abs(b) < 1e-3):
        return dataclasses.replace(none, reason="no exponent from -4 to 4 fits best: no power law")
    rng = np.random.default_rng(derive_seed(0, "power law", curve, *place))
    if max(map(len, runs)) > 1:
        drawn = np.stack([rng.choice(each, (_DRAWS, len(each))).mean(1) for each in runs], axis=1)
    else:
        scaled = residuals * np.sqrt(len(x) / (len(x) - 2 - offset))
        drawn = _curve(x, fitted) + rng.choice(scaled, (_DRAWS, len(x)))
    low, high = np.percentile(_fit(x, drawn, offset), [2.5, 97.5], axis=0)
    names = ("a", "b", "c") if offset else ("a", "b")
    return dataclasses.replace(
        none,
        parameters=dict(zip(names, map(float, (a, b, c)), strict=False)),
        intervals={name: (float(low[place]), float(high[place])) for place, name in enumerate(names)},
        residual=float(np.sqrt(np.mean(residuals**2))),
    )


def _curve(x: Float[np.ndarray, " n"], parameters: Float[np.ndarray, "draws 3"]) -> Float[np.ndarray, "draws n"]:
    a, b, c = parameters.T[:, :, None]
    return a * x**-b + c


def _fit(x: Float[np.ndarray, " n"], y: Float[np.ndarray, "draws n"], offset: bool) -> Float[np.ndarray, "draws 3"]:
    """a, b and c (0 without `offset`) of the least squares of each draw."""
    # Powers of x over its geometric mean: neither vanishes nor overflows.
    centre = np.exp(np.log(x).mean())
    x, grid = x / centre, np.linspace(*_EXPONENTS, 161)[None]
    for _ in range(6):
        rows = np.arange(len(y)) if len(grid) > 1 else 0
        best = grid[rows, _best(x, y, grid, offset)]
        step = grid[:, 1:2] - grid[:, :1]
        # Next the steps on both sides of the best so far, each in twenty.
        grid = np.clip(best[:, None] + step * np.linspace(-1, 1, 41), *_EXPONENTS)
    a, c, _ = _solve(x, y, best[:, None], offset)
    return np.stack([a[:, 0] * centre**best, best, c[:, 0]], axis=1)


def _best(x: np.ndarray, y: np.ndarray, grid: np.ndarray, offset: bool) -> np.ndarray:
    """Where each draw's best exponent stands in its row of the grid; some draws at a time, which bounds memory."""
    parts = [slice(start, start + 100) for start in range(0, len(y), 100)]
    return np.concatenate(
        [_solve(x, y[part], grid if len(grid) == 1 else grid[part], offset)[2].argmin(1) for part in parts]
    )


def _solve(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, "draws n"], b: Float[np.ndarray, "#draws exponents"], offset: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a and c of the least squares for each exponent, and the sum of squared residuals."""
    power, y = x ** -b[:, :, None], y[:, None, :]
    power_mean, y_mean = (power.mean(2), y.mean(2)) if offset else (np.zeros(b.shape), np.zeros((len(y), 1)))
    centred, target = power - power_mean[:, :, None], y - y_mean[:, :, None]
    # At b = 0 a power is constant: nothing of it is left beside an offset.
    spread = np.maximum((centred**2).sum(2), np.finfo(float).tiny)
    a = (centred * target).sum(2) / spread
    return a, y_mean - a * power_mean, ((target - a[:, :, None] * centred) ** 2).sum(2)
