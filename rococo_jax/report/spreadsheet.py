"""report.csv: one row a model, task and variant, with every metric and both bounds of its interval, unrounded.

Where models were compared, the paired differences stand in the last columns, after the name of whom with.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.report.collection import Section
from rococo_jax.report.comparison import METRICS as COMPARED
from rococo_jax.report.comparison import Comparisons
from rococo_jax.report.scores import Run
from rococo_jax.report.vocabulary import METRICS, in_reading_order, order_variants
from rococo_jax.storage import atomic_write, hash_json

_FIRST = ("section", "model", "protocol", "task", "variant", "fingerprint", "results")


def write_csv(path: Path, sections: Sequence[Section], comparisons: Comparisons) -> None:
    """Writes the rows by rename. Numbers are written so that reading them gives the number of results.json again."""
    runs = [(number, run) for number, section in enumerate(sections, 1) for run in section.runs]
    metrics = in_reading_order(
        (
            name
            for _, run in runs
            for variants in run.tasks.values()
            for numbers in variants.values()
            for name in numbers
        ),
        METRICS,
    )
    columns = [*_FIRST, *(column for name in metrics for column in (name, f"{name}_low", f"{name}_high"))]
    if comparisons:
        columns.append("compared_with")
        columns += [f"{name}_difference{end}" for name in COMPARED for end in ("", "_low", "_high", "_p")]
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number, run in runs:
            writer.writerows(_rows(number, run, metrics, comparisons))


def _rows(section: int, run: Run, metrics: Sequence[str], comparisons: Comparisons) -> list[list[object]]:
    fingerprint = hash_json(run.results["fingerprint"])[:12]
    where = f"{run.path.resolve().parent.name}/{run.path.name}"
    rows = []
    for task, variants in run.tasks.items():
        for variant in order_variants(variants):
            figures = [run.figure(task, variant, name) for name in metrics]
            first = [section, run.label, run.results["protocol"], task, variant, fingerprint, where]
            row = [*first, *(_cell(end) for each in figures for end in (each.value, each.low, each.high))]
            rows.append(row + (_difference(section, run, task, variant, comparisons) if comparisons else []))
    return rows


def _difference(section: int, run: Run, task: str, variant: str, comparisons: Comparisons) -> list[str]:
    comparison = comparisons.get((section - 1, task))
    found = comparison and comparison.find(run, variant)
    if not found:
        return [""] * (1 + 4 * len(COMPARED))
    cells = [comparison.reference.label]
    for name in COMPARED:
        one = found.metrics.get(name)
        cells += [""] * 4 if one is None else map(_cell, (one.points, one.low, one.high, one.p))
    return cells


def _cell(value: float | int | None) -> str:
    return "" if value is None else repr(value)
