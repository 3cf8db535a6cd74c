"""What corruption changes, on the page: errors over all kinds and severities, and RAS with its parts.

    mCE            mean over kinds of  sum_s E(kind, s) / sum_s E_ref(kind, s), in percent; E is 100 - the figure
    relative mCE   the same of E(kind, s) - E(uncorrupted)    (Hendrycks, Dietterich 2019)

The published tables divide by AlexNet's errors; here the reference is the first model of the section.
"""

from collections.abc import Sequence

import numpy as np

from rococo_jax.benchmarks.rococo.labels import UNCORRUPTED
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table, figure_cell
from rococo_jax.report.collection import Figure, Run, corrupted_by
from rococo_jax.report.sections import section_of
from rococo_jax.report.tables import has_any, heads_of
from rococo_jax.report.vocabulary import pooled_severity, task_label, variant_label

CHANGES = (
    *("ras", "ras_destructive", "ras_corrective", "consistency", "right_to_wrong", "wrong_to_right"),
    *("erroneous_confidence", "hesitation"),
)
_RAS = (
    "Against the same images uncorrupted. RAS is 0 where nothing changes, below it where probabilities move away from "
    "the truth; its parts add up to it. Erroneous confidence: wrong, and surer than before; hesitation: right before "
    "and after, and less sure. Means over kinds where there are several."
)
_ERRORS = (
    "Mean error: of all kinds and severities. mCE and relative mCE divide by the errors of the first model, kind by "
    "kind; 100 is as that model, lower is better. Published tables divide by AlexNet."
)


def change_part(runs: Sequence[Run], tasks: Sequence[str]) -> Part | None:
    """RAS and its parts: a row a model, task and condition; None where none was measured."""
    rows = []
    for task in tasks:
        for run in runs:
            names = run.corruptions(task)
            shown = [name for name in names if pooled_severity(name) is not None] or names
            for name in shown:
                figures = [run.figure(task, name, each) for each in CHANGES]
                if figures[0].value is not None:
                    label = Cell(variant_label(name), words=True, title=name)
                    rows.append(
                        [Cell(run.label), Cell(task_label(task), words=True), label, *map(figure_cell, figures)]
                    )
    if not rows:
        return None
    heads = heads_of(["Model", "Task", "Images"], CHANGES)
    table = Table("RAS and its parts", heads, rows, lead=3, sortable=len(rows) > 1, filterable=len(rows) > 8)
    return Part("Sure and wrong, right and unsure", [Note(_RAS), table])


def error_part(runs: Sequence[Run], tasks: Sequence[str]) -> Part | None:
    """Mean error and mCE of each model and task; None where no task has every kind and severity in all models."""
    kinds, severities = corrupted_by(runs)
    rows = []
    for task in tasks:
        name = section_of(runs, task).lead[1]
        variants = [[f"{kind}_{severity}" for severity in severities] for kind in kinds]
        whole = [run for run in runs if all(has_any([run], task, [each], name) for of in variants for each in of)]
        if not whole or not has_any(whole, task, [UNCORRUPTED], name):
            continue
        errors = [np.array([[_error(run, task, each, name) for each in of] for of in variants]) for run in whole]
        clean = [_error(run, task, UNCORRUPTED, name) for run in whole]
        for run, error, without in zip(whole, errors, clean, strict=True):
            above, reference = (error - without).sum(1), (errors[0] - clean[0]).sum(1)
            figures = [without, float(error.mean()), _ratio(error.sum(1), errors[0].sum(1)), _ratio(above, reference)]
            rows.append([Cell(run.label), Cell(task_label(task), words=True),
                         *(figure_cell(Figure(figure)) for figure in figures)])  # fmt: skip
    if not rows:
        return None
    heads = [*heads_of(["Model", "Task"]), *map(Head, ("Error, uncorrupted", "Mean error", "mCE", "Relative mCE"))]
    return Part("Errors over all corruptions", [Note(_ERRORS), Table("Errors", heads, rows, lead=2, sortable=True)])


def _error(run: Run, task: str, variant: str, name: str) -> float:
    value = run.figure(task, variant, name).value
    return float("nan") if value is None else 100.0 - value


def _ratio(of: np.ndarray, reference: np.ndarray) -> float | None:
    return float(100 * np.mean(of / reference)) if (reference > 0).all() else None
