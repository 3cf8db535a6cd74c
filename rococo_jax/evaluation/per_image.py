"""Hits of each image, from which models are compared: written from the counts that the results are made of.

`per_image.parquet` has one row an image and share metric of each task and variant, over all its seeds:

    task, variant, image, metric    names; items without an image are named by their group; a variant over the items of
               all parts (`all`) has the hits of all of them
    hits       sum over the image's queries, items or pairs of what each counts, 0 to 1
    queries    how many these are; so the metric is 100 sum(hits) / sum(queries)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.pooling import group_by_variant
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.task import Tables
from rococo_jax.errors import InputError
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.metrics.intervals import Counted
from rococo_jax.storage import whole_file

PER_IMAGE = "per_image.parquet"
_NAMES, _NUMBERS = ("task", "variant", "metric", "image"), ("hits", "queries")
_WANTED = "the table of hits that `rococo evaluate` writes beside results.json"


class ImageHits(NamedTuple):
    """Hits and queries of one metric by image, in the order of names."""

    images: tuple[str, ...]
    hits: Float[np.ndarray, " images"]
    queries: Int[np.ndarray, " images"]

    def on(self, images: Sequence[str]) -> "ImageHits":
        """The same for these images, without queries where there is none."""
        place = {name: number for number, name in enumerate(self.images)}
        rows = np.array([place.get(name, -1) for name in images], np.int64)
        columns = (np.append(each, 0)[rows] for each in (self.hits, self.queries))
        return ImageHits(tuple(images), *columns)


# Task and variant -> metric -> its hits.
HitsByVariant = dict[tuple[str, str], dict[str, ImageHits]]


# Metric -> images, hits and queries of one outcome's items or pairs.
_ImageSums = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]


def per_image_table(outcomes: Sequence[Outcome], rows: Sequence[Any], tables: Tables) -> Any:
    """The table (`pyarrow.Table`) of outcomes of one benchmark; `rows` are those of each for `per_query.parquet`."""
    import pyarrow as pa

    schema = pa.schema([*((name, pa.string()) for name in _NAMES), ("hits", pa.float64()), ("queries", pa.int64())])
    parts = [schema.empty_table()]
    sums_of_outcomes = [
        _sums_of_outcome(outcome, of_outcome, tables) for outcome, of_outcome in zip(outcomes, rows, strict=True)
    ]
    for (task, variant), members in group_by_variant([outcome.of for outcome in outcomes]).items():
        if members.pool is not None and members.pool.pooling != "items":
            continue
        # Sums over items, then those over pairs, of all tasks of the variant.
        for of_tasks in zip(*(sums_of_outcomes[place] for place in members.places), strict=True):
            metrics = set.intersection(*(set(of_task) for of_task in of_tasks))
            for of_task in of_tasks:
                for metric in (name for name in of_task if name in metrics):
                    images = of_task[metric][0]
                    head = [[name] * len(images) for name in (task, variant, metric)]
                    parts.append(pa.table([*head, *of_task[metric]], schema=schema))
    sums = pa.concat_tables(parts).group_by(list(_NAMES), use_threads=False).aggregate([(n, "sum") for n in _NUMBERS])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names]).select(schema.names)


def _sums_of_outcome(outcome: Outcome, rows: Any, tables: Tables) -> tuple[_ImageSums, _ImageSums]:
    """Return the sums over an outcome's items and over its pairs; empty where it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_items: _ImageSums = {}
    of_pairs: _ImageSums = {}
    if not outcome.counted.resampled_alone:
        groups = pa.array(outcome.counted.group.astype(str), pa.string())
        images = rows["image"] if "image" in rows.column_names else pa.nulls(len(groups), pa.string())
        names = pc.coalesce(pc.cast(images, pa.string()), groups).to_numpy(zero_copy_only=False)
        of_items = _image_sums(outcome.counted, names)
    if outcome.grounding is not None:
        of_pairs = _image_sums(outcome.grounding, np.array(tables.images, object)[outcome.grounding.group])
    return of_items, of_pairs


def _image_sums(counted: Counted, names: np.ndarray) -> _ImageSums:
    images, place = np.unique(names.astype(str), return_inverse=True)
    queries = np.bincount(place, minlength=len(images))
    columns = zip(counted.columns, counted.counts.T, strict=False)  # those of bins, if any, are no shares
    sums = {name: np.bincount(place, column, len(images)) for name, column in columns}
    return {metric.name: (images, metric.function(sums), queries) for metric in counted.metrics if metric.is_share}


def read_image_hits(path: Path) -> HitsByVariant:
    """The hits by task, variant and metric; none where there is no such file.

    Raises InputError: the file is not whole, lacks a column, a row has no value, or it belongs to other results than
        those beside it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not path.exists():
        return {}
    table = read_rows(path, _WANTED)
    if absent := {*_NAMES, *_NUMBERS} - {*table.column_names}:
        raise InputError(path, "columns", f"no {', '.join(sorted(absent))}", _WANTED)
    for name in (*_NAMES, *_NUMBERS):
        if missing := table[name].null_count:
            raise InputError(path, name, f"{missing} rows without one", "one in every row")
    with whole_file(path, _WANTED):
        coded = [pc.cast(table[name], pa.string()).combine_chunks().dictionary_encode() for name in _NAMES]
        hits, queries = pc.cast(table["hits"], "double").to_numpy(), pc.cast(table["queries"], "int64").to_numpy()
    words = [np.array(each.dictionary.to_pylist(), object) for each in coded]
    codes = np.array([each.indices.to_numpy() for each in coded])
    by_name = np.argsort(np.argsort(words[-1]))[codes[-1]] if len(table) else codes[-1]
    order = np.lexsort((by_name, *codes[2::-1]))
    found: HitsByVariant = {}
    shared: dict[bytes, tuple[str, ...]] = {}
    for rows in np.split(order, np.flatnonzero(np.diff(codes[:3, order]).any(axis=0)) + 1) if len(table) else ():
        task, variant, metric = (each[code] for each, code in zip(words[:3], codes[:3, rows[0]], strict=True))
        images = codes[-1, rows]
        if (key := images.tobytes()) not in shared:
            shared[key] = tuple(words[-1][images])
        found.setdefault((task, variant), {})[metric] = ImageHits(shared[key], hits[rows], queries[rows])
    return found
