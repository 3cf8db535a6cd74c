"""Models against one of them, query by query: the paired differences that overlapping intervals cannot show.

From per_query.parquet, hits of each image are summed over its queries and seeds; `metrics.paired` does the rest. Only
models of one section are compared, and only where both tables ask the same queries and say what the results say.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.settings import CONTROL
from rococo_jax.errors import InputError
from rococo_jax.metrics.paired import FLIPS, PairedDifference, paired_differences
from rococo_jax.report.collection import Section
from rococo_jax.report.examples import PER_QUERY_FILE
from rococo_jax.report.scores import Run, by_clean_recall, tasks_of
from rococo_jax.report.vocabulary import CLEAN

METRICS = ("r1", "fr1")
_COLUMNS = ("task", "variant", "image", "rank", "top1_kind")
_ALTERED = ("own_altered", "other_altered")
_SAME = 1e-6  # points; the same count of hits, divided in another order


@dataclasses.dataclass(frozen=True)
class ImageHits:
    """Of one task and variant, by image in the order of names: hits for each of `METRICS`, and how many queries."""

    images: tuple[str, ...]
    hits: Int[np.ndarray, "images metrics"]
    queries: Int[np.ndarray, "images"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One model minus the reference on one variant, for each of `METRICS`; for R@1 alone on the clean gallery."""

    run: Run
    variant: str
    metrics: dict[str, PairedDifference]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All models of a section against one of them on one task.

    Attributes:
        reference: what the others are compared with.
        rows: model by model in the order of the leaderboard, variant by variant.
        left_out: labels of models whose queries could not be compared.
    """

    reference: Run
    rows: tuple[Difference, ...]
    left_out: tuple[str, ...]

    def find(self, run: Run, variant: str) -> Difference | None:
        """The row of a model and variant."""
        return next((row for row in self.rows if row.run is run and row.variant == variant), None)


Comparisons = dict[tuple[int, str], Comparison]


def compare_sections(sections: Sequence[Section], reference: str | None = None) -> Comparisons:
    """By place of the section and task, wherever there is something to compare.

    Args:
        sections: of comparable results.
        reference: label of the model that the others are compared with; by default the one with the best clean R@1.

    Raises:
        InputError: no model has that label, or a per_query.parquet is not whole.
    """
    labels = [run.label for section in sections for run in section.runs]
    if reference is not None and reference not in labels:
        raise InputError("--reference", "model", repr(reference), f"one of {', '.join(labels)}")
    found: Comparisons = {}
    for place, section in enumerate(sections):
        if len(section.runs) == 1:
            continue
        tables = {run.label: read_image_hits(run.path.parent / PER_QUERY_FILE) for run in section.runs}
        for task in tasks_of(section.runs):
            comparison = _compare(by_clean_recall(section.runs, task), task, tables, reference)
            if comparison is not None:
                found[place, task] = comparison
    return found


def _compare(
    runs: Sequence[Run],
    task: str,
    tables: dict[str, dict[tuple[str, str], ImageHits] | None],
    reference: str | None,
) -> Comparison | None:
    first = next((run for run in runs if run.label == reference), runs[0])
    base, pairs, left_out = tables[first.label] or {}, [], []
    for run in runs:
        if run is first:
            continue
        own = tables[run.label] or {}
        shared = [
            (run, variant, own[task, variant], base[task, variant])
            for variant in run.variants(task)
            if _fits(run, task, variant, own) and _fits(first, task, variant, base)
        ]
        shared = [pair for pair in shared if _same_queries(*pair[2:])]
        pairs += shared
        if not shared:
            left_out.append(run.label)
    if not pairs:
        return None
    return Comparison(first, tuple(_differences(pairs)), tuple(left_out))


def _fits(run: Run, task: str, variant: str, table: dict[tuple[str, str], ImageHits]) -> bool:
    """Whether the table of queries holds the variant, and gives the figures of the results."""
    found = table.get((task, variant))
    if found is None:
        return False
    counted = 100.0 * found.hits.sum(axis=0) / found.queries.sum()
    told = [run.figure(task, variant, name).value for name in METRICS]
    return all(value is not None and abs(value - count) < _SAME for value, count in zip(told, counted, strict=True))


def _same_queries(one: ImageHits, other: ImageHits) -> bool:
    return one.images == other.images and np.array_equal(one.queries, other.queries)


def _differences(pairs: Sequence[tuple[Run, str, ImageHits, ImageHits]]) -> Iterable[Difference]:
    """Comparisons over the same images see the same flips, and are made together."""
    by_images: dict[tuple[str, ...], list[tuple[Run, str, ImageHits, ImageHits]]] = {}
    for pair in pairs:
        by_images.setdefault(pair[2].images, []).append(pair)
    made: dict[tuple[str, str], Difference] = {}
    for members in by_images.values():
        hits, other = (np.concatenate([pair[side].hits for pair in members], axis=1) for side in (2, 3))
        queries = np.column_stack([pair[2].queries for pair in members for _ in METRICS])
        found = iter(paired_differences(hits, other, queries))
        for run, variant, _, _ in members:
            each = {name: next(found) for name in METRICS}
            # Nothing altered is in the clean gallery: no first choice can be.
            made[run.label, variant] = Difference(run, variant, {"r1": each["r1"]} if variant == CLEAN else each)
    return [made[run.label, variant] for run, variant, _, _ in pairs]


def read_image_hits(path: Path) -> dict[tuple[str, str], ImageHits] | None:
    """Hits by task and variant; None where there is no such file (`rococo score` without it).

    Raises:
        InputError: the file is not whole, or lacks a column.
    """
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    wanted = "the per-query table that `rococo evaluate` writes beside results.json"
    if not path.exists():
        return None
    try:
        names = parquet.read_schema(path).names
        missing = [name for name in _COLUMNS if name not in names]
        if missing:
            raise InputError(path, "columns", f"no {', '.join(missing)}", wanted)
        table = parquet.read_table(path, columns=list(_COLUMNS))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(path, "parquet", str(error).splitlines()[0], f"{wanted}, whole") from None
    kinds = compute.cast(table["top1_kind"], pyarrow.string())
    counted = pyarrow.table(
        {name: compute.cast(table[name], pyarrow.string()) for name in ("task", "variant", "image")}
        | {
            "r1": compute.cast(compute.less_equal(table["rank"], 1), pyarrow.int64()),
            "fr1": compute.cast(compute.is_in(kinds, pyarrow.array(_ALTERED)), pyarrow.int64()),
        }
    )
    sums = counted.group_by(["task", "variant", "image"]).aggregate([("r1", "sum"), ("fr1", "sum"), ("r1", "count")])
    rows: dict[tuple[str, str], list[tuple[str, int, int, int]]] = {}
    for row in sums.to_pylist():
        key = (row["task"], row["variant"])
        rows.setdefault(key, []).append((row["image"] or "", row["r1_sum"], row["fr1_sum"], row["r1_count"]))
    return {key: _image_hits(sorted(members)) for key, members in rows.items()}


def _image_hits(rows: Sequence[tuple[str, int, int, int]]) -> ImageHits:
    numbers = np.array([row[1:] for row in rows], np.int64)
    return ImageHits(tuple(row[0] for row in rows), numbers[:, :2], numbers[:, 2])


def told_of(comparison: Comparison) -> str:
    """What a reader must know before the table of differences."""
    count = sum(len(row.metrics) for row in comparison.rows)
    by_chance = max(1, round(0.05 * count))
    text = (
        f"Each model minus {comparison.reference.label}, in percentage points, paired by image: 95 % bootstrap "
        f"interval, and p of a two-sided sign-flip permutation test over images ({FLIPS:,} flips, so never below "
        f"{1 / (FLIPS + 1):.4f}). p is not corrected for the {count} comparisons made here: about {by_chance} below "
        "0.05 would be expected from models that are all alike. Intervals without zero are bold on the page."
    )
    if any(row.variant == CONTROL for row in comparison.rows):
        text += " Of the control, see the note on variants above."
    if comparison.left_out:
        text += f" Not compared, for want of a table of the same queries: {', '.join(comparison.left_out)}."
    return text
