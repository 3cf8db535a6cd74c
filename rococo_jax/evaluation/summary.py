"""The tables that a command prints: one line a model, task and variant, one table for each kind of task.

Names fold where the terminal is narrow; figures are never cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rococo_jax.benchmarks.pooling import coverage_phrase
from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.metrics.published import compare_with_published

if TYPE_CHECKING:  # takes part of the time of every start
    from rich.table import Table

# Metrics that a terminal has room for, the first of a task with its interval.
_SHOWN = (
    *("r1", "r5", "r10", "fr1", "group_score", "text_score", "image_score", "itt", "ota", "ata", "tot", "brittleness"),
    *("top1", "shape_bias", "per_class", "ece", "ece_scaled", "auroc_mcm", "fpr95_mcm"),
    *("negative_on_top", "ties", "drop"),
)
# Characters of a name in a line, at least.
_NAME = 7
# Columns of a file, which has no width.
_WHOLE = 10_000


def print_summary(all_results: Iterable[Mapping[str, Any]]) -> None:
    """Prints the main metrics of every task and variant to standard output."""
    from rich.console import Console

    all_results = list(all_results)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WHOLE)
    for kind in dict.fromkeys(kind for results in all_results for kind in results["kinds"].values()):
        console.print(_table(all_results, kind), crop=False)
    for note in dict.fromkeys(note for results in all_results for note in results.get("notes", ())):
        console.print(f"note: {note}", highlight=False, markup=False)
    for results in all_results:
        for line in compare_with_published(results):
            console.print(f"{results['model']}, {line}", highlight=False, markup=False)


def _table(all_results: Sequence[Mapping[str, Any]], kind: str) -> "Table":
    """Names, which fold where the console is narrow, and figures, which do not."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = _metrics_of(all_results, kind)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("model", "task", "variant"):
        table.add_column(name, overflow="fold", min_width=_NAME)
    labels = [metric_of(name).label for name in shown]
    for label in (*labels[:1], "95 %", *labels[1:]):
        table.add_column(
            label, justify="right", overflow="fold", min_width=len("10.0-20.0" if label == "95 %" else "100.0")
        )
    for results in all_results:
        model = results["model"]
        for task in (task for task in results["tasks"] if results["kinds"].get(task) == kind):
            for variant, metrics in results["tasks"][task].items():
                figures = [_number(metrics.get(name)) for name in shown]
                interval = results["intervals"].get(task, {}).get(variant, {}).get(shown[0]) if shown else None
                figures.insert(1, f"{interval[0]:.1f}-{interval[1]:.1f}" if interval else "")
                # As text: rich reads brackets in a string as markup.
                name = variant + coverage_phrase(results.get("sizes", {}).get(task, {}).get(variant, {}))
                table.add_row(*map(Text, (model, task, name, *figures)))
                model = ""
    return table


def _metrics_of(all_results: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """The metrics to show of a kind of task; all of them where none is among the usual ones."""
    names = dict.fromkeys(
        name
        for results in all_results
        for task, variants in results["tasks"].items()
        if results["kinds"].get(task) == kind
        for metrics in variants.values()
        for name in metrics
    )
    usual = [name for name in _SHOWN if name in names]
    return usual or [name for name in names if name in METRICS] or list(names)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
