"""The numbers of the page for other programs: report.csv and pandas data frames, with one row per metric.

If models were compared, the last columns of a row in the CSV are the name of the reference and the paired difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, import_library
from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.report.collection import Group, Run, group_by_fingerprint, load_results, tasks_of
from rococo_jax.report.comparison import Comparisons, Family, compare_groups
from rococo_jax.report.concepts import add_replaced_words
from rococo_jax.report.task_tests import primary_metrics
from rococo_jax.report.vocabulary import in_reading_order, order_variants
from rococo_jax.storage import hash_json, write_csv_rows

_COLUMNS = (
    *("section", "model", "protocol", "task", "variant", "fingerprint", "results", "metric", "value", "low", "high"),
    *("label", "unit", "better"),
)
# The fields of a row by which pages, tables and studies select and pivot.
_KEYS = (
    *("benchmark", "part", "alteration", "corruption", "severity", "unseen", "pooled", "bindings", "kind", "sd", "n"),
    "chance",
    *("is_headline", "is_primary"),
)
_DIFFERENCE = ("compared_with", "difference", "difference_low", "difference_high", "p", "p_corrected", "mde")
# The same of a difference.
_FIELDS = ("reference", "points", "low", "high", "p", "p_corrected", "mde")
# Columns of the frame, in order.
_FRAME = (
    *("model", "benchmark", "task", "part", "alteration", "corruption", "severity", "unseen", "pooled", "bindings"),
    *("variant", "kind", "metric", "value", "low", "high", "sd", "n", "chance", "is_headline", "is_primary"),
    *("section", "protocol", "label", "unit", "better", "fingerprint", "results", "path"),
)
# Columns of a frame of differences, in order.
_RECORD = (
    *("model", "reference", "benchmark", "task", "variant", "metric", "points", "low", "high", "p", "p_corrected"),
    *("mde", "is_primary", "verdict"),
)


def write_csv(path: Path, groups: Sequence[Group], comparisons: Comparisons) -> None:
    """Write the rows, by rename. Numbers keep all digits of results.json."""
    columns = (*_COLUMNS, *_KEYS, *_DIFFERENCE)
    write_csv_rows(path, [columns, *([row.get(name) for name in columns] for row in _rows(groups, comparisons))])


def _rows(groups: Sequence[Group], comparisons: Comparisons) -> Iterator[dict[str, Any]]:
    """Yield a row for each metric, group by group."""
    primary = [_primary_of(group) for group in groups]
    for place, run in ((place, run) for place, group in enumerate(groups) for run in group.runs):
        about: dict[str, Any] = {"section": place + 1, "model": run.label, "protocol": run.results["protocol"]}
        about["fingerprint"] = hash_json(run.results["fingerprint"])[:12]
        for task, variants in run.tasks.items():
            path = run.file_of(task).path
            about |= {"path": str(path), "results": f"{path.resolve().parent.name}/{path.name}"}
            comparison = comparisons.get((place, task))
            rows = comparison.rows if comparison else ()
            differences = {(row.variant, row.metric): row for row in rows if row.model == run.label}
            for variant in order_variants(variants, run.described[task]):
                fields = _fields_of(run, task, variant)
                for name in in_reading_order(variants[variant], METRICS):
                    estimate, metric = run.estimate(task, variant, name), metric_of(name)
                    row: dict[str, Any] = {**fields, "metric": name, "label": metric.label}
                    row |= {"unit": metric.unit, "better": metric.better, "chance": run.chance(task, variant, name)}
                    row |= {"value": estimate.value, "low": estimate.low, "high": estimate.high, "sd": estimate.spread}
                    row |= {"is_headline": _is_headline(run, task, variant, name)}
                    row |= {"is_primary": (variant, name) in primary[place][task]}
                    if comparison and (difference := differences.get((variant, name))):
                        row |= dict(zip(_DIFFERENCE, [getattr(difference, name) for name in _FIELDS], strict=True))
                    yield about | row


def _fields_of(run: Run, task: str, variant: str) -> dict[str, Any]:
    """Return benchmark, task and fields of a variant, with the number of its queries, items or images."""
    described = run.described[task][variant]
    names = ("part", "alteration", "corruption", "severity", "pooled", "bindings")
    fields = {name: getattr(described, name) for name in names}
    return {
        "benchmark": run.benchmark_of(task),
        "task": task,
        "variant": variant,
        **{name: value or None for name, value in fields.items()},
        "unseen": described.unseen,
        "kind": run.kind_of(task, variant),
        "n": run.size(task, variant),
    }


def _is_headline(run: Run, task: str, variant: str, metric: str) -> bool:
    headline = run.headline(task)
    return headline is not None and (headline.variant, headline.metric) == (variant, metric)


def _primary_of(group: Group) -> dict[str, frozenset[tuple[str, str]]]:
    """Return variant and metric of the numbers that `rococo compare` tests unless others are requested, by task."""
    primary = {}
    for task in tasks_of(group.runs):
        counted: dict[str, set[str]] = {}
        for run in group.runs:
            for variant in (*run.variants(task), *run.mean_corruptions(task)):
                measured = (name for name, value in run.tasks[task][variant].items() if value is not None)
                counted.setdefault(variant, set()).update(name for name in measured if metric_of(name).function)
        primary[task] = primary_metrics([run for run in group.runs if task in run.tasks], task, counted)
    return primary


def read_results(*sources: Any) -> Any:
    """Return results as a long `pandas.DataFrame`: one row per model, task, variant and metric.

    Columns: `model`, `benchmark`, `task`; the fields of the variant (`part`, `alteration`, `corruption`, `severity`,
    `unseen`, `pooled`, `bindings`; None where one does not apply) and its name `variant`; `kind` of the task; `metric`,
    `value`, `low`, `high` (bounds of the 95 % interval, NaN if there is none), `sd` over seeds, `n` (queries, items or
    images), `chance` (expected value of guessing, if it is known), `is_headline` (the number that ranks models on the
    task), `is_primary` (tested by `compare`); then `section` (rows of one section are comparable), `protocol`, `label`,
    `unit`, `better`, `fingerprint`, `results` and `path`.

    >>> frame = read_results("out")                                                       # doctest: +SKIP
    >>> frame[frame.is_headline].pivot(index="model", columns="task", values="value")     # doctest: +SKIP
    >>> fog = frame[(frame.corruption == "fog") & (frame.severity == 3)]                  # doctest: +SKIP

    Args:
        sources: results files, or folders that contain them; or what `evaluate` returns, as `{name: results}`.

    Raises:
        InputError: there are no results, a file is damaged or something else, or pandas is not installed.
    """
    pd = import_library("read_results", "pandas", "pandas")
    rows = _rows(groups_of("read_results", sources), {})
    numbers = dict.fromkeys(("value", "low", "high", "sd", "chance"), float)
    frame = pd.DataFrame(rows, columns=_FRAME)
    return frame.astype({**numbers, "severity": "Int64", "n": "Int64", "unseen": bool})


def read_rows(*sources: Any) -> Any:
    """Return the rows that all numbers are computed from, as a `pandas.DataFrame`: `per_query.parquet` of each model.

    The first column is `model`; the others are described in `evaluation.counts`. A column that a kind of task does not
    have is missing in its rows. The last two are tuples with an entry for each altered caption of the query or item:
    `replaced_word`, in its singular, and `replaced_group`, its concept group in the lexicon; None without any.

    >>> rows = read_rows("out")                                                           # doctest: +SKIP
    >>> rows[rows.variant == "danger"].groupby("model").r1.mean()                         # doctest: +SKIP
    >>> words = rows.explode(["replaced_word", "replaced_group"])                         # doctest: +SKIP
    >>> words.groupby(["model", "replaced_group"]).preference.mean()                      # doctest: +SKIP

    Args:
        sources: results files, or folders that contain them.

    Raises:
        InputError: as `read_results`, or a folder has no `per_query.parquet`.
    """
    pd = import_library("read_rows", "pandas", "pandas")
    tables, lexicon = [], shipped_lexicon()
    for run in (run for group in groups_of("read_rows", sources) for run in group.runs):
        for file in run.files:
            table = file.rows().to_pandas()
            table.insert(0, "model", run.label)
            tables.append(add_replaced_words(table, file, lexicon))
    return pd.concat(tables, ignore_index=True)


def compare(
    results: Any,
    reference: str | None = None,
    *,
    metrics: Sequence[str] = (),
    margin: float | None = None,
    family: Family = "task",
) -> Any:
    """Return the differences between models and the reference as a `pandas.DataFrame`, as `rococo compare` tests them.

    Columns: `model`, `reference`, `benchmark`, `task`, `variant`, `metric`, `points` (model minus reference, or of
    `blind` the change of the distance from 50), `low`, `high`, `p`, `p_corrected`, `mde`, `is_primary`, `verdict`.
    `p_corrected` and `verdict` are missing where a difference is not primary.

    >>> frame = compare("demo-out/250-scenes-seed-1/paper", reference="plain")            # doctest: +SKIP
    >>> fooled = frame[(frame.variant == "same_concept") & (frame.metric == "fr1")]       # doctest: +SKIP
    >>> fooled[["model", "points", "low", "high", "p_corrected", "verdict"]].round(3)     # doctest: +SKIP
           model  points     low   high  p_corrected verdict
    8   grounded   -12.8 -24.900 -0.700        0.029  better
    48     sc-vc   -11.2 -22.366 -0.034        0.049  better

    Args:
        results: results file or folder, or several.
        reference: name of the model to compare with; by default the first one.
        metrics: metrics to test instead of the primary ones.
        margin: largest difference, in points, that is equivalent to none.
        family: whether primary differences are corrected within each task, or over all tasks.

    Raises:
        InputError: as `read_results`, no model or metric has that name, or no two models share a table of counts.
    """
    pd = import_library("compare", "pandas", "pandas")
    sources = [results] if isinstance(results, str | Path) else list(results)
    groups = groups_of("compare", sources)
    comparisons = compare_groups(groups, reference, metrics, margin=margin, family=family)
    rows = [row.as_json() for comparison in comparisons.values() for row in comparison.rows]
    if not rows:
        problem = "none with counts of the same queries or items"
        raise InputError("compare", "models", problem, "results of two models on one benchmark, with per_query.parquet")
    return pd.DataFrame(rows, columns=_RECORD)


def groups_of(function: str, sources: Sequence[Any]) -> list[Group]:
    """Return the groups of results of paths and of `{name: results}`."""
    named = [(name, content) for each in sources if isinstance(each, Mapping) for name, content in each.items()]
    results = load_results(each for each in sources if not isinstance(each, Mapping))
    results += [(Path(name), dict(content) | {"model": name}) for name, content in named]
    if not results:
        raise InputError(function, "sources", "none", "at least one results file or folder")
    return group_by_fingerprint(results)
