"""Benchmark headlines, and variants that are made of several parts.

A benchmark of several parts has two numbers over all of them: `all`, for which all items count alike, and `mean`, the
mean over parts, each with the same weight. Papers print one or the other, and the two can be far apart. So results have
both, and each benchmark declares which of them is its headline.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from rococo_jax.benchmarks.variants import ALL, MEAN, Variant
from rococo_jax.errors import is_whole

Pooling = Literal["items", "parts"]
# The variant over all parts of a benchmark, by the way of pooling.
OVER_ALL_PARTS: Mapping[Pooling, str] = {"items": ALL, "parts": MEAN}
# Begins the source of a headline that neither a paper nor public code states.
OURS = "[ours]"


@dataclasses.dataclass(frozen=True)
class Headline:
    """The number by which a benchmark ranks models.

    Attributes:
        metric: its name in `results.json`; empty for the first metric of items that may be of any kind.
        pooling: `items` where all items count alike, `parts` for the mean over parts.
        source: the paper or public code that says so; begins with `[ours]` where none is known.
        variant: its name in `results.json`; empty for the variant over all parts, `all` or `mean`.
    """

    metric: str
    pooling: Pooling
    source: str
    variant: str = ""

    @property
    def variants(self) -> tuple[str, ...]:
        """The variant, or the two over all parts, the declared one first."""
        if self.variant:
            return (self.variant,)
        return tuple(sorted(OVER_ALL_PARTS.values(), key=lambda name: name != OVER_ALL_PARTS[self.pooling]))

    @property
    def phrase(self) -> str:
        """The headline in words: metric, variant and pooling.

        >>> Headline("group_score", "items", "the paper").phrase
        'group_score of all, all items alike'
        """
        how = {"items": "all items alike", "parts": "mean over parts"}[self.pooling]
        return f"{self.metric or 'the first metric'} of {self.variants[0]}, {how}"


@dataclasses.dataclass(frozen=True)
class HumanResults:
    """Published results of people on a benchmark: a reference in tables, never ranked, tested or correlated.

    Attributes:
        values: by variant and metric, in percent; exactly those that the source has.
        items: the items that people answered, as a phrase after "humans", as far as the source states them.
        source: paper, table or data.
        task: name of the task; empty for the name of the benchmark.
    """

    values: Mapping[str, Mapping[str, float]]
    items: str
    source: str
    task: str = ""


@dataclasses.dataclass(frozen=True)
class Pool:
    """A variant that several tasks make together.

    Attributes:
        variant: its fields; their name stands in `results.json`.
        pooling: `items` where all items of the parts count alike, `parts` for the mean over parts, `kinds` for the mean
            over kinds of corruption of the same items.
        of_parts: the number of parts that the benchmark declares for it; None where they are not known beforehand.
    """

    variant: Variant
    pooling: Literal["items", "parts", "kinds"]
    of_parts: int | None = None

    def of_subset(self, **fields: Any) -> "Pool":
        """The same over some of the items, as the variant with other `fields`."""
        return dataclasses.replace(self, variant=dataclasses.replace(self.variant, **fields))

    def of_kind(self, kind: str) -> "Pool":
        """The same over the parts of one kind."""
        variant = dataclasses.replace(self.variant, pooled=f"{kind}/{self.variant.pooled}")
        return dataclasses.replace(self, variant=variant, of_parts=None)


def pools_over(variant: str, pooling: Pooling, of_parts: int | None) -> tuple[Pool, Pool]:
    """Return both ways of pooling the same parts, `pooling` first.

    The mean over parts has the name `variant`; the variant over all their items is called `all`, or `VARIANT/all` where
    the parts are not all of the benchmark.
    """
    over_items = ALL if variant == MEAN else f"{variant}/{ALL}"
    means, all_items = (Variant(pooled=name) for name in (variant, over_items))
    pools = Pool(means, "parts", of_parts), Pool(all_items, "items", of_parts)
    return pools if pooling == "parts" else pools[::-1]


@runtime_checkable
class HasPools(Protocol):
    """A task, as far as pooling goes."""

    @property
    def name(self) -> str:
        """Name of the task in results."""
        ...

    @property
    def variation(self) -> Variant:
        """Variant of the task alone."""
        ...

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Further variants that it and others make together."""
        ...

    @property
    def kind(self) -> str:
        """Kind of the task, which decides its metrics."""
        ...


@dataclasses.dataclass(frozen=True)
class Members:
    """The tasks that a variant is made of.

    Attributes:
        pool: how they are pooled; None for one task, or its seeds.
        places: of the tasks among all.
    """

    pool: Pool | None
    places: list[int]


def group_by_variant(tasks: Sequence[HasPools]) -> dict[tuple[str, str], Members]:
    """Return the members of each variant by (task, variant); pooled variants stand before their first part.

    A single part is not pooled, and no pool has the name of a part: see `taken_names`. Parts of several kinds have no
    metric in common, so each kind is pooled alone, as `KIND/mean` and `KIND/all`.
    """
    names = {(task.name, task.variation.name) for task in tasks}
    kinds: dict[tuple[str, str], set[str]] = {}
    for task in tasks:
        for pool in task.pools:
            kinds.setdefault((task.name, pool.variant.name), set()).add(task.kind)
    groups: dict[tuple[str, str], Members] = {}
    for place, task in enumerate(tasks):
        for pool in task.pools:
            if len(kinds[task.name, pool.variant.name]) > 1:
                pool = pool.of_kind(task.kind)
            if (name := (task.name, pool.variant.name)) not in names:
                groups.setdefault(name, Members(pool, [])).places.append(place)
        groups.setdefault((task.name, task.variation.name), Members(None, [])).places.append(place)
    return {
        name: members
        for name, members in groups.items()
        if members.pool is None or members.pool.pooling == "kinds" or len(members.places) > 1
    }


def taken_names(tasks: Sequence[HasPools]) -> list[tuple[str, str]]:
    """Return (task, variant) of each pool that is left out because a part has its name."""
    variants: dict[str, set[str]] = {}
    for task in tasks:
        variants.setdefault(task.name, set()).add(task.variation.name)
    names = {(task.name, task.variation.name): len(variants[task.name]) for task in tasks}
    pools = dict.fromkeys((task.name, pool.variant.name) for task in tasks for pool in task.pools)
    return [pool for pool in pools if names.get(pool, 0) > 1]


def coverage_phrase(sizes: Mapping[str, Any]) -> str:
    """Return the coverage of a variant, to be read after its name; empty where it has all parts and items.

    A pooled variant that lacks parts has their number; a class of items (`benchmarks.bindings`) has that of its items.

    >>> coverage_phrase({"items": 40, "parts": 4, "of_parts": 11}), coverage_phrase({"parts": 11, "of_parts": 11})
    (' (4 of 11 parts)', '')
    >>> coverage_phrase({"items": 1040, "of_items": 7511, "parts": 7})
    ' (1,040 items)'
    """
    if "of_items" in sizes:
        return f" ({sizes['items']:,} item{'s' * (sizes['items'] != 1)})"
    parts, of_parts = sizes.get("parts"), sizes.get("of_parts")
    return f" ({parts} of {of_parts} parts)" if is_whole(parts) and is_whole(of_parts) and parts < of_parts else ""
