"""Say what a comparison of models leaves out, and why: models without a table, tasks and variants that only one has."""

from collections.abc import Iterator, Sequence

from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Group, Run, tasks_of
from rococo_jax.report.comparison import Comparison, Comparisons
from rococo_jax.report.difference import Difference
from rococo_jax.report.vocabulary import task_label, variant_label

# More variants than this are counted instead of listed.
_MOST_NAMES = 6


def left_out_lines(groups: Sequence[Group], comparisons: Comparisons) -> list[str]:
    """Return a line for everything that results of several models have and that was not compared."""
    lines = [
        line
        for place, group in enumerate(groups)
        if len(group.runs) > 1
        for line in _lines_of_group(group, {task: each for (of, task), each in comparisons.items() if of == place})
    ]
    return list(dict.fromkeys(lines))


def left_out_metrics(metrics: Sequence[str], rows: Sequence[Difference]) -> list[str]:
    """Return a line for each requested metric that no difference is shown of."""
    lines = []
    for name in dict.fromkeys(metrics):
        if all(row.metric != name for row in rows):
            reason = "it has no counts for single queries or items"
            lines.append(f"{metric_of(name).label} ({name}): not compared: {reason}")
    return lines


def _lines_of_group(group: Group, comparisons: dict[str, Comparison]) -> Iterator[str]:
    for run in group.runs:
        for file in run.files:
            if not file.table.is_file():
                yield f"{run.label}: not compared: {file.path.parent} has no {file.table.name}"
    for task in tasks_of(group.runs):
        runs = [run for run in group.runs if task in run.tasks]
        with_table = [run for run in runs if run.file_of(task).table.is_file()]
        if len(runs) == 1:
            yield f"{task_label(task)}: not compared: only {runs[0].label} has results of it"
        elif len(with_table) > 1:
            yield from _lines_of_task(task, with_table, comparisons.get(task))


def _lines_of_task(task: str, runs: Sequence[Run], comparison: Comparison | None) -> Iterator[str]:
    label = task_label(task)
    if comparison is None:
        yield f"{label}: not compared: no metric with counts of the same queries or items"
        return
    reference = comparison.reference
    absent: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run is reference:
            continue
        compared = {row.variant for row in comparison.rows if row.model == run.label}
        for variant in (*run.variants(task), *run.mean_corruptions(task)):
            if variant in compared:
                continue
            is_absent = variant not in reference.tasks[task]
            why = f"{reference.label} has no results of it" if is_absent else "no counts of the same queries or items"
            absent.setdefault((variant, why), []).append(run.label)
    by_models: dict[tuple[str, str], list[str]] = {}
    for (variant, why), models in absent.items():
        by_models.setdefault((", ".join(models), why), []).append(variant_label(variant))
    for (models, why), variants in by_models.items():
        names = ", ".join(variants) if len(variants) <= _MOST_NAMES else f"{len(variants)} variants"
        yield f"{models}: {label}, {names}: not compared: {why}"
