"""The table that a command prints: one line a model, task and variant."""

from collections.abc import Iterable, Mapping
from typing import Any

_COLUMNS = (("R@1", "r1"), ("R@5", "r5"), ("R@10", "r10"), ("FR@1", "fr1"), ("drop %", "drop"))


def print_summary(all_results: Iterable[Mapping[str, Any]]) -> None:
    """Prints R@1 with its interval, R@5, R@10, FR@1 and drop of every task and variant to standard output."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    all_results = list(all_results)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "task", "variant"):
        table.add_column(name, no_wrap=True)
    for name in ("R@1", "95 %", *(title for title, _ in _COLUMNS[1:])):
        table.add_column(name, justify="right", no_wrap=True)
    for results in all_results:
        model = results["model"]
        for task, variants in results["tasks"].items():
            for variant, metrics in variants.items():
                low, high = results["intervals"][task][variant]["r1"]
                cells = [_number(metrics.get(key)) for _, key in _COLUMNS]
                table.add_row(model, task, variant, cells[0], f"{low:.1f}-{high:.1f}", *cells[1:])
                model = ""
    console = Console(width=None if Console().is_terminal else 120)
    console.print(table)
    for note in dict.fromkeys(note for results in all_results for note in results.get("notes", ())):
        console.print(f"note: {note}", highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
