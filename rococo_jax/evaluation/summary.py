"""Tables in the terminal: a line for each model, task and variant, and a table for each kind of task.

Names wrap in a narrow terminal; numbers are never truncated.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    for kind in dict.fromkeys(kind for results in all_results for kind in _kinds_of(results)):
        console.print(_table_of_kind(all_results, kind), crop=False)
    for line in [*(f"note: {note}" for note in note_lines(all_results)), *_human_lines(all_results)]:
        console.print(line, highlight=False, markup=False)
    for line in published_lines(all_results):
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


def _human_lines(all_results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the source of the results of people on each task."""
    humans = {task: each for results in all_results for task, each in human_results(results).items()}
    return [f"humans: {task}: {each.items} ({each.source})" for task, each in humans.items()]


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


def _table_of_kind(all_results: Sequence[Mapping[str, Any]], kind: str) -> "Table":
    """Return the table of one kind of task: a row for each model, task and variant."""
    from rich.text import Text

    metrics = _metrics_of(all_results, kind)
    labels = [metric_of(name).label for name in metrics]
    numbers = [*labels[:1], INTERVAL, *labels[1:]]
    table = new_table(["model", "task", "variant", *numbers], numbers)
    for results in all_results:
        model = results["model"]
        for task in results["tasks"]:
            sizes = results.get("sizes", {}).get(task, {})
            pooled, single = (
                [name for name in names if kind_of(results, task, name) == kind]
                for names in _pooled_and_single(results, task)
            )
            for variant in [*pooled, *single]:
                # As text: rich reads brackets in a string as markup.
                name = variant + coverage_phrase(sizes.get(variant, {}))
                cells = [model, task, name, *_numbers_of(results, task, variant, metrics)]
                table.add_row(*map(Text, cells), end_section=variant in pooled[-1:])
                model = ""
    for task, humans in _humans_of(all_results, kind).items():
        for variant, values in humans.values.items():
            cells = [_number(values.get(name)) for name in metrics]
            if any(cells) and any(variant in results["tasks"].get(task, {}) for results in all_results):
                cells.insert(1, "")
                table.add_row(*map(Text, ["(humans)", task, f"{variant} ({humans.items})", *cells]), style="italic")
    return table


def _kinds_of(results: Mapping[str, Any]) -> list[str]:
    """Return the kinds of all variants, each once."""
    variants = [(task, name) for task, names in results["tasks"].items() for name in names]
    return list(dict.fromkeys(kind_of(results, *variant) for variant in variants))


def _humans_of(all_results: Sequence[Mapping[str, Any]], kind: str) -> dict[str, HumanResults]:
    """Return the published results of people on the tasks of a kind, by task."""
    humans = {task: each for results in all_results for task, each in human_results(results).items()}
    tasks = {
        task
        for results in all_results
        for task, variants in results["tasks"].items()
        if any(kind_of(results, task, name) == kind for name in variants)
    }
    return {task: each for task, each in humans.items() if task in tasks}


def _pooled_and_single(results: Mapping[str, Any], task: str) -> tuple[list[str], list[str]]:
    """Return the variants over several parts, the headline first, and the other variants."""
    sizes = results.get("sizes", {}).get(task, {})
    headline = results.get("headlines", {}).get(task, {}).get("variant")
    variants = list(results["tasks"][task])
    pooled = [name for name in variants if "parts" in sizes.get(name, {})]
    single = [name for name in variants if name not in pooled]
    return sorted(pooled, key=lambda name: name != headline), single


def _numbers_of(results: Mapping[str, Any], task: str, variant: str, metrics: Sequence[str]) -> list[str]:
    """Return the cells of the metrics of a variant, with the interval of the first metric after it."""
    values = results["tasks"][task][variant]
    cells = [_number(values.get(name)) for name in metrics]
    interval = results["intervals"].get(task, {}).get(variant, {}).get(metrics[0]) if metrics else None
    cells.insert(1, f"{interval[0]:.1f}-{interval[1]:.1f}" if interval else "")
    return cells


def _metrics_of(all_results: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Return the metrics to print for a kind of task: the usual ones, or all if it has none of these."""
    names = dict.fromkeys(
        name
        for results in all_results
        for task, variants in results["tasks"].items()
        for variant, metrics in variants.items()
        if kind_of(results, task, variant) == kind
        for name in metrics
    )
    usual = [name for name in _METRICS if name in names] + without_a_place(names)
    return usual or [name for name in names if name in METRICS] or list(names)


def without_a_place(names: Iterable[str]) -> list[str]:
    """Return the metrics, among `names`, that no list of a table names: they are added to every table."""
    return [name for name in names if is_defined(name) and name not in _OTHERS and name not in _METRICS]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
