"""The section of a task of any kind: a table of every metric with intervals, variants as rows."""

import dataclasses
from collections.abc import Callable, Sequence

from rococo_jax.benchmarks.baselines import BASELINES
from rococo_jax.benchmarks.variants import ALL, MEAN
from rococo_jax.errors import object_of
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Block, Cell, Folded, Head, Note, Notes, Part, Table, Tiles, figure_cell, rich
from rococo_jax.report.collection import Figure, Run, label_of, variants_of
from rococo_jax.report.tables import Lead, extreme, folded_if_long, has_any, heads_of, leaderboard, model_table, tile
from rococo_jax.report.vocabulary import order_metrics, percent, variant_label, variant_note

TABLE_NOTE = "Percentages, each with its 95 % bootstrap interval, resampled by image."
BOARD_NOTE = (
    " Intervals that overlap do not rule out a difference: models are compared image by image under Differences. "
    "The highest value of a column was chosen from the same data and is not marked."
)
POOLED_NOTES = {
    ALL: " All: over the items of all parts, each item with the same weight.",
    MEAN: " Mean: over the parts, each with the same weight, whatever its size.",
}


@dataclasses.dataclass(frozen=True)
class TaskSection:
    """How a kind of task is shown.

    Attributes:
        lead: variant and metric that come first, and that models are ranked by where there is no other headline.
        headline: variant and metric that models are ranked by; None for `lead`.
        compared: metrics of which a sweep has means over seeds; empty for all.
        figures: metrics of the table of many variants, in order; empty for all.
        correlated: metrics whose correlations over models say something: of the variant in `lead`, and where the
            variants are alterations of it, the first of it and the others of each altered one.
        alters: whether the variants are alterations of the one in `lead`, so that their mean says something.
        question: what is asked, for tasks that have no question of their own.
        first, others: metrics of the table: of the variant in `lead`, and of every other; empty for all.
        note: what must be said of the table.
        tiles: `(label, which variants, metric, max or min)`, where the variants are those in `lead`, the "attacks", the
            "parts" where there are several, or the only "part"; the first four that were measured are shown.
        charts: what follows the table.
        errors: `(title, note)` of the examples, in which {queries} and {altered} are the task's.
    """

    lead: Lead = ("", "")
    compared: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    correlated: tuple[str, ...] = ()
    alters: bool = False
    question: str = ""
    first: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    note: str = ""
    tiles: tuple[tuple[str, str, str, Callable], ...] = ()
    charts: Callable[[Sequence[Run], str], Sequence[Block | None]] = lambda runs, task: []
    errors: tuple[str, str] = ("Examples of errors", "The errors that the model was most confident of.")
    headline: Lead | None = None

    @property
    def ranked_by(self) -> Lead:
        """Variant and metric that models are ranked by."""
        return self.headline or self.lead

    def with_headline(self, headline: Lead) -> "TaskSection":
        """The section of a task whose results declare their headline.

        Parts have no unaltered variant that stands first whatever the headline is: there the headline takes its place.
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
            figures=with_metric(self.figures),
            correlated=with_metric(self.correlated),
            first=with_metric(self.first),
            others=with_metric(self.others),
            tiles=tuple(
                (accuracy if which == "lead" else label, which, metric if name == self.lead[1] else name, end)
                for label, which, name, end in self.tiles
            ),
        )


def tiles_of(section: TaskSection, runs: Sequence[Run], task: str) -> Tiles | None:
    """The few numbers that matter: a number each, or a range of models."""
    lead, pooled = section.lead[0], pooled_variants(section, runs, task)
    parts = [name for name in variants_of(runs, task) if name not in pooled]
    which = {
        "lead": [lead],
        "attacks": variants_of(runs, task, which=lambda each: each.is_attack),
        "parts": parts if len(parts) > 1 else [],
        "part": parts if len(parts) == 1 and parts != [lead] else [],
    }
    tiles = []
    for label, variants, name, end in section.tiles:
        found = [extreme(run, task, which[variants], name, end) for run in runs]
        tiles.append(tile(label, runs, task, found, lead, ours=name == "drop"))
    return Tiles.of([each for each in tiles if each is not None][:4])


def pooled_variants(section: TaskSection, runs: Sequence[Run], task: str) -> set[str]:
    """The variants of a task that are made of several parts."""
    usual = {MEAN} if section.lead[0] == MEAN else set()
    return usual.union(*(run.pooled_variants(task) for run in runs))


def headline_note(section: TaskSection, runs: Sequence[Run], task: str) -> str:
    """By which number models are ranked and where that is written down; empty where the results do not say."""
    headline = next((each for run in runs if (each := run.headline(task)) is not None), None)
    if headline is None:
        return ""
    return (
        f" Headline: {metric_of(headline.metric).label}, {label_of(runs, task, headline.variant)} ({headline.source})."
    )


def results_of(section: TaskSection, runs: Sequence[Run], task: str) -> Part:
    """The table of the one model, or the leaderboard and every figure folded away, with what must be said of it."""
    variants = variants_of(runs, task)
    note = TABLE_NOTE + section.note + BOARD_NOTE * (len(runs) > 1) + _seeds(runs, task)
    pooled = pooled_variants(section, runs, task)
    note += "".join(said for name, said in POOLED_NOTES.items() if name in pooled and name in variants)
    note += headline_note(section, runs, task)
    note += f" {HOW_TO_READ}" if has_any(runs, task, variants, "blind") else ""
    told = [(name, variant_note(name)) for name in variants]
    lines = [rich("<b>{}</b>: {}.", variant_label(name), said) for name, said in told if said is not None]
    before = [Note(note), Notes(lines) if lines else None]
    if len(runs) == 1:
        return Part("Results", [*before, model_table(runs[0], task)])
    every = order_metrics(name for run in runs for metrics in run.tasks[task].values() for name in metrics)
    tied = any(run.figure(task, name, "ties").value for run in runs for name in variants)
    groups = [(name, (section.first if name == section.lead[0] else section.others) or every) for name in variants]
    groups = [(name, [each for each in names if tied or each != "ties"]) for name, names in groups]
    board = leaderboard(runs, task, groups, section.ranked_by, section.figures or every)
    tables = [Part(run.label, [model_table(run, task)], "") for run in runs]
    return Part("Results", [*before, board, Folded("Every figure, model by model", tables)])


def _seeds(runs: Sequence[Run], task: str) -> str:
    """What "sd" means in a table, with the seeds; empty where no figure is a mean over seeds."""
    if all(run.figure(task, name, "r1").spread is None for run in runs for name in run.variants(task)):
        return ""
    sizes = [size for run in runs for size in run.sizes(task).values()]
    seeds = dict.fromkeys(seed for size in sizes for seed in size.get("seeds") or [])
    which = f" {', '.join(map(str, seeds))}" if seeds else ""
    return f" Mixed variants are means over seeds{which}; sd is the sample standard deviation over them."


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
            label = Cell(label_of(runs, task, variant), words=len(runs) > 1, title=variant)
            row = [Cell(run.label), label] if len(runs) > 1 else [label]
            row += [figure_cell(run.figure(task, variant, name)) for name in names]
            row += [_soft(_baseline(run, task, variant, name), edge=name == baselines[0]) for name in baselines]
            rows.append(row)
    note = HOW_TO_READ + (f" {_BASELINES}" if baselines else "")
    groups = [("", len(names), ""), ("Without the image", len(baselines), "")] if baselines else []
    table = Table(f"Grounded or blind, {task}", heads, rows, groups, len(heads) - len(names) - len(baselines),
                  sortable=len(rows) > 1, filterable=True)  # fmt: skip
    return Part("Grounded or blind", [Note(note), folded_if_long(table)])


def _baselines(run: Run, task: str, variant: str) -> dict[str, dict]:
    of_task = object_of(object_of(object_of(run.results.get("baselines")).get("tasks")).get(task))
    return {name: object_of(each) for name, each in object_of(of_task.get(variant)).items()}


def _baseline(run: Run, task: str, variant: str, name: str) -> Figure:
    found = _baselines(run, task, variant).get(name, {})
    return Figure(found.get("preference"), *(found.get("interval") or (None, None)))


def _soft(figure: Figure, edge: bool) -> Cell:
    return Cell(percent(figure.value), value=figure.value, edge=edge, soft=True)
