"""Main effects of factors on figures over makes of models, alone and with one more figure held constant [ours].

y = m + the effect of each factor's level (+ b z)    least squares over makes; the effects of a factor add up to 0
interval    the effect +- its standard error times the 97.5th percentile of Student's t: residuals of makes count as
            normal and of one variance
p           F test of a factor's levels against the same line without the factor
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import fdtrc, stdtrit

from rococo_jax.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """One factor's effects on every metric, in the metric's unit.

    Attributes:
        levels: in the order of their first make.
        makes: how many have each level.
        effect, low, high: of each level, and its 95 % interval.
        p: of the whole factor, not corrected.
    """

    levels: tuple[str, ...]
    makes: tuple[int, ...]
    effect: Float[np.ndarray, "metrics levels"]
    low: Float[np.ndarray, "metrics levels"]
    high: Float[np.ndarray, "metrics levels"]
    p: Float[np.ndarray, " metrics"]


def main_effects(
    levels: Sequence[Sequence[str]],
    values: Float[np.ndarray, "metrics makes"],
    given: Float[np.ndarray, " makes"] | None = None,
) -> list[Effects]:
    """The effects of every factor; `levels` has a row a make, a column a factor.

    Raises InputError: a factor of one level, factors that vary together, or no more makes than the line has parameters.
    """
    names = [tuple(dict.fromkeys(column)) for column in zip(*levels, strict=True)]
    columns = [np.ones((len(levels), 1))] if given is None else [np.stack([np.ones(len(levels)), given], axis=1)]
    for factor, known in enumerate(names):
        if len(known) < 2:
            raise InputError("factors", "levels", f"only {known[0]!r}", "a factor of two levels or more")
        columns.append(np.array([[float(row[factor] == level) for level in known] for row in levels]))
    whole = np.concatenate(columns, axis=1)
    parameters = columns[0].shape[1] + sum(len(known) - 1 for known in names)
    if np.linalg.matrix_rank(whole) < parameters:
        raise InputError("factors", "levels", "factors that vary together", "makes that tell the factors apart")
    if len(levels) <= parameters:
        raise InputError("factors", "makes", len(levels), f"more than the {parameters} parameters of the line")
    solution, freedom = np.linalg.pinv(whole), len(levels) - parameters
    fitted, covariance = solution @ values.T, solution @ solution.T
    residual = _residual(whole, fitted, values)
    reach = stdtrit(freedom, 0.975) * np.sqrt(residual / freedom)
    effects, start = [], columns[0].shape[1]
    for factor, known in enumerate(names):
        part = slice(start, start + len(known))
        start += len(known)
        # Of all solutions that of least norm: differences of a factor's levels are the same in every one.
        centre = np.eye(len(known)) - 1 / len(known)
        effect = (centre @ fitted[part]).T
        half = reach[:, None] * np.sqrt(np.diagonal(centre @ covariance[part, part] @ centre))
        without = np.concatenate([each for place, each in enumerate(columns) if place != factor + 1], axis=1)
        less = np.linalg.pinv(without) @ values.T
        extra = (_residual(without, less, values) - residual) / (len(known) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = fdtrc(len(known) - 1, freedom, extra / (residual / freedom))
        counts = tuple(int(each) for each in columns[factor + 1].sum(axis=0))
        effects.append(Effects(known, counts, effect, effect - half, effect + half, p))
    return effects


def _residual(design: np.ndarray, fitted: np.ndarray, values: np.ndarray) -> Float[np.ndarray, " metrics"]:
    return ((values.T - design @ fitted) ** 2).sum(axis=0)
