"""Verify a folder of results: compute every number of `results.json` again from the rows of `per_query.parquet`.

The same functions as in an evaluation compute metrics, intervals and sizes from the rows. Hashes find any other change:
`results.json` contains one of itself and one of each table beside it. A report (page, CSV, Markdown) is written again
from the results and compared. Journals are not verified: nothing else contains their numbers.
"""

import csv
import dataclasses
import itertools
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.errors import InputError, is_number, object_of
from rococo_jax.evaluation.counts import CountedRows
from rococo_jax.evaluation.recomputed import recompute
from rococo_jax.evaluation.results import PER_QUERY, TABLES, read_results, results_hash
from rococo_jax.evaluation.stored_counts import StoredRows
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.evaluation.variant_results import results_of_groups
from rococo_jax.report import write_compared
from rococo_jax.report.collection import group_by_fingerprint, results_under
from rococo_jax.report.comparison import compare_groups
from rococo_jax.storage import hash_file, read_json_object

# Points. A number that is computed by another processor differs by less, and any change by an end hash.
_TOLERANCE = 1e-6
# Similarities of unit vectors, and what is computed from them.
_CLOSE = 1e-5
_PARTS = ("tasks", "intervals", "sizes")
_REPORT_COLUMNS = {"section", "model", "task", "variant", "metric", "results", "value"}
_CONTEXT = 30  # characters before and after the first difference of a line


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Stored value that is not the recomputed one.

    Attributes:
        file: the file that has it.
        place: where in the file, such as `tasks: image_to_text: clean: r1`.
    """

    file: Path
    place: str
    stored: Any
    recomputed: Any

    def __str__(self) -> str:
        return f"{self.file}: {self.place}: stored {self.stored}, recomputed {self.recomputed}"


def verify_results(sources: Iterable[str | Path]) -> tuple[int, list[Mismatch]]:
    """Verify results, their tables, and the reports among them.

    Args:
        sources: results files, or folders of which all are verified.

    Returns:
        The number of values that were compared, and all that differ.

    Raises InputError: a source has no results, or a file is not what it should be.
    """
    sources = [Path(each) for each in sources]
    paths = list(dict.fromkeys(path for source in sources for path in results_under(source)))
    count, differences = 0, []
    for path in paths:
        compared = [*_verify_file(path)]
        count, differences = count + len(compared), [*differences, *filter(None, compared)]
    intact = [path for path in paths if not any(each.file.parent == path.parent for each in differences)]
    for report in [path for source in sources if source.is_dir() for path in sorted(source.rglob("*.csv"))]:
        compared = [*_verify_report(report, paths, intact)]
        count, differences = count + len(compared), [*differences, *filter(None, compared)]
    return count, differences


def _compared(file: Path, place: str, stored: Any, recomputed: Any) -> Mismatch | None:
    return None if _are_equal(stored, recomputed) else Mismatch(file, place, stored, recomputed)


def _are_equal(stored: Any, recomputed: Any) -> bool:
    if is_number(stored) and is_number(recomputed):
        tolerance = max(_TOLERANCE, 1e-9 * abs(recomputed))
        return recomputed - tolerance <= stored <= recomputed + tolerance  # whole numbers of any size
    if isinstance(stored, list) and isinstance(recomputed, list):
        return len(stored) == len(recomputed) and all(map(_are_equal, stored, recomputed))
    return stored == recomputed


def _verify_file(path: Path) -> Iterator[Mismatch | None]:
    """Compare the numbers of a results file with its rows, and its hashes with the files."""
    results = read_json_object(path, "a results file")
    if not isinstance(results.get("tasks"), dict):
        read_results(path)  # raises the error for a file of another form
    if "sha256" in results:
        yield _compared(path, "sha256 of all other entries", results["sha256"], results_hash(results))
    for name, stored in object_of(results.get(TABLES)).items():
        table = path.with_name(name)
        yield _compared(table, "sha256", stored, hash_file(table) if table.is_file() else "no such file")
    rows = path.with_name(PER_QUERY)
    if not rows.is_file():
        yield Mismatch(path, "rows", f"no {PER_QUERY} beside it", "nothing")
        return
    yield from _verify_numbers(path, results, StoredRows(rows, results, any_results=True))


def _verify_numbers(path: Path, results: Mapping[str, Any], stored: StoredRows) -> Iterator[Mismatch | None]:
    groups = {}
    tasks = {task: object_of(variants) for task, variants in results["tasks"].items()}
    for task, variants in tasks.items():
        for variant in variants:
            pool, rows = stored.group(task, variant)
            groups[task, variant] = pool, [dataclasses.replace(each, sizes=_sizes(each)) for each in rows]
    recomputed = results_of_groups({name: group for name, group in groups.items() if group[1]})
    for task, variants in tasks.items():
        for variant in variants:
            again = recomputed.get((task, variant))
            if again is None:
                yield Mismatch(path, f"tasks: {task}: {variant}", "its numbers", f"no rows in {PER_QUERY}")
                continue
            for part in _PARTS:
                old, new = (
                    object_of(object_of(object_of(results.get(part)).get(task)).get(variant)),
                    getattr(again, part),
                )
                # The rows do not tell every size, such as that of the gallery.
                names = old.keys() & new.keys() if part == "sizes" else {**old, **new}
                for name in names:
                    place = f"{part}: {task}: {variant}: {name}"
                    yield _compared(path, place, old.get(name, "nothing"), new.get(name, "nothing"))


def verify_embeddings(
    sources: Iterable[str | Path], cache: Path, model: str | None = None, data: Path | None = None
) -> tuple[int, list[Mismatch], list[str]]:
    """Compute numbers and rows of results again from stored embeddings, and compare them.

    Args:
        sources: results files, or folders of which all are verified.
        cache, model, data: see `evaluation.recomputed`.

    Returns:
        The number of compared values, those that differ, and the benchmarks whose data were not found.

    Raises InputError: as `recompute`, or no benchmark was found.
    """
    compared: list[Mismatch | None] = []
    absent: list[str] = []
    for path in (path for source in sources for path in results_under(Path(source))):
        results = read_results(path)
        stored = read_rows(path.with_name(PER_QUERY), "the table of queries beside results.json", any_results=True)
        before = len(compared)
        for name, again in recompute(path, results, cache, model, data):
            if again is None:
                absent.append(f"{path.parent}: {name}")
                continue
            tasks = [task for task in results["tasks"] if task in again.results["tasks"]]
            for part, task in itertools.product(_PARTS, tasks):
                old, new = (object_of(object_of(each.get(part)).get(task)) for each in (results, again.results))
                for variant in {**old, **new}:
                    one, other = (object_of(each.get(variant)) for each in (old, new))
                    for key in {**one, **other}:
                        place = f"{part}: {task}: {variant}: {key}"
                        compared.append(_compared(path, place, one.get(key, "nothing"), other.get(key, "nothing")))
            compared += _compare_rows(path.with_name(PER_QUERY), stored, again.per_query, name)
        if len(compared) == before:
            raise InputError(path.parent, "data", "none of its benchmarks", "folders as in the results, or `data`")
    return len(compared), [*filter(None, compared)], absent


def _compare_rows(path: Path, stored: Any, again: Any, benchmark: str) -> Iterator[Mismatch | None]:
    """Compare the rows of one benchmark column by column; of a column the first difference is named."""
    import pyarrow.compute as pc

    old = stored.filter(pc.equal(stored["benchmark"], benchmark))
    if len(old) != len(again):
        yield Mismatch(path, f"{benchmark}: rows", len(old), len(again))
        return
    names = zip(*(again[name].to_pylist() for name in ("task", "variant")), strict=True)
    rows = [f"{task}: {variant}: row {number}" for number, (task, variant) in enumerate(names)]
    for name in again.column_names:
        if name not in old.column_names:
            yield Mismatch(path, f"{benchmark}: column {name}", "nothing", "a column")
            continue
        pairs = list(zip(old[name].to_pylist(), again[name].to_pylist(), strict=True))
        different = [place for place, (one, other) in enumerate(pairs) if not _is_close(one, other)]
        yield from [None] * (len(pairs) - len(different))
        if different:
            one, other = pairs[different[0]]
            more = f" and {len(different) - 1:,} more rows" if len(different) > 1 else ""
            yield Mismatch(path, f"{rows[different[0]]}: {name}{more}", one, other)
            yield from [None] * (len(different) - 1)


def _is_close(stored: Any, recomputed: Any) -> bool:
    """Whether values of rows are equal, or similarities as close as other processors compute them."""
    if isinstance(stored, float) and isinstance(recomputed, float):
        both_absent = math.isnan(stored) and math.isnan(recomputed)
        return both_absent or abs(stored - recomputed) <= _CLOSE * max(1.0, abs(recomputed))
    return stored == recomputed


def _sizes(rows: CountedRows) -> dict[str, int]:
    """Return the sizes that rows tell."""
    sizes = dict.fromkeys(("queries", "items"), len(rows.unit)) | {"images": len(np.unique(rows.image))}
    if "classes" in rows.columns:
        sizes["classes"] = int(rows.columns["classes"][0])
    if "inside" in rows.columns:
        inside = int(rows.columns["inside"].sum())
        sizes |= {"inside": inside, "outside": len(rows.unit) - inside}
    return sizes


def _verify_report(table: Path, paths: Sequence[Path], intact: Sequence[Path]) -> Iterator[Mismatch | None]:
    """Write a report again from its results, and compare it; other CSV files are skipped."""
    with table.open(encoding="utf-8", errors="replace", newline="") as file:
        if not set(file.readline().strip().split(",")) >= _REPORT_COLUMNS:
            return
        file.seek(0)
        stored = [*csv.reader(file)]
    head = stored[0]
    place = head.index("results")
    names = list(dict.fromkeys(row[place] for row in stored[1:] if len(row) == len(head)))
    members = [path for name in names for path in paths if f"{path.resolve().parent.name}/{path.name}" == name]
    if not members or not set(members) <= set(intact):
        why = "nothing, because these results differ or are not there"
        yield Mismatch(table, "all numbers", f"those of {', '.join(names)}", why)
        return
    groups = group_by_fingerprint([(path, read_results(path)) for path in members])
    references = {row[head.index("compared_with")] for row in stored[1:] if len(row) == len(head)} - {""}
    labels = [run.label for group in groups for run in group.runs if run.label in references]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / f"{table.stem}.html"
        write_compared(groups, compare_groups(groups, labels[0] if labels else None), page)
        with page.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
            again = [*csv.reader(file)]
        for number, (old, new) in enumerate(itertools.zip_longest(stored, again, fillvalue=[]), 1):
            for name, one, other in itertools.zip_longest(head, old, new, fillvalue=""):
                yield _compared(table, f"line {number}: {name}", _number(one), _number(other))
        for suffix in (".html", ".md"):
            if table.with_suffix(suffix).is_file():
                yield _compare_lines(table.with_suffix(suffix), page.with_suffix(suffix))


def _number(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _compare_lines(stored: Path, recomputed: Path) -> Mismatch | None:
    """Return the first difference between two texts."""
    lines = (path.read_text(encoding="utf-8", errors="replace").splitlines() for path in (stored, recomputed))
    for number, (one, other) in enumerate(itertools.zip_longest(*lines, fillvalue=""), 1):
        if one != other:
            pairs = enumerate(zip(one, other, strict=False))
            place = next((place for place, (old, new) in pairs if old != new), min(len(one), len(other)))
            window = slice(max(0, place - _CONTEXT), place + _CONTEXT)
            return Mismatch(stored, f"line {number}", repr(one[window]), repr(other[window]))
    return None
