"""Primary differences between models with their verdicts, for the page, the terminal and papers."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

from rococo_jax.benchmarks.variants import ALL, MEAN
from rococo_jax.evaluation.summary import INTERVAL
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import FLIPS, Verdict, least_margin
from rococo_jax.report.blocks import Cell, Head, Note, Notes, Part, Table, rich
from rococo_jax.report.collection import label_of
from rococo_jax.report.comparison import Comparison, Comparisons
from rococo_jax.report.difference import Difference
from rococo_jax.report.markdown import print_table
from rococo_jax.report.overview import print_wrapped
from rococo_jax.report.sections import section_of
from rococo_jax.report.tables import folded_if_long
from rococo_jax.report.task_tests import reaches_chance
from rococo_jax.report.vocabulary import count, percent, signed, task_label, variant_label

_LEGEND = (
    "Difference: model minus reference, paired by image, with its 95 % interval; for Blind, of the distances from 50. "
    "p: permutation test. MDE: the smallest true difference that the test detects with 80 % power. p, interval and MDE "
    "are corrected (max-T) over {}. better, worse: the difference is significant (p below 0.05), and the interval "
    "excludes zero."
)
_MEANINGS: Mapping[Verdict, str] = {
    "text bias": "the model recognises altered items without looking, significantly more than the reference; less text "
    "bias: significantly less",
    "at chance": "without alteration, the model or the reference finds no more than guessing does, so the difference "
    "says nothing",
    "identical answers": "no image differs",
}
NUMBERS = ("Value", "Reference", "Difference", INTERVAL, "p", "MDE", "Images")
COLUMNS = ("Model", "Task", "Variant", "Metric", *NUMBERS, "Verdict")
# Columns of a table of one task and model, after variant and metric.
_TERMINAL = tuple(name for name in (*NUMBERS, "Verdict") if name not in ("Reference", "Images"))
# Of more models than this, one sentence counts the verdicts of all.
_MOST_SENTENCES = 8


def cells_of(row: Difference) -> tuple[str, ...]:
    """Return a primary difference as text, in the order of `COLUMNS`."""
    variant = variant_label(row.variant) + row.coverage
    words = row.model, task_label(row.task), variant, metric_of(row.metric).label
    numbers = percent(row.value), percent(row.reference_value), signed(row.points), row.bounds or "–"
    return *words, *numbers, row.p_text, percent(row.mde), count(row.images), row.verdict or ""


def verdict_rows(comparisons: Comparisons) -> list[Difference]:
    """Return the primary differences of all comparisons, in the order of the page."""
    return [row for comparison in comparisons.values() for row in comparison.primary.values()]


def difference_table(rows: Sequence[Difference], caption: str, notes: Sequence[str] = ()) -> Table:
    """Return primary differences as a table, in which the significant ones are strong."""
    heads = [Head(name, words=name not in NUMBERS) for name in COLUMNS]
    body = [
        [
            Cell(text, words=head.words, strong=row.is_significant and head.label == "Difference")
            for head, text in zip(heads, cells_of(row), strict=True)
        ]
        for row in rows
    ]
    return Table(caption, heads, body, sortable=len(rows) > 1, filterable=True, notes=notes)


def table_for_papers(comparisons: Comparisons, margin: float | None = None) -> Table:
    """Return the primary differences of all comparisons with notes on their tests.

    Args:
        margin: that the comparisons were made with.
    """
    references = ", ".join(dict.fromkeys(comparison.reference.label for comparison in comparisons.values()))
    starred = f"* p below 0.05 after the correction, by a two-sided permutation test with {FLIPS:,} swaps."
    notes = [starred, legend(comparisons, margin)]
    return difference_table(verdict_rows(comparisons), f"Differences from {references}", notes)


def verdict_part(compared: Mapping[str, Comparison]) -> Part | None:
    """Return the table of primary differences of a group of results; None if no models were compared.

    Args:
        compared: the comparison of each task.
    """
    comparisons = {(0, task): comparison for task, comparison in compared.items()}
    rows = verdict_rows(comparisons)
    if not rows:
        return None
    reference = rows[0].reference
    table = difference_table(rows, f"Verdicts against {reference}")
    text = "{} <code>rococo compare --margin POINTS</code> also tests whether it is too small to matter."
    hint = rich(text, legend(comparisons))
    return Part(f"Compared with {reference}", [Notes(summary_lines(rows)), folded_if_long(table), Note(hint)], "task")


def summary_lines(rows: Sequence[Difference]) -> list[str]:
    """Return a sentence for each model that counts its verdicts, or one for all of many models."""
    lines = []
    for reference in dict.fromkeys(row.reference for row in rows):
        of_reference = [row for row in rows if row.reference == reference]
        models = list(dict.fromkeys(row.model for row in of_reference))
        if len(models) > _MOST_SENTENCES:
            lines.append(f"{len(models)} models against {reference}: {_counted_verdicts(of_reference)}.")
            continue
        for model in models:
            of_model = [row for row in of_reference if row.model == model]
            lines.append(f"{model} against {reference}: {_counted_verdicts(of_model)}.")
    return lines


def _counted_verdicts(rows: Sequence[Difference]) -> str:
    verdicts = Counter(row.verdict for row in rows)
    counted = [f"{verdicts[name]} {name}" for name in get_args(Verdict) if verdicts[name]]
    return f"{', '.join(counted)} of {len(rows)} primary difference{'s' * (len(rows) != 1)}"


def leader_sentence(comparison: Comparison) -> str | None:
    """Say whether the first model of a leaderboard is significantly ahead of the second, or no better than guessing.

    Only the tests of the table count: two models of which none is the reference were not tested against each other.
    None if the results do not have the metric that orders the leaderboard.
    """
    task, (first, second) = comparison.task, comparison.runs[:2]
    variant, metric = section_of(comparison.runs, task).ranked_by
    estimates = [run.estimate(task, variant, metric) for run in (first, second)]
    if None in [estimate.value for estimate in estimates]:
        return None
    name, label = metric_of(metric).label, label_of((first, second), task, variant).lower()
    by = f"{'' if label in (ALL, MEAN) else f'{label} '}{name}"
    values = [percent(estimate.value) for estimate in estimates]
    if reaches_chance(first, task, variant, metric):
        chance = percent(first.chance(task, variant, metric))
        return (
            f"No model can be distinguished from chance: by {by}, the 95 % interval of the first, {first.label} "
            f"({values[0]}), is {estimates[0].bounds}, and guessing gives {chance} on average."
        )
    labels = {first.label, second.label}
    key = (variant, metric)
    tested = [row for row in comparison.primary.values() if {row.model, row.reference} == labels]
    row = next((row for row in tested if (row.variant, row.metric) == key), None)
    if row is None:
        return (
            f"By {by}, {first.label} ({values[0]}) is ahead of {second.label} ({values[1]}). These two were not tested "
            "against each other, because neither is the reference."
        )
    if not row.is_significant:
        return (
            f"There is no clear best model: by {by} the first two, {first.label} ({values[0]}) and {second.label} "
            f"({values[1]}), do not differ significantly (p {row.p_text})."
        )
    return (
        f"By {by}, {first.label} ({values[0]}) is first, significantly ahead of {second.label} ({values[1]}, "
        f"p {row.p_text})."
    )


def leader_lines(comparisons: Comparisons) -> list[str]:
    """Return a sentence for each task: which model is first, that none is clearly, or that none is above chance."""
    sentences = {task: leader_sentence(comparison) for (_, task), comparison in comparisons.items()}
    return [f"{task_label(task)}: {sentence}" for task, sentence in sentences.items() if sentence]


def margin_lines(comparisons: Comparisons, margin: float) -> list[str]:
    """Return a sentence for each task that has too few images to show equivalence within this margin."""
    lines = []
    for (_, task), comparison in comparisons.items():
        images = max((row.images for row in comparison.primary.values()), default=0)
        if images and margin < (least := least_margin(images)):
            lines.append(
                f"{task_label(task)}: {images} images cannot show equivalence within {margin:g} points, but within "
                f"{least:.2g} or more (3 / {images})."
            )
    return lines


def print_verdicts(comparisons: Comparisons, margin: float | None = None, hint: str = "") -> None:
    """Print the primary differences with their sentences: one Markdown table in a file or a pipe.

    A terminal gets a table for each task and model, whose columns fit into 80 letters.

    Args:
        margin: that the comparisons were made with.
        hint: sentence that ends the legend.
    """
    rows = verdict_rows(comparisons)
    if sys.stdout.isatty():
        for (task, model, reference), members in _by_model(rows).items():
            print_wrapped(f"{task_label(task)}: {model} against {reference}")
            texts = [dict(zip(COLUMNS, cells_of(row), strict=True)) for row in members]
            cells = [[f"{each['Variant']}, {each['Metric']}", *(each[name] for name in _TERMINAL)] for each in texts]
            print_table(("Variant", *_TERMINAL), cells, NUMBERS)
    else:
        print_table(COLUMNS, [cells_of(row) for row in rows], NUMBERS)
        print()
    lines = [*leader_lines(comparisons), *([] if margin is None else margin_lines(comparisons, margin))]
    for line in (*lines, *summary_lines(rows), "", f"{legend(comparisons, margin)} {hint}".rstrip()):
        print_wrapped(line)


def _by_model(rows: Sequence[Difference]) -> dict[tuple[str, str, str], list[Difference]]:
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for row in rows:
        groups.setdefault((row.task, row.model, row.reference), []).append(row)
    return groups


def legend(comparisons: Comparisons, margin: float | None = None) -> str:
    """Return what a reader must know about the columns and the verdicts, in plain text."""
    families = dict.fromkeys(comparison.family for comparison in comparisons.values())
    verdicts = " ".join(row.verdict or "" for row in verdict_rows(comparisons))
    text = _LEGEND.format("; ".join(families))
    text += "".join(f" {name}: {meaning}." for name, meaning in _MEANINGS.items() if name in verdicts)
    if margin is None:
        return text
    return f"{text} {equivalence_phrase(margin)}"


def equivalence_phrase(margin: float) -> str:
    """Return what the verdict `equivalent` means."""
    return f"equivalent: it is smaller than {margin:g} points (two one-sided tests at 5 %, not corrected)."
