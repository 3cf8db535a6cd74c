"""Section of a task of any kind: a table of every metric with intervals, with variants as rows."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from rococo_jax.benchmarks.baselines import BASELINES
from rococo_jax.benchmarks.pooling import OURS
from rococo_jax.benchmarks.variants import ALL, MEAN
from rococo_jax.errors import object_of
from rococo_jax.evaluation.summary import without_a_place
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Block, Cell, Folded, Head, Note, Notes, Part, Tiles, rich
from rococo_jax.report.collection import Run, label_of, variants_of
from rococo_jax.report.tables import (
    Column,
    Lead,
    Measured,
    extreme,
    folded_if_long,
    has_any,
    heads_of,
    humans_of,
    leaderboard,
    measured_cell,
    metric_columns,
    model_table,
    pivot,
    tile,
)
from rococo_jax.report.vocabulary import order_metrics, percent, variant_label, variant_note

TABLE_NOTE = "Percentages, each with its 95 % interval for other images of the same kind."
BOARD_NOTE = (
    " Overlapping intervals do not rule out a difference; the paired tests are under Differences. The highest value of "
    "a column is not marked, because it would be chosen from the same data."
)
POOLED_NOTES = {
    ALL: " All: over the items of all parts, with equal weight for each item.",
    MEAN: " Mean: over the parts, with equal weight for each part, regardless of its size.",
}


@dataclasses.dataclass(frozen=True)
class TaskSection:
    """Presentation of a kind of task.

    Attributes:
        group: heading above the columns of tasks of this kind in the leaderboard.
        lead: variant and metric of the first columns, by which models are ranked unless there is another headline.
        headline: variant and metric that models are ranked by; None for `lead`.
        compared: metrics whose means over seeds a sweep shows; empty for all.
        metrics: metrics of the table of many variants, in order; empty for all.
        correlated: metrics that are correlated over models, of the variant in `lead`. If the other variants are
            alterations of it, the first metric is of that variant and the rest are of each altered one.
        alters: whether the variants are alterations of the one in `lead`, so that their mean is meaningful.
        question: the task in a sentence, for tasks without an entry in `vocabulary.QUESTIONS`.
        first: metrics of the table for the variant in `lead`; empty for all.
        rest: metrics of the table for every other variant; empty for all.
        note: note below the heading of the table.
        tiles: `(label, which variants, metric, max or min)`, where the variants are those in `lead`, the "attacks", the
            "parts" where there are several, or the only "part"; the first four that were measured are shown.
        charts: what follows the table.
        errors: `(title, note)` of the examples, in which {queries} and {altered} are the task's.
    """

    group: str = "Others"
    lead: Lead = ("", "")
    compared: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    correlated: tuple[str, ...] = ()
    alters: bool = False
    question: str = ""
    first: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    note: str = ""
    tiles: tuple[tuple[str, str, str, Callable], ...] = ()
    charts: Callable[[Sequence[Run], str], Sequence[Block | None]] = lambda runs, task: []
    errors: tuple[str, str] = ("Examples of errors", "The errors with the highest confidence.")
    headline: Lead | None = None

    @property
    def ranked_by(self) -> Lead:
        """Variant and metric by which models are ranked."""
        return self.headline or self.lead

    def with_headline(self, headline: Lead) -> "TaskSection":
        """Return the section of a task whose results declare their headline.

        In a task with an unaltered variant, that variant stays the first. In a task with parts, the headline is first.
        """
        if self.lead[0] not in ("", MEAN):
            return dataclasses.replace(self, headline=headline)
        variant, metric = headline

        def with_metric(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(dict.fromkeys([metric, *names])) if names else ()

        accuracy = {ALL: "Accuracy, all items", MEAN: "Mean accuracy"}.get(
            variant, f"Accuracy, {variant_label(variant)}"
        )
        return dataclasses.replace(
            self,
            lead=headline,
            headline=headline,
            compared=with_metric(self.compared),
            metrics=with_metric(self.metrics),
            correlated=with_metric(self.correlated),
            first=with_metric(self.first),
            rest=with_metric(self.rest),
            tiles=tuple(
                (accuracy if variants == "lead" else label, variants, metric if name == self.lead[1] else name, end)
                for label, variants, name, end in self.tiles
            ),
        )


def tiles_of(section: TaskSection, runs: Sequence[Run], task: str) -> Tiles | None:
    """Return the most important numbers, as one number or a range over models."""
    lead, pooled = section.lead[0], pooled_variants(section, runs, task)
    whole = variants_of(runs, task, condition=lambda each: not each.is_subset)
    parts = [name for name in whole if name not in pooled]
    variants_by_name = {
        "lead": [lead],
        "attacks": variants_of(runs, task, condition=lambda each: each.is_attack),
        "parts": parts if len(parts) > 1 else [],
        "part": parts if len(parts) == 1 and parts != [lead] else [],
    }
    tiles = []
    for label, variants, name, end in section.tiles:
        extremes = [extreme(run, task, variants_by_name[variants], name, end) for run in runs]
        tiles.append(tile(label, runs, task, extremes, lead, ours=name == "drop"))
    return Tiles.of([each for each in tiles if each is not None][:4])


def pooled_variants(section: TaskSection, runs: Sequence[Run], task: str) -> set[str]:
    """Return the variants of a task that pool several parts."""
    usual = {MEAN} if section.lead[0] == MEAN else set()
    return usual.union(*(run.pooled_variants(task) for run in runs))


def headline_note(section: TaskSection, runs: Sequence[Run], task: str) -> str:
    """Return the metric by which models are ranked and its source; empty where the results do not say."""
    headline = next((each for run in runs if (each := run.headline(task)) is not None), None)
    if headline is None:
        return ""
    source = headline.source.replace(OURS, "our choice")
    return f" Headline: {metric_of(headline.metric).label}, {label_of(runs, task, headline.variant)} ({source})."


def humans_note(runs: Sequence[Run], task: str) -> str:
    """Return the source of the results of people in the last row; empty without such results."""
    humans = humans_of(runs, task)
    if humans is None:
        return ""
    return f" Humans: {humans.items} ({humans.source}). They are a reference, and are not ranked or tested."


def results_of(section: TaskSection, runs: Sequence[Run], task: str) -> Part:
    """Return the table of the one model, or the leaderboard with all results folded below it."""
    variants = variants_of(runs, task)
    note = TABLE_NOTE + section.note + BOARD_NOTE * (len(runs) > 1) + _seeds(runs, task)
    pooled = pooled_variants(section, runs, task)
    note += "".join(text for name, text in POOLED_NOTES.items() if name in pooled and name in variants)
    note += headline_note(section, runs, task) + humans_note(runs, task)
    if has_any(runs, task, variants, "blind"):
        note += " Blind and Grounding are explained below, under Grounded or blind."
    variant_notes = [(name, variant_note(name)) for name in variants]
    lines = [rich("<b>{}</b>: {}.", variant_label(name), text) for name, text in variant_notes if text is not None]
    before = [Note(note), Notes(lines) if lines else None]
    if len(runs) == 1:
        return Part("Results", [*before, model_table(runs[0], task)])
    every = order_metrics(name for run in runs for metrics in run.tasks[task].values() for name in metrics)
    tied = any(run.estimate(task, name, "ties").value for run in runs for name in variants)
    new = without_a_place(every)
    columns = {True: [*section.first, *new] if section.first else every}
    columns[False] = [*section.rest, *new] if section.rest else every
    groups = [(name, columns[name == section.lead[0]]) for name in variants]
    groups = [(name, [each for each in names if tied or each != "ties"]) for name, names in groups]
    metrics = [*section.metrics, *new] if section.metrics else every
    board = leaderboard(runs, task, groups, section.ranked_by, metrics)
    tables = [Part(run.label, [model_table(run, task)], "") for run in runs]
    return Part("Results", [*before, board, Folded("All results, model by model", tables)])


def _seeds(runs: Sequence[Run], task: str) -> str:
    """Return the meaning of "sd" in a table, with the seeds; empty where no result is a mean over seeds."""
    if all(run.estimate(task, name, "r1").spread is None for run in runs for name in run.variants(task)):
        return ""
    sizes = [size for run in runs for size in run.sizes(task).values()]
    seeds = dict.fromkeys(seed for size in sizes for seed in size.get("seeds") or [])
    names = f" {', '.join(map(str, seeds))}" if seeds else ""
    return f" Mixed variants are means over mixing seeds{names}; sd is the sample standard deviation over them."


HOW_TO_READ = (
    "Blind is how often an unrelated image (or caption) also prefers the original to its altered version: 50 is "
    "unbiased, and above 50 the alteration is recognised without the image. Grounding is how often the matching image "
    "(or caption) prefers the original by more than an unrelated one does: 50 is no grounding, 100 is perfect. Both "
    "are definitions of this project."
)
_NAMES = ("preference", "blind", "grounding", "difference_r1")
# The metric of the ranking or the choice that they explain.
_EXPLAINED = ("fr1", "ota")
_TEXTS_ONLY = (
    "How often a scorer that sees only the texts prefers the original: the same for every model. A model's preference "
    "close to that is weak evidence; the grounding of such a scorer is 50."
)


def grounding_part(runs: Sequence[Run], task: str) -> Part | None:
    """Return a row for each model and variant, then the text-only baselines; None where neither was measured."""
    variants = [name for name in variants_of(runs, task) if has_any(runs, task, [name], "blind")]
    if not variants:
        return None
    several = len(runs) > 1
    labels = {name: Cell(label_of(runs, task, name), words=several, title=name) for name in variants}
    rows = [
        ([Cell(run.label), labels[name]] if several else [labels[name]], Measured(run, task, name))
        for run in runs
        for name in variants
    ]
    words = heads_of(["Model", "Variant"] if several else ["Variant"])
    columns = metric_columns((*_EXPLAINED, *_NAMES))
    table = pivot(f"Grounded or blind, {task}", words, rows, columns, measured_cell)
    blocks = [Note(HOW_TO_READ), folded_if_long(table), *_texts_only(runs, task, labels)]
    return Part("Grounded or blind", blocks)


def _texts_only(runs: Sequence[Run], task: str, labels: Mapping[str, Cell]) -> Iterator[Block]:
    """Yield the preference of text-only baselines, a row for each variant; nothing if none was measured."""

    def cell(variant: str, name: str) -> Cell:
        found = (_baselines(run, task, variant).get(name, {}).get("preference") for run in runs)
        values = sorted({each for each in found if each is not None})
        # Items that a tokenizer truncates are left out, so models may differ in a few.
        text = " to ".join(dict.fromkeys(map(percent, [*values[:1], *values[-1:]])))
        return Cell(text or "–", value=values[0] if values else None, soft=True)

    columns = [Column(name, Head(each.label, each.definition)) for name, each in BASELINES.items()]
    rows = [([dataclasses.replace(label, words=False)], name) for name, label in labels.items()]
    table = pivot(f"Texts only, {task}", heads_of(["Variant"]), rows, columns, cell, filterable=False)
    if len(table.heads) > 1:
        yield Note(_TEXTS_ONLY)
        yield table


def _baselines(run: Run, task: str, variant: str) -> dict[str, dict]:
    of_task = object_of(object_of(object_of(run.results.get("baselines")).get("tasks")).get(task))
    return {name: object_of(each) for name, each in object_of(of_task.get(variant)).items()}
