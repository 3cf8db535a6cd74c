"""Read the rows of `per_query.parquet` back, as the counts of each variant of `results.json`."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.errors import InputError, object_of
from rococo_jax.evaluation.counts import CountedRows, counts_of
from rococo_jax.evaluation.results import kind_of
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.ood import OodScores
from rococo_jax.metrics.rows import count_rows
from rococo_jax.storage import whole_file

_EXPECTED = "the table of queries that `rococo evaluate` writes beside results.json"
_REQUIRED = ("task", "variant", "unit")
_TEXTS = ("task", "variant", "image", "scene", "label", "bindings")
# Columns of numbers that are not counted.
_NOT_COUNTED = frozenset(
    ("seed", "unit", "severity", "query", "rank", "rank_optimistic", "rank_pessimistic", "top1_score", "positive_score")
)

# Task and variant -> counts, whose units have names.
CountsByVariant = dict[tuple[str, str], Counts]


def read_counts(
    path: Path, results: Mapping[str, Any], variants: Mapping[str, Collection[str]] | None = None
) -> CountsByVariant:
    """Return the counts of each variant that has metrics of sums; none if there is no such file.

    Args:
        path: the `per_query.parquet`.
        results: contents of the `results.json` beside it.
        variants: variants to return, by task; all by default.

    Raises InputError: the file is not complete, lacks a column, a row has no key, or it belongs to other results.
    """
    if not path.exists():
        return {}
    bases = None
    if variants is not None:
        described = object_of(results.get("variants"))
        bases = {
            str(base)
            for task, names in variants.items()
            for name in names
            for base in object_of(object_of(described.get(task)).get(name)).get("of", [name])
        }
    stored = StoredRows(path, results, bases, by_name=True)
    counts: CountsByVariant = {}
    for task, described in object_of(results.get("variants")).items():
        for name in described if variants is None else variants.get(task, ()):
            if name in described and isinstance(of_variant := stored.counts(task, name), Counts):
                counts[task, name] = of_variant
    return counts


class StoredRows:
    """Rows of `per_query.parquet`, by task and variant.

    Args:
        path: the file.
        results: contents of the `results.json` beside it.
        bases: names of variants that are not pooled; other rows are not read. All by default.
        any_results: whether the rows may belong to other results.
        by_name: whether units are those of one name, as several models have them, instead of one number.

    Raises InputError: as `read_counts`.
    """

    def __init__(
        self,
        path: Path,
        results: Mapping[str, Any],
        bases: Collection[str] | None = None,
        *,
        any_results: bool = False,
        by_name: bool = False,
    ):
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet

        with whole_file(path, _EXPECTED):
            schema = pyarrow.parquet.read_schema(path)
        if "variant" not in schema.names:
            bases = None
        columns = [
            field.name for field in schema if field.name in _TEXTS or field.name in _REQUIRED or _is_number(field.type)
        ]
        texts = [name for name in _TEXTS if name in columns and pa.types.is_string(schema.field(name).type)]
        filters = None if bases is None else [("variant", "in", sorted(bases))]
        options = {"columns": columns, "dictionary_columns": texts, "filters": filters}
        table = read_rows(path, _EXPECTED, any_results=any_results, **options)
        for name in _REQUIRED:
            if name not in table.column_names:
                raise InputError(path, "columns", f"no {name}", _EXPECTED)
            if missing := table[name].null_count:
                raise InputError(path, name, f"{missing} rows without one", "one in every row")
        with whole_file(path, _EXPECTED):
            self._unit = pc.cast(table["unit"], pa.int64()).to_numpy()
            images = table["image"] if "image" in table.column_names else pc.cast(table["unit"], pa.string())
            if images.null_count:
                images = pc.coalesce(pc.cast(images, pa.string()), pc.cast(table["unit"], pa.string()))
            self._image = _codes_and_names(images)[0]
            self._unit_names = None
            if by_name:
                units = [table["scene"]] if "scene" in table.column_names else []
                units = pc.coalesce(*(pc.cast(each, pa.string()) for each in (*units, images)))
                self._unit, names = _codes_and_names(units)
                self._unit_names = np.array(names, object)
            task, tasks = _codes_and_names(table["task"])
            variant, variants = _codes_and_names(table["variant"])
            seed = np.full(len(table), -1)
            if "seed" in table.column_names:
                seed = pc.fill_null(pc.cast(table["seed"], pa.int64()), -1).to_numpy()
            self._labels = _codes_and_names(table["label"])[0] if "label" in table.column_names else None
            codes, names = _codes_and_names(table["bindings"]) if "bindings" in table.column_names else ([], ())
            self._bindings = np.array([*names, ""], object)[codes] if names else None
        self._path, self._table, self._results = path, table, results
        numbers = [field.name for field in table.schema if _is_number(field.type)]
        self._counted = [name for name in numbers if name not in _NOT_COUNTED]
        # Runs of rows of one task, variant and seed, in the order of the file.
        key = np.stack([task, variant, seed], axis=1)
        begins = np.flatnonzero((np.diff(key, axis=0, prepend=-2) != 0).any(axis=1)).tolist()
        self._runs: dict[tuple[str, str], dict[int | None, list[tuple[int, int]]]] = {}
        for start, end in zip(begins, [*begins, len(key)][1:], strict=True):
            name = tasks[task[start]], variants[variant[start]]
            of_seed = None if seed[start] < 0 else int(seed[start])
            self._runs.setdefault(name, {}).setdefault(of_seed, []).append((start, end))

    def group(self, task: str, name: str) -> tuple[Pool | None, list[CountedRows]]:
        """Return how a variant is pooled, and its rows: an entry for each seed, kind or part."""
        about = object_of(self._described(task).get(name))
        variation = Variant.of(about)
        bases = about["of"] if isinstance(about.get("of"), list) else [name]
        rows = [each for base in bases for each in self._rows_of(task, str(base))]
        if variation.bindings:
            rows = [each.of_bindings(variation.bindings) for each in rows if each.bindings is not None]
        if variation.unseen:
            rows = [each.on_unseen_images() for each in rows if each.seen is not None]
        pooling = about.get("pooling")
        if pooling not in ("items", "parts", "kinds"):
            return None, rows
        sizes = object_of(object_of(object_of(self._results.get("sizes")).get(task)).get(name))
        return Pool(variation, pooling, sizes.get("of_parts")), rows

    def counts(self, task: str, name: str) -> Counts | OodScores | None:
        """Return the counts of a variant; None if it has no rows."""
        pool, rows = self.group(task, name)
        return counts_of(rows, pool) if rows else None

    def _described(self, task: str) -> dict[str, Any]:
        return object_of(object_of(self._results.get("variants")).get(task))

    def _rows_of(self, task: str, name: str) -> list[CountedRows]:
        """Return the rows of a variant that is not pooled, an entry for each seed."""
        about = object_of(self._described(task).get(name))
        kind = kind_of(self._results, task, name)
        metrics = tuple(object_of(object_of(object_of(self._results.get("tasks")).get(task)).get(name)))
        rows = []
        for seed, runs in self._runs.get((task, name), {}).items():
            place = np.concatenate([np.arange(*run) for run in runs])
            columns = self._columns(runs, place)
            is_seen = columns.pop("seen", None)
            rows.append(
                CountedRows(
                    name=task,
                    kind=kind,
                    variation=Variant.of(about),
                    seed=seed,
                    baseline=str(about.get("baseline", "")),
                    pools=(),
                    columns=columns,
                    unit=self._unit[place],
                    image=self._image[place],
                    unit_names=self._unit_names,
                    count=functools.partial(_count, self._path, kind, metrics),
                    seen=is_seen,
                    bindings=None if self._bindings is None else self._bindings[place],
                )
            )
        return rows

    def _columns(self, runs: Sequence[tuple[int, int]], place: Int[np.ndarray, " rows"]) -> dict[str, np.ndarray]:
        import pyarrow as pa

        rows = pa.concat_tables([self._table.slice(start, end - start) for start, end in runs])
        columns = {}
        for name in self._counted:
            missing = rows[name].null_count
            if missing and missing < len(rows):
                raise InputError(self._path, name, f"{missing} rows without one", "one in every row of a variant")
            if not missing:
                columns[name] = rows[name].to_numpy()
        if self._labels is not None and "classes" in columns:
            columns["label"] = np.unique(self._labels[place], return_inverse=True)[1].reshape(-1)
        return columns


def _count(
    path: Path, kind: str, names: Sequence[str], columns: Mapping[str, np.ndarray], unit: Int[np.ndarray, " rows"]
) -> Any:
    try:
        return count_rows(kind, columns, unit, names)
    except KeyError as error:
        raise InputError(path, "columns", f"no {error.args[0]}", _EXPECTED) from None


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def _codes_and_names(column: Any) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Return a number for each text, and the texts by number, ascending; -1 for a row without one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        column = pc.cast(column, pa.string()).dictionary_encode()
    coded = column.unify_dictionaries().combine_chunks()
    if isinstance(coded, pa.ChunkedArray):  # without any row
        return np.empty(0, np.int64), ()
    names = np.array(pc.cast(coded.dictionary, pa.string()).to_pylist(), object)
    order = np.argsort(names, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    return np.append(number, -1)[codes], tuple(names[order].tolist())
