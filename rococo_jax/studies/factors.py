"""Visual factors: accuracy on the images with a factor against accuracy on all images, with a line over models.

Effective robustness: is a model better on a subset than its accuracy on all images predicts?

    line       Huber regression over models of probit(accuracy on the subset) on probit(accuracy on all), k = 1.345,
               scale from the median absolute residual, by iterated reweighting (Huber 1964)
    effective  accuracy on the subset - accuracy that the line predicts, in points

After Taori et al. (arXiv 2007.00644); the robust line is this project's. Intervals resample images with a fixed line.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from markupsafe import Markup

from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.errors import InputError
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.metrics.intervals import draw_blocks
from rococo_jax.progress import say
from rococo_jax.report.blocks import Cell, Charts, Head, Note, Page, Part, Table, estimate_cell
from rococo_jax.report.collection import Estimate, Run
from rococo_jax.report.markdown import write_page
from rococo_jax.report.model_facts import read_facts
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import percent, variant_label
from rococo_jax.storage import write_json
from rococo_jax.studies.model_facts import Comparison, comparable_runs, compare_groups, facts_parts
from rococo_jax.texts import TABLES, file_suffix

_NAMES = ("file_name", "image", "filename")
# Columns that are never factors, even if all of their values are 0 or 1.
_NO_FACTORS = ("class", "label", "target", "index", "id")
_VALUES = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_GAPS = ("", "none", "nan")
_CLEAN = "clean"
_NOTE = (
    "Vertical: accuracy on the images with the factor; horizontal: on all images; both on probit axes. A model above "
    "the line is more robust to the factor than its accuracy predicts. Intervals are 95 % over images."
)

# No line is fitted to fewer models or images.
MIN_MODELS, MIN_IMAGES = 5, 200
_DRAWS = 500
_HUBER, _ROUNDS = 1.345, 30
_probit = np.vectorize(NormalDist().inv_cdf, otypes=[float])
_share = np.vectorize(NormalDist().cdf, otypes=[float])


@dataclasses.dataclass(frozen=True, eq=False)
class Factor:
    """Accuracies of all models on the images with a factor.

    Attributes:
        images: number of images with the factor.
        line: slope and intercept on probit axes; None with too few models or images.
        all, subset: accuracy of each model in percent, on all images and on those with the factor.
        effective: points above the line and their interval, for each model; None without a line.
    """

    images: int
    line: tuple[float, float] | None
    all: Float[np.ndarray, " models"]
    subset: Float[np.ndarray, " models"]
    effective: Float[np.ndarray, "models 3"] | None


def probit(share: Float[np.ndarray, " models"], images: int) -> Float[np.ndarray, " models"]:
    """Return the normal quantiles of shares, which are kept at least half an image away from 0 and 1."""
    return _probit(np.clip(share, 0.5 / images, 1 - 0.5 / images))


def huber_line(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> tuple[float, float]:
    """Return slope and intercept of the robust line."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    weights, line = np.ones(len(x)), np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        line = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        residual = np.abs(y - design @ line)
        scale = max(np.median(residual) / 0.6745, 1e-9)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(residual, 1e-12))
    return float(line[0]), float(line[1])


def predicted_share(line: tuple[float, float], across: Float[np.ndarray, " models"]) -> Float[np.ndarray, " models"]:
    """Return the share on the subset that the line predicts at these probits."""
    return _share(line[0] * across + line[1])


def measure_factor(right: Bool[np.ndarray, "models images"], within: Bool[np.ndarray, " images"]) -> Factor:
    """Measure a factor from the correctness of each model on each image and the images with the factor."""
    images, subset_size = right.shape[1], int(within.sum())
    every, subset = right.mean(axis=1), right[:, within].mean(axis=1)
    if len(right) < MIN_MODELS or subset_size < MIN_IMAGES:
        return Factor(subset_size, None, 100 * every, 100 * subset, None)
    line = huber_line(probit(every, images), probit(subset, subset_size))
    effective = 100 * (subset - predicted_share(line, probit(every, images)))
    draws = []
    for counts in (counts for block in draw_blocks(images, _DRAWS) for counts in block):
        of_all = right @ counts / images
        inside = counts[within]
        of_subset = right[:, within] @ inside / max(1, inside.sum())
        draws.append(100 * (of_subset - predicted_share(line, probit(of_all, images))))
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return Factor(subset_size, line, 100 * every, 100 * subset, np.stack([effective, low, high], axis=1))


def write_factors(
    sources: Sequence[str], factors: str, task: str | None, page: Path, facts: str | None = None
) -> tuple[Path, Path]:
    """Write the page, and the numbers as JSON beside it. Factors that no image has are left out and reported.

    With a table of facts about the models, effective robustness is also compared between the groups of its columns of
    words.

    Raises InputError: no task with classes, or as `comparable_runs`, `_read_factors` and `read_facts`.
    """
    runs = comparable_runs(sources)
    task = task or next((name for name in runs[0].tasks if runs[0].kind(name) == "classify"), None)
    if task is None or any(task not in run.tasks for run in runs):
        raise InputError("RESULTS", "task", task or "none with classes", "one that all results have")
    answers = [_right(run, task) for run in runs]
    images = sorted(set.intersection(*map(set, answers)))
    within, without_images = _read_factors(Path(factors), images)
    right = np.array([[each[image] for image in images] for each in answers])
    measured = {name: measure_factor(right, mask) for name, mask in within.items()}
    comparisons = [] if facts is None else _compare_by_facts(Path(facts), runs, measured)
    values: dict[str, Any] = {"task": task, "images": len(images)}
    values["factors"] = {name: _as_json(runs, factor) for name, factor in measured.items()}
    if comparisons:
        values["facts"] = [each.record() for each in comparisons]
    numbers = page.with_suffix(".json")
    write_json(numbers, values)
    parts = [_part(name, runs, factor, len(images)) for name, factor in measured.items()]
    parts += facts_parts(comparisons)
    after = (
        [Note(f"Left out, as no image of the results has them: {', '.join(without_images)}.")] if without_images else []
    )
    return write_page(page, Page(f"Visual factors: {task}", "rococo factors", _NOTE, parts, after)), numbers


def _compare_by_facts(path: Path, runs: Sequence[Run], measured: Mapping[str, Factor]) -> list[Comparison]:
    """Compare effective robustness between groups of models, for the factors with a line."""
    facts = read_facts(path, [run.label for run in runs])
    effective = {name: factor.effective[:, 0] for name, factor in measured.items() if factor.effective is not None}
    if not effective:
        say(f"{path.name}: not used, since no factor has a line")
        return []
    return compare_groups(facts, [*effective], np.array([*effective.values()]))


def _right(run: Run, task: str) -> dict[str, bool]:
    import pyarrow.compute

    file = run.file_of(task)
    path, stored = file.table, file.tasks[task]
    rows = read_rows(path, "the rows that `rococo evaluate` or `rococo score` writes")
    rows = rows.filter((pyarrow.compute.field("task") == stored) & (pyarrow.compute.field("variant") == _CLEAN))
    if "chosen" not in rows.column_names or not rows.num_rows:
        raise InputError(path, "rows", f"none of {task}", "one row per image with `chosen`")
    pairs = zip(rows.column("image").to_pylist(), rows.column("chosen").to_pylist(), strict=True)
    return {image: answer == "right" for image, answer in pairs}


def _read_factors(path: Path, images: Sequence[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return for each factor a mask over `images`, and the names of the factors that no image has.

    A factor is a column that contains only 0 and 1, or true and false; values may be missing. In tables, where every
    cell is text, these are texts. Columns of labels and ids are no factors.

    Raises InputError: no line names one of the images, a name is ambiguous, or there is no factor.
    """
    place = {name: row for row, name in enumerate(images)}
    by_end: dict[str, int] = {}
    for full, row in place.items():
        end = full.rpartition("/")[2]
        by_end[end] = -1 if end in by_end else row  # -1: the last part of several names
    is_table, present = file_suffix(path) in TABLES, False
    columns: dict[str, np.ndarray] = {}
    other_columns: dict[str, None] = {}
    for record in read_records(path)[1]:
        name = next((each for each in _NAMES if each in record.value), _NAMES[0])
        image = record.text(name)
        row = place.get(image, by_end.get(image.rpartition("/")[2]))
        if row == -1:
            raise record.error(name, image, "the complete name: several images have this last part")
        present |= row is not None  # the file may be of a whole data set, and the results of a part of it
        for column, value in record.value.items():
            spelling = value.strip().lower() if is_table else repr(value).lower()
            if column == name or spelling in _GAPS:
                continue
            if spelling not in _VALUES or column.strip().lower() in _NO_FACTORS:
                other_columns[column] = None
                continue
            has_factor = columns.setdefault(column, np.zeros(len(images), bool))
            if _VALUES[spelling] and row is not None:
                has_factor[row] = True
    form = "lines with a file name and factors of 0 or 1"
    if not present:
        raise InputError(path, "factors", "none of the results' images", form)
    factors = {column: mask for column, mask in columns.items() if column not in other_columns}
    with_images = {column: mask for column, mask in factors.items() if mask.any()}
    if not with_images:
        found = f"no image with {', '.join(factors)}" if factors else f"none among {', '.join(other_columns)}"
        raise InputError(path, "factors", found[:200], form)
    without_images = [column for column in factors if column not in with_images]
    messages = {"no factors": other_columns, "left out, as no image of the results has them": without_images}
    for message, names in messages.items():
        if names:
            say(f"{path.name}: {message}: {', '.join(names)}")
    return with_images, without_images


def _as_json(runs: Sequence[Run], factor: Factor) -> dict[str, Any]:
    models = {}
    for row, run in enumerate(runs):
        models[run.label] = {"all": float(factor.all[row]), "subset": float(factor.subset[row])}
        if factor.effective is not None:
            value, *ends = map(float, factor.effective[row])
            models[run.label] |= {"effective": value, "interval": ends}
    return {"images": factor.images, "line": factor.line, "models": models}


def _part(name: str, runs: Sequence[Run], factor: Factor, images: int) -> Part:
    heads = [Head("Model", words=True), Head("All images"), Head("Subset"), Head("Effective robustness")]
    rows = []
    for row, run in enumerate(runs):
        effective = Estimate(*map(float, factor.effective[row])) if factor.effective is not None else Estimate(None)
        estimates = [Estimate(float(factor.all[row])), Estimate(float(factor.subset[row])), effective]
        rows.append([Cell(run.label), *map(estimate_cell, estimates)])
    note = f"{factor.images:,} of {images:,} images."
    if factor.line is None:
        note += f" No line: it needs {MIN_MODELS} models and {MIN_IMAGES} images of the factor."
    charts = [] if factor.line is None else [Charts([("", _scatter(name, runs, factor, images))])]
    title = variant_label(name)
    return Part(title, [Note(note), Table(title, heads, rows, sortable=len(rows) > 1), *charts], "group")


def _scatter(name: str, runs: Sequence[Run], factor: Factor, images: int) -> Markup:
    across, up = probit(factor.all / 100, images), probit(factor.subset / 100, factor.images)
    with chart_of(f"{name}: effective robustness", 440, 320) as chart:
        axes = chart.axes(44, 8, 380, 262)
        axes.set(xlabel="Accuracy on all images, in per cent")
        ends = np.linspace(across.min() - 0.15, across.max() + 0.15, 2)
        axes.plot(ends, factor.line[0] * ends + factor.line[1], color=colour_of("soft"), lw=1.2)
        for row, run in enumerate(runs):
            tooltip = (
                f"{run.label}: {percent(factor.subset[row])} % with the factor, {percent(factor.all[row])} % of all"
            )
            axes.plot(across[row], up[row], "o", ms=8, mfc=colour_of("own"), mec=colour_of("paper"),
                      gid=chart.title(tooltip))  # fmt: skip
        shares = np.array([1, 2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99])
        for set_ticks, values in ((axes.set_xticks, across), (axes.set_yticks, up)):
            at = probit(shares / 100, 10**6)
            is_inside = (at >= values.min() - 0.3) & (at <= values.max() + 0.3)
            set_ticks(at[is_inside], [f"{share}" for share in shares[is_inside]])
        return chart.markup()
