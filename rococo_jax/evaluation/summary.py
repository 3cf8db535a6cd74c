"""Tables in the terminal: a line for each model, task and variant, and a table for each kind of task.

Names wrap in a narrow terminal; numbers are never truncated.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rococo_jax.benchmarks.benchmark import human_results
from rococo_jax.benchmarks.pooling import HumanResults, coverage_phrase
from rococo_jax.evaluation.results import kind_of
from rococo_jax.metrics import METRICS, is_defined, metric_of
from rococo_jax.metrics.published import compare_with_published

if TYPE_CHECKING:  # takes part of the time of every start
    from rich.table import Table

# Metrics that fit into a terminal; the first of a task is printed with its interval.
_METRICS = (
    *("r1", "r5", "r10", "fr1", "group_score", "text_score", "image_score", "itt", "ota", "ata", "tot", "brittleness"),
    *("top1", "guessing", "shape_bias", "per_class", "ece", "ece_calibrated", "ece_scaled", "auroc_mcm", "fpr95_mcm"),
    *("negative_on_top", "ties", "drop"),
)
# Metrics with a place in other tables, or only among all results. A metric that is in neither list is in every table.
_OTHERS = frozenset(
    "r_mean preference blind grounding difference_r1 drop_points top1_own top1_own_altered top1_other_altered "
    "top1_other candidate_recall by_kind pairs_right sets_right saw_texture top5 prior confidence ece_mass nll "
    "nll_scaled brier ras ras_destructive ras_corrective consistency right_to_wrong wrong_to_right "
    "erroneous_confidence hesitation aupr_in_mcm aupr_out_mcm auroc_max_logit aupr_in_max_logit aupr_out_max_logit "
    "fpr95_max_logit auroc_energy aupr_in_energy aupr_out_energy fpr95_energy auroc_entropy aupr_in_entropy "
    "aupr_out_entropy fpr95_entropy".split()
)
# Name of the columns of intervals.
INTERVAL = "95 %"
# Minimum number of characters of a name in a line.
_MIN_NAME_WIDTH = 7
_NUMBER = re.compile(r"[\d.]+")
# Width of output to a file.
_FILE_WIDTH = 10_000


def print_summary(all_results: Iterable[Mapping[str, Any]]) -> None:
    """Print the main metrics of every task and variant to standard output."""
    from rich.console import Console

    all_results = list(all_results)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    rows = [row for results in all_results for row in _rows_of(results)]
    humans = {task: each for results in all_results for task, each in human_results(results).items()}
    for kind in dict.fromkeys(row.kind for row in rows):
        console.print(_table_of_kind(rows, kind, humans), crop=False)
    lines = [f"note: {note}" for note in note_lines(all_results)]
    lines += [f"humans: {task}: {each.items} ({each.source})" for task, each in humans.items()]
    for line in lines + published_lines(all_results):
        console.print(line, highlight=False, markup=False)


def published_lines(all_results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each result next to the published one."""
    return [f"{results['model']}, {line}" for results in all_results for line in compare_with_published(results)]


def note_lines(all_results: Sequence[Mapping[str, Any]], *, join: bool = False) -> list[str]:
    """Return the notes, each once, with the benchmark that it is about and, among several models, with the models.

    Args:
        join: whether notes that differ in numbers alone are one line.
    """
    models_of: dict[str, dict[str, list[str]]] = {}
    for results in all_results:
        benchmarks = [(name, about.get("notes", ())) for name, about in results.get("benchmarks", {}).items()]
        if not benchmarks:
            benchmarks = [("", results.get("notes", ()))]
        for benchmark, notes in benchmarks:
            for note in notes:
                models_of.setdefault(benchmark, {}).setdefault(note, []).append(results["model"])
    lines = []
    for benchmark, notes_of in models_of.items():
        for note, models in (joined_notes(notes_of) if join else notes_of).items():
            subjects = [benchmark] if benchmark and not note.startswith(benchmark) else []
            if len(models) < len(all_results):
                subjects.insert(0, ", ".join(models))
            lines.append(": ".join([*subjects, note]))
    return lines


def joined_notes(labels_of: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return notes with their labels; of notes that differ in numbers alone the first, with the labels of all."""
    alike: dict[str, list[str]] = {}
    for note in labels_of:
        alike.setdefault(_NUMBER.sub("", note), []).append(note)
    joined = {}
    for notes in alike.values():
        labels = dict.fromkeys(label for note in notes for label in labels_of[note])
        joined[f"{notes[0]} (and {len(notes) - 1} alike)" if len(notes) > 1 else notes[0]] = list(labels)
    return joined


def new_table(names: Iterable[str], numbers: Collection[str]) -> "Table":
    """Return an empty table for the terminal, with columns of these names.

    Names fold where the terminal is narrow; the columns in `numbers` are aligned to the right and never cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        if name in numbers:
            width = len("10.0-20.0" if name == INTERVAL else "100.0")
            table.add_column(name, justify="right", overflow="fold", min_width=width, no_wrap=name == INTERVAL)
        else:
            table.add_column(name, overflow="fold", min_width=_MIN_NAME_WIDTH)
    return table


class _Row(NamedTuple):
    """A variant of a task in the results of a model; pooled variants are over several parts."""

    results: Mapping[str, Any]
    task: str
    variant: str
    kind: str
    is_pooled: bool

    @property
    def values(self) -> Mapping[str, float | None]:
        """The value of each metric."""
        return self.results["tasks"][self.task][self.variant]

    def cells(self, metrics: Sequence[str]) -> list[str]:
        """Return the values of metrics, with the interval of the first one after it."""
        interval = self.results["intervals"].get(self.task, {}).get(self.variant, {}).get(next(iter(metrics), ""))
        cells = [_number(self.values.get(name)) for name in metrics]
        return [*cells[:1], f"{interval[0]:.1f}-{interval[1]:.1f}" if interval else "", *cells[1:]]


def _rows_of(results: Mapping[str, Any]) -> Iterator[_Row]:
    """Yield a row for each variant of each task: pooled ones first, and of these that of the headline."""
    for task, variants in results["tasks"].items():
        sizes = results.get("sizes", {}).get(task, {})
        headline = results.get("headlines", {}).get(task, {}).get("variant")
        pooled = [name for name in variants if "parts" in sizes.get(name, {})]
        for name in sorted(variants, key=lambda name: (name not in pooled, name in pooled and name != headline)):
            yield _Row(results, task, name, kind_of(results, task, name), name in pooled)


def _table_of_kind(all_rows: Sequence[_Row], kind: str, humans: Mapping[str, HumanResults]) -> "Table":
    """Return the table of one kind of task: a row for each model, task and variant, then published ones of people."""
    from rich.text import Text

    rows = [row for row in all_rows if row.kind == kind]
    metrics = _printed_metrics(dict.fromkeys(name for row in rows for name in row.values))
    labels = [metric_of(name).label for name in metrics]
    numbers = [*labels[:1], INTERVAL, *labels[1:]]
    table, previous = new_table(["model", "task", "variant", *numbers], numbers), None
    last_pooled = {(id(row.results), row.task): row for row in rows if row.is_pooled}
    for row in rows:
        name = row.variant + coverage_phrase(row.results.get("sizes", {}).get(row.task, {}).get(row.variant, {}))
        model, previous = "" if row.results is previous else row.results["model"], row.results
        # As text: rich reads brackets in a string as markup.
        cells = map(Text, [model, row.task, name, *row.cells(metrics)])
        table.add_row(*cells, end_section=row is last_pooled.get((id(row.results), row.task)))
    tasks = {row.task for row in rows}
    for task in [task for task in humans if task in tasks]:
        for variant, values in humans[task].values.items():
            cells = [_number(values.get(name)) for name in metrics]
            if any(cells) and any((row.task, row.variant) == (task, variant) for row in all_rows):
                cells.insert(1, "")
                about = ["(humans)", task, f"{variant} ({humans[task].items})"]
                table.add_row(*map(Text, [*about, *cells]), style="italic")
    return table


def _printed_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics to print, of those that a kind of task has: the usual ones, or all if it has none of these."""
    names = list(names)
    usual = [name for name in _METRICS if name in names] + without_a_place(names)
    return usual or [name for name in names if name in METRICS] or names


def without_a_place(names: Iterable[str]) -> list[str]:
    """Return the metrics, among `names`, that no list of a table names: they are added to every table."""
    return [name for name in names if is_defined(name) and name not in _OTHERS and name not in _METRICS]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
