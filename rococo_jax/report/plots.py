"""Results as bars with intervals, by matplotlib, for notebooks and papers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Group, group_by_fingerprint, load_results, tasks_of, variants_of
from rococo_jax.report.vocabulary import task_label, variant_label

_WHO = "plot_results"
_OF_A_GROUP = 0.8


def plot_results(results: Any, metric: str = "fr1", *, task: str | None = None, axes: Any = None) -> Any:
    """Bars of one metric: a group for each variant, a colour for each model, lines for the 95 % intervals.

    Args:
        results: files or folders of results, or what `evaluate` returns, alone or as `{name: results}`.
        metric: its name in `results.json`, such as `r1`, `fr1`, `blind`. Variants where it is 0 for every model by its
            definition, as FR@1 of `clean`, are left out.
        task: only this one; all that have the metric by default.
        axes: matplotlib's to draw on; new ones by default.

    Returns:
        The axes; `axes.figure.savefig(...)` writes a file.

    Raises:
        InputError: the results do not compare, no variant has the metric, or matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError(_WHO, "library", "no matplotlib", "pip install matplotlib") from None
    runs = _comparable(results).runs
    tasks = [name for name in tasks_of(runs) if task in (None, name)]
    rows = [(name, variant) for name in tasks for variant in variants_of(runs, name, metric)]
    rows = [row for row in rows if row[1] != "clean" or any(run.figure(*row, metric).value for run in runs)]
    if not rows:
        known = sorted({key for run in runs for name in tasks for each in run.tasks[name].values() for key in each})
        raise InputError(_WHO, "metric" if tasks else "task", metric if tasks else task,
                         f"one of {', '.join(known if tasks else tasks_of(runs))}")  # fmt: skip
    if axes is None:
        axes = pyplot.subplots(figsize=(max(4.0, 1.2 * len(rows) + 1), 3.6), layout="constrained")[1]
    width = _OF_A_GROUP / len(runs)
    for number, run in enumerate(runs):
        places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(rows))]
        figures = [run.figure(*row, metric) for row in rows]
        axes.bar(places, [each.value or 0 for each in figures], 0.95 * width, label=run.label)
        for place, each in zip(places, figures, strict=True):
            if each.has_interval:
                axes.plot([place, place], [each.low, each.high], color="0.3", linewidth=1)
    about = metric_of(metric)
    several = len({name for name, _ in rows}) > 1
    names = [
        f"{variant_label(variant)}\n{task_label(name)}" if several else variant_label(variant) for name, variant in rows
    ]
    axes.set_xticks(range(len(rows)), names, fontsize="small")
    axes.set_ylabel(
        about.label
        + (f", {about.unit}" if about.unit else "")
        + (f" ({about.better} is better)" if about.better else "")
    )
    axes.set_title("" if several else task_label(rows[0][0]), loc="right", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=min(len(runs), 4), loc="lower left", bbox_to_anchor=(0, 1), fontsize="small")
    return axes


def _comparable(results: Any) -> Group:
    """The runs, if they may stand in one plot."""
    if isinstance(results, Mapping):
        named = {str(results["model"]): results} if "tasks" in results else results
        found = [(Path(str(name)), dict(content) | {"model": str(name)}) for name, content in named.items()]
    else:
        found = load_results([results] if isinstance(results, str | Path) else results)
    groups = group_by_fingerprint(found)
    if len(groups) != 1:
        differ = ", ".join(sorted({name for group in groups[1:] for name, *_ in group.differences}))
        raise InputError(_WHO, "results", f"{len(groups)} groups that differ in {differ}" if groups else "none",
                         "results of the same data and settings")  # fmt: skip
    return groups[0]
