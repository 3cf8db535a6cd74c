"""Runs of several seeds beside each other, from the `per_query.parquet` of each: values, and on draws of images.

Images are drawn with replacement as in `metrics.intervals`; the queries of an image come and go together, and all runs
are drawn with the same images. So an interval of a mean over runs says what other images would have given, and the
spread over runs what other seeds would have.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.metrics.intervals import sums_over_draws
from rococo_jax.storage import read_table, whole_file

METRICS = ("r1", "fr1")
_ALWAYS = ("task", "variant", "image")
# Metric -> the columns that it is counted from; a table has the columns of the kinds of its tasks.
_COUNTED_FROM = {"r1": "rank", "fr1": "top1_kind", "ota": "chosen", "top1": "chosen"}
# Of these the column of the same name is true or false.
_COUNTED_FROM |= {name: name for name in ("ata", "tot", "group_score", "text_score", "image_score")}
_ALTERED = ("own_altered", "other_altered")
_WANTED = "the per-query table that `rococo evaluate` writes beside results.json"

# Task and variant.
Question = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class ImageHits:
    """Hits of each metric and queries of one task and variant, by image in the order of names."""

    images: tuple[str, ...]
    hits: Mapping[str, Num[np.ndarray, " images"]]
    queries: Int[np.ndarray, " images"]


@dataclasses.dataclass(frozen=True, eq=False)
class PerImage:
    """One run's hits, summed over the queries of each image.

    Attributes:
        images: their names, sorted.
        hits: task and variant -> metric -> hits of each image times 100.
        queries: task and variant -> queries of each image.
    """

    images: tuple[str, ...]
    hits: Mapping[Question, Mapping[str, Float[np.ndarray, " images"]]]
    queries: Mapping[Question, Float[np.ndarray, " images"]]


def read_per_image(folder: str | Path) -> PerImage:
    """R@1 and FR@1, or OTA, of every image, from the `per_query.parquet` in a folder.

    Raises InputError: as `read_image_hits`.
    """
    found = read_image_hits(Path(folder) / PER_QUERY)
    names = tuple(sorted({name for each in found.values() for name in each.images}))
    place = {name: number for number, name in enumerate(names)}

    def spread_out(images: Sequence[str], counts: Int[np.ndarray, " asked"]) -> Float[np.ndarray, " images"]:
        over_all = np.zeros(len(names))
        over_all[[place[name] for name in images]] = counts
        return over_all

    hits = {
        key: {name: 100 * spread_out(each.images, counts) for name, counts in each.hits.items()}
        for key, each in found.items()
    }
    return PerImage(names, hits, {key: spread_out(each.images, each.queries) for key, each in found.items()})


def read_image_hits(path: Path) -> dict[tuple[str, str], ImageHits]:
    """Hits by task and variant; none where there is no such file.

    Raises InputError: the file is not whole, or lacks a column.
    """
    import pyarrow
    import pyarrow.compute as compute

    counted = counted_columns(path)
    if not counted:
        return {}
    table = _read_rows(path, _WANTED, dict.fromkeys(counted.values()))
    hits = {
        "r1": lambda column: compute.less_equal(column, 1),
        "fr1": lambda column: compute.is_in(compute.cast(column, pyarrow.string()), pyarrow.array(_ALTERED)),
        "ota": lambda column: compute.equal(compute.cast(column, pyarrow.string()), "right"),
        "top1": lambda column: compute.equal(compute.cast(column, pyarrow.string()), "right"),
    }
    with whole_file(path, _WANTED):
        columns: dict[str, Any] = {name: table[name] for name in _ALWAYS}
        for metric, column in counted.items():
            hit = hits.get(metric, lambda column: column)(table[column])
            hit = compute.if_else(compute.is_null(table[column]), None, hit)
            columns[metric] = compute.cast(hit, pyarrow.int64())
    return _sums_by_image(columns)


def read_pair_hits(path: Path) -> dict[tuple[str, str], ImageHits]:
    """Preference, blind, grounding and difference R@1 by task and variant; none where there is no such file.

    A hit is a share here, and `queries` are pairs, each with every query that shows it.

    Raises InputError: the file is not whole, or lacks a column.
    """
    import pyarrow
    import pyarrow.compute as compute

    if not path.exists():
        return {}
    shares = ("preference", "blind", "grounding")
    wanted = "the table of pairs that `rococo evaluate` writes"
    table = _read_rows(path, wanted, [*shares, "rank", "wrong_queries"])
    with whole_file(path, wanted):
        table = table.filter(compute.greater(table["wrong_queries"], 0))
        columns: dict[str, Any] = {name: table[name] for name in (*_ALWAYS, *shares)}
        columns["difference_r1"] = compute.cast(compute.equal(table["rank"], 1), pyarrow.float64())
    return _sums_by_image(columns)


def counted_columns(path: Path) -> dict[str, str]:
    """The metrics that the table can give, with the column of each; empty where there is no file.

    Raises InputError: the file is not whole, or lacks a column.
    """
    import pyarrow.parquet

    if not path.exists():
        return {}
    with whole_file(path, _WANTED):
        names = pyarrow.parquet.read_schema(path).names
    counted = {metric: column for metric, column in _COUNTED_FROM.items() if column in names}
    missing = [name for name in _ALWAYS if name not in names] + ([] if counted else ["rank"])
    if missing:
        raise InputError(path, "columns", f"no {', '.join(missing)}", _WANTED)
    return counted


def _read_rows(path: Path, wanted: str, columns: Iterable[str]) -> Any:
    """A run's table with these columns and those of `_ALWAYS`, as texts; every row has a task and a variant."""
    import pyarrow
    import pyarrow.compute as compute

    table = read_table(path, wanted, [*_ALWAYS, *columns])
    for name in ("task", "variant"):
        if missing := table[name].null_count:
            raise InputError(path, name, f"{missing} rows without one", "a name in every row")
    with whole_file(path, wanted):
        for name in _ALWAYS:
            texts = compute.cast(table[name], pyarrow.string())
            table = table.set_column(table.column_names.index(name), name, texts)
    return table


def _sums_by_image(columns: Mapping[str, Any]) -> dict[tuple[str, str], ImageHits]:
    """Hits of every task and variant from columns with an entry for each query; those of `_ALWAYS` name it."""
    import pyarrow

    metrics = [name for name in columns if name not in _ALWAYS]
    # One thread keeps tasks and variants in the order of the table.
    sums = pyarrow.table(dict(columns)).group_by(list(_ALWAYS), use_threads=False).aggregate(
        [(metric, "sum") for metric in metrics] + [("task", "count")]
    )  # fmt: skip
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sums.to_pylist():
        rows.setdefault((row["task"], row["variant"]), []).append(row)
    return {key: _image_hits(members, metrics) for key, members in rows.items()}


def _image_hits(rows: Sequence[dict[str, Any]], metrics: Sequence[str]) -> ImageHits:
    rows = sorted(rows, key=lambda row: row["image"] or "")
    # A metric of another kind of task is null in all rows.
    own = [metric for metric in metrics if all(row[f"{metric}_sum"] is not None for row in rows)]
    hits = {metric: np.array([row[f"{metric}_sum"] for row in rows]) for metric in own}
    queries = np.array([row["task_count"] for row in rows], np.int64)
    return ImageHits(tuple(row["image"] or "" for row in rows), hits, queries)


def over_draws(
    runs: Sequence[PerImage], question: Question, metric: str, drawn: Bool[np.ndarray, " images"] | None = None
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, "draws runs"]]:
    """A metric of each run in per cent, and the same on every draw of the images, or of those that are `drawn`.

    Raises InputError: the runs were evaluated on different images.
    """
    if any(run.images != runs[0].images for run in runs):
        sizes = sorted({len(run.images) for run in runs})
        raise InputError("runs", "images", f"different ones ({sizes} of them)", "runs evaluated on the same images")
    columns = np.stack([*(run.hits[question][metric] for run in runs), runs[0].queries[question]], axis=1)
    total, sums = columns.sum(0), sums_over_draws(columns if drawn is None else columns[drawn])
    return total[:-1] / total[-1], sums[:, :-1] / sums[:, -1:]


def interval(drawn: Float[np.ndarray, " draws"]) -> list[float]:
    """The 95 % interval of values over draws."""
    return [float(value) for value in np.percentile(drawn, [2.5, 97.5])]


def spread(each: Float[np.ndarray, " runs"]) -> float | None:
    """The sample standard deviation over runs; None of a single one."""
    return float(each.std(ddof=1)) if len(each) > 1 else None
