"""Why the original wins: preference, blind and grounding beside what a scorer gets that does not look at all."""

from collections.abc import Sequence

from rococo_jax.benchmarks.baselines import BASELINES
from rococo_jax.report.blocks import Cell, Head, Note, Part, Table, figure_cell
from rococo_jax.report.collection import Figure, Run, object_of, variants_of
from rococo_jax.report.tables import folded_if_long, has_any, heads_of
from rococo_jax.report.vocabulary import percent, variant_label

HOW_TO_READ = (
    "Blind is how often a wrong partner prefers the original too: 50 is unbiased, and above it the alteration is "
    "recognised without looking. Grounding is how often the right partner prefers it by more than a wrong one does: 50 "
    "is blind, 100 perfect."
)
_NAMES = ("preference", "blind", "grounding", "difference_r1")
# The figure of the ranking or the choice that they explain.
_EXPLAINED = ("fr1", "ota")
_BASELINES = (
    "Greyed: how often a scorer that sees texts alone, or a detector of mixing that sees images alone, prefers the "
    "original. A preference near it proves little, and its own grounding is 50."
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
