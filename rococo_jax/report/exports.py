"""The numbers of the page for other programs: report.csv and a pandas table, both with one row per metric.

If models were compared, the last columns of a row in the CSV are the name of the reference and the paired difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, missing_library
from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.report.collection import Group, group_by_fingerprint, load_results
from rococo_jax.report.comparison import Comparisons
from rococo_jax.report.vocabulary import in_reading_order, order_variants
from rococo_jax.storage import hash_json, write_csv_rows

_COLUMNS = (
    *("section", "model", "protocol", "task", "variant", "fingerprint", "results", "metric", "value", "low", "high"),
    *("label", "unit", "better"),
)
_DIFFERENCE = ("compared_with", "difference", "difference_low", "difference_high", "p", "p_corrected", "mde")
# The same of a difference.
_FIELDS = ("reference", "points", "low", "high", "p", "p_corrected", "mde")


def write_csv(path: Path, groups: Sequence[Group], comparisons: Comparisons) -> None:
    """Write the rows, by rename. Numbers keep all digits of results.json."""
    columns = (*_COLUMNS, *_DIFFERENCE)
    write_csv_rows(path, [columns, *([row.get(name) for name in columns] for row in _rows(groups, comparisons))])


def _rows(groups: Sequence[Group], comparisons: Comparisons) -> Iterator[dict[str, Any]]:
    """Yield a row for each metric, group by group."""
    for place, run in ((place, run) for place, group in enumerate(groups) for run in group.runs):
        about: dict[str, Any] = {"section": place + 1, "model": run.label, "protocol": run.results["protocol"]}
        about |= {"path": str(run.path), "fingerprint": hash_json(run.results["fingerprint"])[:12]}
        about["results"] = f"{run.path.resolve().parent.name}/{run.path.name}"
        for task, variants in run.tasks.items():
            comparison = comparisons.get((place, task))
            rows = comparison.rows if comparison else ()
            differences = {(row.variant, row.metric): row for row in rows if row.model == run.label}
            for variant in order_variants(variants, run.described[task]):
                for name in in_reading_order(variants[variant], METRICS):
                    estimate, metric = run.estimate(task, variant, name), metric_of(name)
                    row: dict[str, Any] = {"task": task, "variant": variant, "metric": name, "label": metric.label}
                    row |= {"unit": metric.unit, "better": metric.better}
                    row |= {"value": estimate.value, "low": estimate.low, "high": estimate.high}
                    if comparison and (difference := differences.get((variant, name))):
                        row |= dict(zip(_DIFFERENCE, [getattr(difference, name) for name in _FIELDS], strict=True))
                    yield about | row


def read_results(*sources: Any) -> Any:
    """Return results as a long `pandas.DataFrame`: one row per model, task, variant and metric.

    Columns: `section` (rows of one section are comparable), `model`, `protocol`, `task`, `variant`, `metric`, `value`,
    `low`, `high` (bounds of the 95 % interval, NaN if there is none), `path`, and of the metric `label`, `unit` and
    `better`.

    >>> frame = read_results("out")                                                       # doctest: +SKIP
    >>> frame = frame[frame.metric == "fr1"].pivot(index="variant", columns="model", values="value")  # doctest: +SKIP
    >>> frame.plot.bar()                                                                  # doctest: +SKIP

    Args:
        sources: results files, or folders that contain them; or what `evaluate` returns, as `{name: results}`.

    Raises:
        InputError: there are no results, a file is damaged or something else, or pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise missing_library("read_results", "library", "pandas", "pandas") from None
    named = [(name, content) for each in sources if isinstance(each, Mapping) for name, content in each.items()]
    results = load_results(each for each in sources if not isinstance(each, Mapping))
    results += [(Path(name), dict(content) | {"model": name}) for name, content in named]
    if not results:
        raise InputError("read_results", "sources", "none", "at least one results file or folder")
    rows = _rows(group_by_fingerprint(results), {})
    return pd.DataFrame(rows, columns=[*_COLUMNS, "path"]).astype(dict.fromkeys(("value", "low", "high"), float))
