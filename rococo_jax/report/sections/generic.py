"""The section of a task of any kind: a table of every metric with intervals, variants as rows."""

import dataclasses
from collections.abc import Callable, Sequence

from rococo_jax.benchmarks.baselines import BASELINES
from rococo_jax.errors import object_of
from rococo_jax.report.blocks import Block, Cell, Folded, Head, Note, Part, Table, Tiles, figure_cell
from rococo_jax.report.collection import Figure, Run, variants_of
from rococo_jax.report.tables import Lead, folded_if_long, has_any, heads_of, leaderboard, model_table
from rococo_jax.report.vocabulary import order_metrics, percent, variant_label

Blocks = list[Block | None]
TABLE_NOTE = "Percentages, each with its 95 % bootstrap interval, resampled by image."
BOARD_NOTE = (
    " The best figure of a column is bold. Overlapping intervals are no ranking: whether two "
    "models differ, paired differences say better."
)


@dataclasses.dataclass(frozen=True)
class TaskSection:
    """How a kind of task is shown.

    Attributes:
        lead: variant and metric that models are ordered by.
        compared: metrics of which paired differences are made.
        figures: metrics of short tables (Markdown, model cards), in order; empty for all.
        correlated: metrics whose correlations over models say something: of the variant in `lead`, and where the
            variants are alterations of it, the first of it and the others of each altered one.
        alters: whether the variants are alterations of the one in `lead`, so that their mean says something.
        question: what is asked, for tasks that have no question of their own.
        tiles, results, charts: the few numbers that matter; the table, and what must be said of it; what follows.
        errors: `(title, note)` of the examples.
    """

    lead: Lead
    compared: tuple[str, ...]
    figures: tuple[str, ...]
    correlated: tuple[str, ...]
    alters: bool
    question: str
    tiles: Callable[[Sequence[Run], str], Tiles | None]
    results: Callable[[Sequence[Run], str], Part]
    charts: Callable[[Sequence[Run], str], Blocks]
    errors: Callable[[str], tuple[str, str]]


def results_part(runs: Sequence[Run], task: str, board: Block, before: Blocks) -> Part:
    """The part with the table: of the one model, or the leaderboard and every figure folded away."""
    if len(runs) == 1:
        return Part("Results", [*before, model_table(runs[0], task)])
    tables = [Part(run.label, [model_table(run, task)], 5, "") for run in runs]
    return Part("Results", [*before, board, Folded("Every figure, model by model", tables)])


def _results(runs: Sequence[Run], task: str) -> Part:
    names = order_metrics(name for run in runs for metrics in run.tasks[task].values() for name in metrics)
    board = leaderboard(runs, task, [(name, names) for name in variants_of(runs, task)], GENERIC.lead, names)
    note = TABLE_NOTE + (BOARD_NOTE if len(runs) > 1 else "")
    return results_part(runs, task, board, [Note(note)])


GENERIC = TaskSection(
    lead=("", ""),
    compared=(),
    figures=(),
    correlated=(),
    alters=False,
    question="",
    tiles=lambda runs, task: None,
    results=_results,
    charts=lambda runs, task: [],
    errors=lambda task: ("Examples of errors", "The errors that the model was most confident of."),
)


HOW_TO_READ = (
    "Blind is how often a wrong partner prefers the original too: 50 is unbiased, and above it the alteration is "
    "recognised without looking. Grounding is how often the right partner prefers it by more than a wrong one does: 50 "
    "is blind, 100 perfect."
)
_NAMES = ("preference", "blind", "grounding", "difference_r1")
# The figure of the ranking or the choice that they explain.
_EXPLAINED = ("fr1", "ota")
_BASELINES = (
    "Greyed: how often a scorer that sees texts alone prefers the original. A preference near it proves little, and "
    "its own grounding is 50."
)


def grounding_part(runs: Sequence[Run], task: str) -> Part | None:
    """A row a model and variant, baselines greyed at the end; None where neither was measured."""
    variants = [name for name in variants_of(runs, task) if has_any(runs, task, [name], "blind")]
    if not variants:
        return None
    measured = {name for run in runs for variant in variants for name in _baselines(run, task, variant)}
    baselines = [name for name in BASELINES if name in measured]
    names = [name for name in (*_EXPLAINED, *_NAMES) if has_any(runs, task, variants, name)]
    heads = heads_of(["Model", "Variant"] if len(runs) > 1 else ["Variant"], names)
    heads += [Head(BASELINES[name].label, BASELINES[name].definition, edge=name == baselines[0]) for name in baselines]
    rows = []
    for run in runs:
        for variant in variants:
            label = Cell(variant_label(variant), words=len(runs) > 1, title=variant)
            row = [Cell(run.label), label] if len(runs) > 1 else [label]
            row += [figure_cell(run.figure(task, variant, name)) for name in names]
            row += [_soft(_baseline(run, task, variant, name), edge=name == baselines[0]) for name in baselines]
            rows.append(row)
    note = HOW_TO_READ + (f" {_BASELINES}" if baselines else "")
    groups = [("", len(names), ""), ("Without the image", len(baselines), "")] if baselines else []
    table = Table(f"Grounded or blind, {task}", heads, rows, groups, len(heads) - len(names) - len(baselines),
                  sortable=len(rows) > 1, filterable=len(runs) > 1)  # fmt: skip
    return Part("Grounded or blind", [Note(note), folded_if_long(table)])


def _baselines(run: Run, task: str, variant: str) -> dict[str, dict]:
    of_task = object_of(object_of(object_of(run.results.get("baselines")).get("tasks")).get(task))
    return {name: object_of(each) for name, each in object_of(of_task.get(variant)).items()}


def _baseline(run: Run, task: str, variant: str, name: str) -> Figure:
    found = _baselines(run, task, variant).get(name, {})
    return Figure(found.get("preference"), *(found.get("interval") or (None, None)))


def _soft(figure: Figure, edge: bool) -> Cell:
    return Cell(percent(figure.value), value=figure.value, edge=edge, soft=True)
