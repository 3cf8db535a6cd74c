"""The files of `rococo correlate`: a map, every pair as CSV and JSON, and a page, also as Markdown.

The input is results, or a table of scores: CSV or TSV with a heading and a row for each model. Columns of numbers are
metrics; the cells of the other columns together are a model's name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.progress import say
from rococo_jax.report.blocks import Page, Part
from rococo_jax.report.charts import correlation_map
from rococo_jax.report.correlations import (
    COLUMNS,
    MIN_MODELS,
    SIDES,
    Study,
    comparable,
    correlate_runs,
    correlations_blocks,
    csv_row,
    map_of,
    study_of_values,
)
from rococo_jax.report.markdown import write_page
from rococo_jax.report.model_facts import MODEL_COLUMNS, is_number_column, read_facts, read_numbers
from rococo_jax.report.vocabulary import Place
from rococo_jax.storage import write_csv_rows, write_json, write_text
from rococo_jax.studies.model_facts import comparable_runs, compare_groups, csv_rows, facts_parts
from rococo_jax.texts import TABLES, file_suffix, open_table

FORMAT = "rococo_jax.correlations 1"
_LEDE = "Does one kind of robustness predict another? Rank correlations of metrics over many models."


def write_correlations(
    sources: Sequence[str],
    out: Path,
    names: Sequence[str] | None = None,
    given: str | None = None,
    facts: str | None = None,
) -> Study:
    """Write correlations.json, .csv, .svg, .html and .md into `out`, and partial.svg if a metric is held constant.

    With facts about the models, also write facts.csv.

    Args:
        sources: results, or one CSV table of scores.
        names, given: as `correlate_runs` has them, or columns of the table.
        facts: table of facts about the models. Its columns of numbers are correlated as well, its columns of words
            divide the models into groups.

    Raises:
        InputError: results that differ in anything but the model, results of a model at two image sizes, or as
            `correlate_runs`, `correlate_table` and `read_facts`.
    """
    study = _study_of(sources, names, given)
    groups: list[Part] = []
    if facts is not None:
        model_facts = read_facts(Path(facts), study.models)
        comparisons = compare_groups(model_facts, [place.label for place in study.places], study.values)
        write_csv_rows(out / "facts.csv", csv_rows(comparisons))
        groups = facts_parts(comparisons)
        study = _with_numbers(study, model_facts.numbers)
    title = f"Correlations over {len(study.models)} models"
    parts = [Part("", correlations_blocks(study), style="group"), *groups]
    page = Page(title, "rococo correlate", _LEDE, parts)
    write_json(out / "correlations.json", as_json(study))
    write_csv_rows(out / "correlations.csv", [COLUMNS, *(csv_row(pair, len(study.models)) for pair in study.pairs)])
    write_text(out / "correlations.svg", correlation_map(title, *map_of(study), file=True))
    if study.control:
        name = f"{title}, partial"
        write_text(out / "partial.svg", correlation_map(name, *map_of(study, partial=True), file=True))
    write_page(out / "correlations.html", page)
    return study


def _with_numbers(study: Study, numbers: Mapping[str, Sequence[float]]) -> Study:
    """Return the study with further variables; those that a model lacks or that are equal for all are left out."""
    columns, left_out = comparable({Place(name): values for name, values in numbers.items()})
    places = [*study.places, *columns]
    values = np.array([*study.values, *columns.values()])
    return study_of_values(study.models, places, values, study.control, [*study.left_out, *left_out])


def _study_of(sources: Sequence[str], names: Sequence[str] | None, given: str | None) -> Study:
    if file_suffix(sources[0]) in TABLES:
        if len(sources) > 1:
            raise InputError("RESULTS", "a table and more", sources[0], "a single table of scores")
        return correlate_table(Path(sources[0]), names, given)
    return correlate_runs(comparable_runs(sources), names, given)


def correlate_table(path: Path, names: Sequence[str] | None = None, given: str | None = None) -> Study:
    """Correlate columns of a table of models; with `given`, partial correlations that control for that column.

    Columns with a number are metrics, except those whose heading names models. Percent signs are accepted if all cells
    of a column have one. The columns that are used are printed. By default `names` are all complete metrics.

    Raises InputError: the file is no such table, a cell of a metric is neither a number nor empty, there are fewer than
    five models or a repeated one, a column is unknown or incomplete, or there are fewer than two columns.
    """
    header, lines = open_table(path, "a table with a heading and a row for each model")
    rows = [row for _, row in lines]
    if len(rows) < MIN_MODELS:
        raise InputError(path, "models", len(rows), f"{MIN_MODELS} or more")
    cells = {head: [row[head].strip() for row in rows] for head in header}
    number_columns = [head for head in header if head.lower() not in MODEL_COLUMNS and is_number_column(cells[head])]
    words = [head for head in header if head not in number_columns]
    models = [" ".join(row[head] for head in words) for row in rows]
    if not words:
        raise InputError(path, "columns", "numbers alone", f"one that names the models: {', '.join(MODEL_COLUMNS[1:])}")
    if twice := next((model for place, model in enumerate(models) if model in models[:place]), None):
        raise InputError(path, "model", f"{twice!r} twice", "each of them once")
    for option, name in [("metrics", name) for name in names or ()] + [("given", given)] * (given is not None):
        if name not in number_columns:
            raise unknown_name(option, "column", name, number_columns)
    requested = dict.fromkeys([*([given] if given else []), *(number_columns if names is None else names)])
    control = Place(given) if given else None
    columns, left_out = comparable(
        {Place(name): read_numbers(path, name, cells[name], "; or other `metrics`") for name in requested}
    )
    if len(columns) < 2 or (control and control not in columns):
        raise InputError(path, "columns", "; ".join(left_out) or f"{len(columns)} of numbers", "two or more, and given")
    percent = [name for name in requested if any(cell.endswith("%") for cell in cells[name])]
    message = f"{path.name}: {len(rows)} models, named by {' and '.join(map(repr, words))}; metrics "
    message += ", ".join(place.label for place in columns)
    message += f"; in percent: {', '.join(percent)}" if percent else ""
    say("; left out: ".join([message, *left_out]))
    return study_of_values(models, list(columns), np.array(list(columns.values())), control, left_out)


def as_json(study: Study) -> dict:
    """Return the numbers of the CSV as JSON, with the models and the metrics that were left out."""
    return {
        "format": FORMAT,
        "models": study.models,
        "metrics": [place.path for place in study.places],
        "given": study.control.path if study.control else None,
        "left_out": study.left_out,
        "pairs": [
            {
                "x": pair.x.path,
                "y": pair.y.path,
                "r2": pair.r2,
                **{
                    name: dict(zip(SIDES, side, strict=False)) if side else None
                    for name, side in (("plain", pair.plain), ("partial", pair.partial))
                },
            }
            for pair in study.pairs
        ],
    }
