"""Count rows, one for each query or item of a task, variant and seed, from which all results are computed.

`per_query.parquet` contains the rows. Its columns are

    benchmark, task, part, alteration, corruption, severity, seed    keys, typed; null where a key does not apply
    variant              name of the variant in `results.json`
    image, unit          image of the row, and number of the group that is resampled together; numbers ascend in the
                         order of the bootstrap draws
    scene                name of the image that stands for the unit, where another image of the same scene does; null
                         where the image itself stands for it; only for items with scenes
    query or item, and further descriptions of the row (caption, rank, top1_text, label, ...)
    seen                 whether the model was trained on an image of the row; only if that is known
    bindings             class of the item by the bindings of its texts, null for none; only if requested
    counted columns      such as `r1`, `ota`, `top1` (true if the row counts), `nll` (a number), `pairs` with the sums
                         `preference`, `blind`, `grounding`, `difference_r1` over that many pairs

A metric is a function of sums of counted columns (`metrics.rows`). The part `variants` of `results.json` defines the
rows of a variant: those of its own name, or of the names in `of`, pooled over `items`, `parts` or `kinds`. A variant
that is `unseen` has only the rows that are not `seen`, and one with `bindings` only the rows of that class.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pooling import Members, Pool, group_by_variant
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import Tables
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.metrics.counts import Counts, coarsen_units
from rococo_jax.metrics.ood import OodScores
from rococo_jax.perturb.text.bindings import CLASSES

# Columns of each row, and the unit that it is resampled with -> counts.
Count = Callable[[Mapping[str, np.ndarray], Int[np.ndarray, " rows"]], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class CountedRows:
    """Rows of one task, variant and seed.

    Attributes:
        name: name of the task.
        kind: kind of the task.
        variation: the variant.
        seed: seed of the alteration, if there are several.
        baseline: name of the variant that drops are measured against; empty for none.
        pools: pooled variants that these rows are part of.
        columns: counted columns.
        unit: number of the group that each row is resampled with.
        image: number of each row's image.
        unit_names: names of units by number, ascending, which two models share; None to use numbers.
        count: computes the counts of the task's kind from the columns.
        seen: whether the model was trained on an image of the row; None if that is not known.
        bindings: class of each row by the bindings of its texts; None if it is not requested.
        sizes: numbers of queries, gallery items, images, ...
        outcome: the outcome that the rows come from; None for rows that were read from a file.
    """

    name: str
    kind: str
    variation: Variant
    seed: int | None
    baseline: str
    pools: tuple[Pool, ...]
    columns: Mapping[str, np.ndarray]
    unit: Int[np.ndarray, " rows"]
    image: Int[np.ndarray, " rows"]
    count: Count
    unit_names: Any = None
    seen: Bool[np.ndarray, " rows"] | None = None
    bindings: np.ndarray | None = None
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    outcome: Outcome | None = None

    @functools.cached_property
    def counted(self) -> Counts | OodScores:
        """Counts of the rows, with their metrics."""
        if self.unit_names is None:
            return self.count(self.columns, coarsen_units(self.unit))
        return self.count(self.columns, self.unit).with_unit_names(self.unit_names)

    def on_unseen_images(self) -> "CountedRows":
        """Return the rows on images that the model was not trained on, as the variant `NAME/unseen`."""
        assert self.seen is not None
        pools = [pool.of_subset(unseen=True) for pool in self.pools]
        return self._subset(~self.seen, f"{self.baseline}/unseen" if self.baseline else "", pools, unseen=True)

    def of_bindings(self, name: str) -> "CountedRows":
        """Return the rows of one class of bindings, as the variant `NAME/bindings_CLASS`, pooled over items only."""
        pools = [
            dataclasses.replace(pool.of_subset(bindings=name), of_parts=None)
            for pool in self.pools
            if pool.pooling == "items"
        ]
        rows = self._subset(self.bindings == name, "", pools, bindings=name)
        return dataclasses.replace(rows, sizes={**rows.sizes, "of_items": len(self.unit)})

    def _subset(
        self, rows: Bool[np.ndarray, " rows"], baseline: str, pools: Sequence[Pool], **fields: Any
    ) -> "CountedRows":
        """Return some of the rows, as the variant with other `fields`."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        image = self.image[rows]
        recounted = {"queries": len(image), "items": len(image), "images": len(np.unique(image))}
        if "inside" in columns:
            inside = int(columns["inside"].sum())
            recounted |= {"inside": inside, "outside": len(image) - inside}
        return dataclasses.replace(
            self,
            variation=dataclasses.replace(self.variation, **fields),
            baseline=baseline,
            pools=tuple(pools),
            columns=columns,
            unit=self.unit[rows],
            image=image,
            seen=None if self.seen is None else self.seen[rows],
            bindings=None if self.bindings is None else self.bindings[rows],
            sizes={name: recounted.get(name, size) for name, size in self.sizes.items()},
        )


def rows_of_outcomes(
    outcomes: Sequence[Outcome], seen: Sequence[Bool[np.ndarray, " _"] | None] = ()
) -> list[CountedRows]:
    """Return the rows of each outcome.

    Args:
        seen: for each outcome the rows on images that the model was trained on; empty if that is not known.
    """
    unaltered = {(each.task, each.variant): each for each in outcomes if each.seed is None}
    rows = []
    for outcome, of_outcome in zip(outcomes, seen or [None] * len(outcomes), strict=True):
        baseline = unaltered.get((outcome.task, outcome.baseline)) if outcome.variant != outcome.baseline else None
        change = {} if baseline is None else outcome.change_counts(baseline)
        rows.append(
            CountedRows(
                name=outcome.task,
                kind=outcome.kind,
                variation=outcome.variation,
                seed=outcome.seed,
                baseline=outcome.baseline,
                pools=outcome.pools,
                columns={**outcome.counts, **outcome.pair_counts, **change},
                unit=outcome.unit,
                image=outcome.image_rows,
                count=outcome.count,
                seen=of_outcome,
                bindings=outcome.bindings,
                sizes=outcome.sizes,
                outcome=outcome,
            )
        )
    return rows


def counts_of(rows: Sequence[CountedRows], pool: Pool | None) -> Counts | OodScores:
    """Return the counts of a variant from those of its seeds, kinds or parts."""
    parts = [each.counted for each in rows]
    if len(parts) == 1:
        return parts[0]
    return Counts.pool(parts) if pool is not None and pool.pooling == "items" else Counts.mean(parts)


def with_bindings(rows: Sequence[CountedRows]) -> list[CountedRows]:
    """Return the rows, and those of variants over the items of each class of bindings that has any."""
    rows_with_bindings = [each for each in rows if each.bindings is not None]
    return [
        *rows,
        *(each.of_bindings(name) for name in CLASSES for each in rows_with_bindings if name in each.bindings),
    ]


def with_unseen(rows: Sequence[CountedRows]) -> list[CountedRows]:
    """Return the rows, and those of variants over unseen images.

    A variant has such rows if not all of its rows are seen, and some of its rows, or of those it is pooled with, are.
    """
    pools = {
        (each.name, pool.variant) for each in rows for pool in each.pools if each.seen is not None and each.seen.any()
    }
    unseen = []
    for each in rows:
        if each.seen is None or each.seen.all():
            continue
        if each.seen.any() or any((each.name, pool.variant) in pools for pool in each.pools):
            unseen.append(each.on_unseen_images())
    return [*rows, *unseen]


# (task, variant) -> how the variant is pooled, and its rows.
Groups = dict[tuple[str, str], tuple[Pool | None, list[CountedRows]]]


def group_rows(rows: Sequence[CountedRows]) -> Groups:
    """Return the rows of each variant; pooled variants come before their first part."""
    members: dict[tuple[str, str], Members] = group_by_variant(rows)
    return {name: (each.pool, [rows[place] for place in each.places]) for name, each in members.items()}


def describe_variants(groups: Groups) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the part `variants` of results: by task and name the fields of each variant, and which rows make it."""
    described: dict[str, dict[str, dict[str, Any]]] = {}
    for (task, name), (pool, rows) in groups.items():
        variation = rows[0].variation if pool is None else pool.variant
        about = variation.fields | {"kind": rows[0].kind}
        if rows[0].baseline not in ("", name):
            about["baseline"] = rows[0].baseline
        if pool is not None:
            about["pooling"] = pool.pooling
        if pool is not None or variation.is_subset:
            about["of"] = list(dict.fromkeys(each.variation.whole for each in rows))
        described.setdefault(task, {})[name] = about
    return described


def row_table(benchmark: str, rows: CountedRows, tables: Tables) -> Any:
    """Return the rows for `per_query.parquet` (`pyarrow.Table`)."""
    import pyarrow as pa

    assert rows.outcome is not None
    described = rows.outcome.rows(tables)
    count, variation = len(rows.unit), rows.variation
    keys = {
        "benchmark": _repeated(benchmark, count, pa.string()),
        "task": _repeated(rows.name, count, pa.string()),
        "variant": _repeated(variation.name, count, pa.string()),
        "part": _repeated(variation.part or None, count, pa.string()),
        "alteration": _repeated(variation.alteration or None, count, pa.string()),
        "corruption": _repeated(variation.corruption or None, count, pa.string()),
        "severity": _repeated(variation.severity or None, count, pa.int8()),
        "seed": _repeated(rows.seed, count, pa.int64()),
        "unit": pa.array(rows.unit, pa.int32()),
    }
    columns = {name: described[name].combine_chunks() for name in described.column_names}
    if (is_other := rows.unit != rows.image).any():
        names = np.array(tables.images, object)[np.where(is_other, rows.unit, 0)]
        columns["scene"] = pa.array(names, pa.string(), mask=~is_other)
    columns |= {} if rows.seen is None else {"seen": pa.array(rows.seen)}
    columns |= (
        {} if rows.bindings is None else {"bindings": pa.array(rows.bindings, pa.string(), mask=rows.bindings == "")}
    )
    columns |= {name: pa.array(column) for name, column in rows.columns.items() if name not in columns}
    return pa.table(keys | columns)


def _repeated(value: Any, count: int, kind: Any) -> Any:
    """Return a column of one value; texts are dictionary-coded, None is null."""
    import pyarrow as pa

    if not pa.types.is_string(kind):
        return pa.nulls(count, kind) if value is None else pa.array(np.full(count, value), kind)
    codes = pa.nulls(count, pa.int32()) if value is None else pa.array(np.zeros(count, np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array([] if value is None else [value], kind))
