"""Statistics over runs of several training seeds, from the counts of each image.

Both seeds and images are random: another run would give other values, and so would other images. Images are drawn with
replacement as in `metrics.intervals`; the queries of an image come and go together, and all runs are drawn with the
same images. With S runs of values v_s, and the covariance matrix C of the runs' values over the draws,

    variance of seeds     V_seeds = var(v_s) / S, with S - 1 in the denominator of var
    variance of images    V_images = mean of C off its diagonal, at least 0: what all runs share
    95 % interval         mean +- sqrt(t^2 V_seeds + z^2 V_images), t Student's 97.5 % quantile with S - 1 degrees of
                          freedom, z the normal one; for a single run the percentiles of its draws

The diagonal of C is excluded, because V_seeds already contains the effect of images on a single run. The sum of squared
half-widths is the approximation of Howe (1974, JASA 69, 789). Resampling seeds instead covers too little with few of
them: in 2,000 simulations with 2 to 10 seeds, 75 to 97 % for a nominal 95 %, against 95.4 to 97.8 % for this interval.

The difference D between the means of two models with S_a and S_b runs has

    variance of seeds     V_seeds = var(a_s) / S_a + var(b_s) / S_b, with min(S_a, S_b) - 1 degrees of freedom if either
                          has fewer than four runs, else Welch's
    variance of images    V_images = mean off-diagonal covariance of a + that of b - 2 mean covariance of a with b
    95 % interval         D +- sqrt(t^2 V_seeds + z^2 V_images), as above
    p                     the level at which such an interval ends at 0

Welch's degrees of freedom follow the variance of the smaller arm, which may be small by luck: with 2 seeds against 10,
12 % of equal models had p < 0.05. With the rule above it is at most 6.2 % for all pairs of 2, 3, 5 and 10 seeds
(`experiments/interval_coverage.py`). Intervals end at the bounds of the metric.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from rococo_jax.errors import InputError
from rococo_jax.metrics.counts import Counts, Units, sums_of_draws
from rococo_jax.metrics.paired import PairedDifference

_LEAST_P = 1e-9
_LEAST_RUNS_OF_WELCH = 4
# Below this, in squared points, a variance is rounding.
_NO_VARIANCE = 1e-18


def over_draws(
    runs: Sequence[Counts], metric: str, units: Units | None = None
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, "draws runs"]]:
    """Return a metric of each run in its unit, and the same on every draw of the images.

    Args:
        units: the images that are drawn; those of the runs by default.

    Raises InputError: the runs were evaluated on different images.
    """
    if not all(np.array_equal(run.units, runs[0].units) for run in runs):
        sizes = sorted({len(run.units) for run in runs})
        raise InputError("runs", "images", f"different ones ({sizes} of them)", "runs evaluated on the same images")
    runs = [run.only([metric]) for run in runs]
    sums = sums_of_draws(runs, runs[0].units if units is None else units)
    drawn = [run.of(metric, of_run) for run, of_run in zip(runs, sums, strict=True)]
    return np.array([run.value(metric) for run in runs]), np.stack(drawn, axis=1)


def interval(
    values: Float[np.ndarray, " runs"],
    resampled: Float[np.ndarray, "draws runs"],
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> list[float]:
    """Return the 95 % interval of the mean over runs, for other seeds and other images; see the module.

    Args:
        values: value of each run.
        resampled: value of each run on every draw of the images.
        bounds: smallest and largest possible value of the metric.
    """
    runs = len(values)
    if runs == 1:
        return [float(end) for end in np.percentile(resampled[:, 0], [2.5, 97.5])]
    shared = _shared_variance(np.cov(resampled, rowvar=False))
    of_seeds = stats.t.ppf(0.975, runs - 1) ** 2 * values.var(ddof=1) / runs
    of_images = stats.norm.ppf(0.975) ** 2 * max(0.0, shared)
    half_width = float(np.sqrt(of_seeds + of_images))
    return [max(float(values.mean()) - half_width, bounds[0]), min(float(values.mean()) + half_width, bounds[1])]


def difference(
    values: Float[np.ndarray, " runs"],
    resampled: Float[np.ndarray, "draws runs"],
    reference_values: Float[np.ndarray, " reference_runs"],
    reference_resampled: Float[np.ndarray, "draws reference_runs"],
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> PairedDifference | None:
    """Compare two models that were trained with several seeds, without correction; see the module.

    Args:
        values, reference_values: value of each run.
        resampled, reference_resampled: value of each run on every draw of the images, the same for both models.
        bounds: smallest and largest possible value of the metric.

    Returns:
        The difference of the means; None if one model has a single run, or if neither seeds nor images vary.
    """
    counts = len(values), len(reference_values)
    if min(counts) < 2:
        return None
    points = float(values.mean() - reference_values.mean())
    of_runs = [each.var(ddof=1) / len(each) for each in (values, reference_values)]
    of_seeds = sum(of_runs)
    denominator = sum(variance**2 / (runs - 1) for variance, runs in zip(of_runs, counts, strict=True))
    if min(counts) < _LEAST_RUNS_OF_WELCH or denominator <= 0:
        freedom = min(counts) - 1.0
    else:
        freedom = of_seeds**2 / denominator
    covariance = np.cov(np.concatenate([resampled, reference_resampled], axis=1), rowvar=False)
    of_model, of_reference = slice(0, counts[0]), slice(counts[0], None)
    shared = _shared_variance(covariance[of_model, of_model]) + _shared_variance(covariance[of_reference, of_reference])
    of_images = max(0.0, shared - 2.0 * float(covariance[of_model, of_reference].mean()))
    if of_seeds + of_images <= _NO_VARIANCE:
        return None

    def half_width(level: float) -> float:
        quantiles = stats.t.ppf(1 - level / 2, freedom), stats.norm.ppf(1 - level / 2)
        return float(np.sqrt(quantiles[0] ** 2 * of_seeds + quantiles[1] ** 2 * of_images))

    widest = bounds[1] - bounds[0]
    low, high = max(points - half_width(0.05), -widest), min(points + half_width(0.05), widest)
    if half_width(_LEAST_P) <= abs(points):
        p = _LEAST_P
    else:
        p = float(optimize.brentq(lambda level: half_width(level) - abs(points), _LEAST_P, 1.0))
    return PairedDifference(points, low, high, p)


def _shared_variance(covariance: Float[np.ndarray, "runs runs"]) -> float:
    """Return the mean of a covariance matrix off its diagonal."""
    runs = len(covariance)
    return float((covariance.sum() - np.trace(covariance)) / (runs * (runs - 1)))


def spread(each: Float[np.ndarray, " runs"]) -> float | None:
    """Return the sample standard deviation over runs; None for a single one."""
    return float(each.std(ddof=1)) if len(each) > 1 else None
