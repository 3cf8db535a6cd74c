"""The section of a task of any kind: a table of every metric with intervals, variants as rows."""

import dataclasses
from collections.abc import Callable, Sequence

from rococo_jax.report.blocks import Block, Folded, Note, Part, Tiles
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.tables import Lead, leaderboard, model_table
from rococo_jax.report.vocabulary import order_metrics

Blocks = list[Block | None]
TABLE_NOTE = "Percentages; below each, its 95 % bootstrap interval, resampled by image."
BOARD_NOTE = (
    " Click a heading to sort; the best figure of a column is bold. Overlapping intervals are no ranking: whether two "
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
