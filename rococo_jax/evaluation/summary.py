"""The table that a command prints: one line a model, task and variant."""

from collections.abc import Iterable, Mapping
from typing import Any

from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.metrics.known_figures import compare_with_published

# Metrics that a terminal has room for, the first of a task with its interval.
_SHOWN = (
    *("r1", "r5", "r10", "fr1", "group_score", "text_score", "image_score", "itt", "ota", "ata", "tot", "brittleness"),
    *(
        "top1",
        "shape_bias",
        "per_class",
        "ece",
        "ece_scaled",
        "auroc_mcm",
        "fpr95_mcm",
        "map_at_r",
        "r_precision",
        "judged_r1",
        "excused",
        "spearman_sampled",
        "spearman",
    ),
    *("negative_on_top", "ties", "drop"),
)


def print_summary(all_results: Iterable[Mapping[str, Any]]) -> None:
    """Prints the main metrics of every task and variant to standard output, one table for each kind of task."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    all_results = list(all_results)
    console = Console(width=None if Console().is_terminal else 120)
    kinds = dict.fromkeys(kind for results in all_results for kind in results["kinds"].values())
    for kind in kinds:
        shown = _metrics_of(all_results, kind)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for name in ("model", "task", "variant"):
            table.add_column(name, no_wrap=True)
        for place, name in enumerate(shown):
            table.add_column(metric_of(name).label, justify="right", no_wrap=True)
            if place == 0:
                table.add_column("95 %", justify="right", no_wrap=True)
        for results in all_results:
            model = results["model"]
            for task in (task for task in results["tasks"] if results["kinds"].get(task) == kind):
                for variant, metrics in results["tasks"][task].items():
                    cells = [_number(metrics.get(name)) for name in shown]
                    interval = results["intervals"].get(task, {}).get(variant, {}).get(shown[0]) if shown else None
                    bounds = f"{interval[0]:.1f}-{interval[1]:.1f}" if interval else ""
                    table.add_row(model, task, variant, *cells[:1], bounds, *cells[1:])
                    model = ""
        console.print(table)
    for note in dict.fromkeys(note for results in all_results for note in results.get("notes", ())):
        console.print(f"note: {note}", highlight=False)
    for results in all_results:
        for line in compare_with_published(results):
            console.print(f"{results['model']}, {line}", highlight=False)


def _metrics_of(all_results: list[Mapping[str, Any]], kind: str) -> list[str]:
    """The metrics to show of a kind of task; all of them where none is among the usual ones."""
    found = dict.fromkeys(
        name
        for results in all_results
        for task, variants in results["tasks"].items()
        if results["kinds"].get(task) == kind
        for metrics in variants.values()
        for name in metrics
    )
    usual = [name for name in _SHOWN if name in found]
    return usual or [name for name in found if name in METRICS] or list(found)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
