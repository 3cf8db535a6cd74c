"""Counts of a variant, summed over the rows of each unit, and its metrics as functions of the sums.

    row      a query, an item or an image, with a number in each counted column
    unit     rows that are resampled and swapped together, because they are not independent: those of an image or scene
    run      rows of one seed, of one part of a benchmark, or of one kind of corruption
    metric   the mean over runs of f(100 * sum of each column / sum of the entries), for any weights of the units

Values, bootstrap intervals, drops, paired tests and statistics over seeds are all computed from such weighted sums.
"""

import dataclasses
import functools
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from rococo_jax.metrics.intervals import (
    RESAMPLES,
    SEED,
    Interval,
    distance_interval,
    percentile_ends,
    share_interval,
    sums_over_draws,
)
from rococo_jax.metrics.metric import ROWS, Metric, Shares, columns_of, drop

# With more units than this, random unions of units are resampled: intervals are as wide, and much cheaper.
MOST_UNITS, UNIONS = 50_000, 20_000

Units = Shaped[np.ndarray, " units"]


class Binned(NamedTuple):
    """Column of numbers that are summed by bin, as the columns `NAME_0`, `NAME_1`, ..."""

    bins: int
    bin: Int[np.ndarray, " rows"]
    value: Float[np.ndarray, " rows"]


Column = np.ndarray | Binned


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Sums of one run.

    Attributes:
        units: numbers or names, ascending.
        sums: of each column over the rows of each unit.
        columns: their names. `rows` counts the rows.
        metrics: functions of the sums, by name.
        constants: values that are no functions of sums; they have no interval.
    """

    units: Units
    sums: Float[np.ndarray, "units columns"]
    columns: tuple[str, ...]
    metrics: Mapping[str, Metric]
    constants: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def places(self) -> dict[str, dict[str, int]]:
        """Places of the columns that each metric reads, by name of the metric and of the column."""
        place = {name: number for number, name in enumerate(self.columns)}
        return {
            name: {each: place[each] for each in columns_of(metric, self.columns)}
            for name, metric in self.metrics.items()
        }

    def counts(self, metric: str, sums: Float[np.ndarray, "*draws columns"]) -> Shares:
        """Return the sums of the columns that a metric reads, by name."""
        return {name: np.asarray(sums[..., place]) for name, place in self.places[metric].items()}

    def shares(self, metric: str, sums: Float[np.ndarray, "*draws columns"]) -> Shares:
        """Return what a metric is a function of, in percent of the entries."""
        entries = self.entries(metric, sums)
        # A draw without any entry has no value; it is excluded from the percentiles.
        with np.errstate(invalid="ignore", divide="ignore"):
            return {name: np.asarray(100.0 * each / entries) for name, each in self.counts(metric, sums).items()}

    def entries(self, metric: str, sums: Float[np.ndarray, "*draws columns"]) -> Float[np.ndarray, "*draws"]:
        """Return the numbers of rows, or of pairs, that a metric is a mean over."""
        return np.asarray(sums[..., self.columns.index(self.metrics[metric].per)])

    def value(self, metric: str, sums: Float[np.ndarray, "*draws columns"]) -> Float[np.ndarray, "*draws"]:
        """Return a metric of sums, in its unit; NaN where it is undefined."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.metrics[metric].function(self.shares(metric, sums)))

    def on(self, units: Units) -> Float[np.ndarray, "units columns"]:
        """Return the sums of these units, zeros for absent ones."""
        if np.array_equal(units, self.units):
            return self.sums
        place = np.searchsorted(self.units, units)
        is_known = np.append(self.units, self.units[-1:])[place] == units if len(self.units) else place < 0
        return np.where(is_known[:, None], np.concatenate([self.sums, np.zeros((1, len(self.columns)))])[place], 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """Counts of one variant of one model; its metrics are means over its runs."""

    runs: tuple[Run, ...]

    resamples = None  # draws of intervals, where they are not the usual number

    @classmethod
    def of_rows(
        cls,
        columns: Mapping[str, Column],
        unit: Int[np.ndarray, " rows"],
        metrics: Collection[Metric],
        constants: Mapping[str, float] = types.MappingProxyType({}),
    ) -> "Counts":
        """Sum the columns of the rows of one run by unit. A column `rows` replaces that of one entry for each row."""
        units, place = np.unique(unit, return_inverse=True)
        names, sums = [], []
        for name, column in {ROWS: np.ones(len(unit)), **columns}.items():
            if isinstance(column, Binned):
                names += [f"{name}_{number}" for number in range(column.bins)]
                cells = np.bincount(place * column.bins + column.bin, column.value, len(units) * column.bins)
                sums += list(cells.reshape(-1, column.bins).T)
            else:
                names.append(name)
                sums.append(np.bincount(place, column, len(units)))
        by_name = {metric.name: metric for metric in metrics}
        return cls((Run(units, np.column_stack(sums).astype(np.float64), tuple(names), by_name, constants),))

    @classmethod
    def mean(cls, parts: Sequence["Counts"]) -> "Counts":
        """Return the counts of a variant whose metrics are means over parts, each with the same weight."""
        return cls(tuple(run for part in parts for run in part.runs))

    @classmethod
    def pool(cls, parts: Sequence["Counts"]) -> "Counts":
        """Return the counts of the rows of all parts together, with the shares that every part has."""
        every = cls.mean(parts)
        shares = [name for name, metric in every.metrics.items() if metric.is_share]
        runs = [_only(run, shares) for run in every.runs]
        sums = np.sum([run.on(every.units) for run in runs], axis=0)
        return cls((dataclasses.replace(runs[0], units=every.units, sums=sums),))

    @functools.cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of every run, in the order of the first; drops are measured on the first of them."""
        first, *others = self.runs
        return {name: metric for name, metric in first.metrics.items() if all(name in run.metrics for run in others)}

    @property
    def primary(self) -> str:
        """Metric on which a drop is measured."""
        return next(iter(self.metrics))

    @functools.cached_property
    def units(self) -> Units:
        """The units of any run, ascending."""
        first, *others = (run.units for run in self.runs)
        are_equal = all(np.array_equal(first, each) for each in others)
        return first if are_equal else np.unique(np.concatenate([first, *others]))

    def on(self, units: Units) -> Float[np.ndarray, "units columns"]:
        """Return the sums of all runs side by side for these units, zeros for absent ones."""
        return np.concatenate([run.on(units) for run in self.runs], axis=1)

    def of(self, metric: str, sums: Float[np.ndarray, "*draws columns"]) -> Float[np.ndarray, "*draws"]:
        """Return a metric of sums of the columns of `on`, in its unit; NaN where it is undefined."""
        values = (run.value(metric, part) for run, part in zip(self.runs, self._split(sums), strict=True))
        return np.asarray(np.mean(np.stack(list(values)), axis=0))

    def _split(self, sums: Float[np.ndarray, "*draws columns"]) -> list[np.ndarray]:
        ends = np.cumsum([len(run.columns) for run in self.runs])[:-1]
        return np.split(sums, ends, axis=-1)

    def value(self, metric: str) -> float:
        """Return a metric over all units, in its unit; NaN where it is undefined."""
        return float(np.mean(self._of_runs(metric)))

    def _of_runs(self, metric: str) -> Float[np.ndarray, " runs"]:
        if metric in self.runs[0].constants:
            return np.array([run.constants[metric] for run in self.runs])
        return np.array([run.value(metric, run.sums.sum(axis=0)) for run in self.runs])

    def values(self, baseline: "Counts | None" = None, *, over_seeds: bool = False) -> dict[str, float | None]:
        """Return every metric, in its unit.

        Args:
            baseline: adds `drop` and `drop_points` of its primary metric.
            over_seeds: the runs are seeds: if there are several, the sample standard deviation over them is added to
                each metric, as `r1_std` and so on. That of kinds or parts would not be the uncertainty of the mean.
        """
        first, *others = (run.constants for run in self.runs)
        constants = [name for name in first if all(name in each for each in others)]
        of_runs = {name: self._of_runs(name) for name in (*self.metrics, *constants)}
        values: dict[str, float | None] = {name: float(each.mean()) for name, each in of_runs.items()}
        if over_seeds and len(self.runs) > 1:
            values |= {f"{name}_std": float(each.std(ddof=1)) for name, each in of_runs.items()}
        if baseline is not None:
            values |= drop(baseline.value(baseline.primary), values[baseline.primary])
        return values

    def intervals(
        self, baseline: "Counts | None" = None, *, resamples: int = RESAMPLES, seed: int = SEED
    ) -> dict[str, Interval]:
        """Return `[low, high]` of every metric that is a function of sums, in its unit; see `metrics.intervals`.

        All runs are resampled with the same units, which are those with an entry in any run or in the baseline. The
        interval of `drop` is None if the baseline is 0 in any draw, because the drop is then undefined. A share of
        numbers that are not whole, such as probabilities, has the bootstrap's interval.
        """
        bounds: dict[str, Interval] = {}
        for per in dict.fromkeys(metric.per for metric in self.metrics.values()):
            counts = self.only([name for name, metric in self.metrics.items() if metric.per == per])
            bounds |= counts._intervals(per, baseline if self.primary in counts.metrics else None, resamples, seed)
        return bounds

    def _intervals(self, per: str, baseline: "Counts | None", resamples: int, seed: int) -> dict[str, Interval]:
        """Return the intervals of metrics with the same entries."""
        with_entries = [run.units[run.sums[:, run.columns.index(per)] > 0] for run in self.runs]
        every = [self] if baseline is None else [self, baseline.only([baseline.primary])]
        units = np.unique(np.concatenate([*with_entries, *(each.units for each in every[1:])]))
        draws, *of_baseline = sums_of_draws(every, units, resamples, seed)
        bounds = {name: self._interval(name, units, draws) for name in self.metrics}
        if baseline is not None:
            before, after = every[1].of(baseline.primary, *of_baseline), self.of(baseline.primary, draws)
            bounds["drop"] = percentile_ends(100.0 * (before - after) / before) if before.all() else None
            bounds["drop_points"] = percentile_ends(before - after)
        return bounds

    def _interval(self, name: str, units: Units, draws: Float[np.ndarray, "draws columns"]) -> Interval:
        metric, of_draws = self.metrics[name], list(zip(self.runs, self._split(draws), strict=True))
        if metric.is_distance:
            observed = [run.shares(name, run.sums.sum(axis=0)) for run in self.runs]
            return distance_interval(metric, observed, [run.shares(name, sums) for run, sums in of_draws])
        if metric.is_share:
            # A share is a sum of columns: of counts as of shares.
            of_units = [run.on(units) for run in self.runs]
            pairs = list(zip(self.runs, of_units, strict=True))
            hits = np.stack([metric.function(run.counts(name, sums)) for run, sums in pairs])
            entries = np.stack([run.entries(name, sums) for run, sums in pairs])
            if np.array_equal(hits, np.rint(hits)) and (hits >= 0).all() and (hits <= entries).all():
                return share_interval(hits, entries)
        return percentile_ends(self.of(name, draws))

    def only(self, names: Collection[str]) -> "Counts":
        """Return the counts with these metrics, and the columns that they are functions of."""
        return Counts(tuple(map(functools.partial(_only, names=names), self.runs)))

    def has_same_entries(self, other: "Counts", metric: str) -> bool:
        """Whether both count the same number of queries, items or pairs of each unit for a metric."""
        return len(self.runs) == len(other.runs) and all(
            np.array_equal(one.units, two.units)
            and np.array_equal(one.entries(metric, one.sums), two.entries(metric, two.sums))
            for one, two in zip(self.runs, other.runs, strict=True)
        )

    def with_unit_names(self, names: Any) -> "Counts":
        """Return the counts with the names of units, ascending, in place of their numbers."""
        return Counts(tuple(dataclasses.replace(run, units=names[run.units]) for run in self.runs))


def _only(run: Run, names: Collection[str]) -> Run:
    metrics = {name: metric for name, metric in run.metrics.items() if name in names}
    read = (
        {ROWS} | {metric.per for metric in metrics.values()} | {each for name in metrics for each in run.places[name]}
    )
    columns = tuple(sorted(read))  # the same for all runs with these metrics
    sums = run.sums[:, [run.columns.index(name) for name in columns]]
    return dataclasses.replace(run, sums=sums, columns=columns, metrics=metrics, constants={})


def sums_of_draws(
    counts: Sequence[Counts], units: Units, resamples: int = RESAMPLES, seed: int = SEED
) -> list[Float[np.ndarray, "resamples columns"]]:
    """Return the sums of the columns of several counts on the same draws of units."""
    matrices = [each.on(units) for each in counts]
    ends = np.cumsum([matrix.shape[1] for matrix in matrices])[:-1]
    return np.split(sums_over_draws(np.concatenate(matrices, axis=1), resamples, seed), ends, axis=1)


def coarsen_units(unit: Int[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Return the units, or random unions of them if there are more than `MOST_UNITS`."""
    if len(unit) <= MOST_UNITS or (units := np.unique(unit)).size <= MOST_UNITS:
        return unit
    return np.random.default_rng(0).integers(0, UNIONS, units.size)[np.searchsorted(units, unit)]
