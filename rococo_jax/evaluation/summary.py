"""The tables that a command prints: one line a model, task and variant, one table for each kind of task.

In a terminal a table that is too wide goes on in further blocks below; figures are never cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rococo_jax.metrics import METRICS, metric_of
from rococo_jax.metrics.published import compare_with_published

if TYPE_CHECKING:  # takes part of the time of every start
    from rich.console import Console
    from rich.table import Table

# Metrics that a terminal has room for, the first of a task with its interval.
_SHOWN = (
    *("r1", "r5", "r10", "fr1", "group_score", "text_score", "image_score", "itt", "ota", "ata", "tot", "brittleness"),
    *("top1", "shape_bias", "per_class", "ece", "ece_scaled", "auroc_mcm", "fpr95_mcm"),
    *("negative_on_top", "ties", "drop"),
)
_NAMES = ("model", "task", "variant")
# Characters of a name: the first of these limits that leaves room for the figures.
_LIMITS = (200, 40, 32, 26, 22, 18, 15, 12, 10)
# Columns of figures that a block should have at least.
_LEAST = 3
# Columns of a file, which has no width.
_WHOLE = 10_000


def print_summary(all_results: Iterable[Mapping[str, Any]], *, wide: bool = False) -> None:
    """Prints the main metrics of every task and variant to standard output.

    Args:
        wide: do not fit the tables to the terminal. A file or a pipe gets whole lines anyway.
    """
    from rich.console import Console

    all_results = list(all_results)
    terminal = Console()
    console = terminal if terminal.is_terminal and not wide else Console(width=_WHOLE)
    for kind in dict.fromkeys(kind for results in all_results for kind in results["kinds"].values()):
        names, figures = _cells(all_results, kind)
        for table in _blocks(console, names, figures):
            console.print(table, overflow="ignore", crop=False)
    for note in dict.fromkeys(note for results in all_results for note in results.get("notes", ())):
        console.print(f"note: {note}", highlight=False, markup=False)
    for results in all_results:
        for line in compare_with_published(results):
            console.print(f"{results['model']}, {line}", highlight=False, markup=False)


def _cells(
    all_results: Sequence[Mapping[str, Any]], kind: str
) -> tuple[list[tuple[str, str, str]], dict[str, list[str]]]:
    """Model, task and variant of each row, and the columns of figures by their title."""
    shown = _metrics_of(all_results, kind)
    names: list[tuple[str, str, str]] = []
    columns: list[list[str]] = [[] for _ in shown]
    intervals: list[str] = []
    for results in all_results:
        for task in (task for task in results["tasks"] if results["kinds"].get(task) == kind):
            for variant, metrics in results["tasks"][task].items():
                names.append((results["model"], task, variant))
                for column, name in zip(columns, shown, strict=True):
                    column.append(_number(metrics.get(name)))
                interval = results["intervals"].get(task, {}).get(variant, {}).get(shown[0]) if shown else None
                intervals.append(f"{interval[0]:.1f}-{interval[1]:.1f}" if interval else "")
    figures = [(metric_of(name).label, column) for name, column in zip(shown, columns, strict=True)]
    return names, dict([*figures[:1], ("95 %", intervals), *figures[1:]])


def _blocks(console: "Console", names: Sequence[tuple[str, ...]], figures: Mapping[str, list[str]]) -> list["Table"]:
    """Tables with all names and some of the columns each, no wider than the console where that can be."""
    titles = list(figures)
    for limit in _LIMITS:
        columns = [shortened(column, limit) for column in zip(*names, strict=True)]
        if _width(console, _table(columns, titles[:_LEAST], figures)) <= console.width:
            break
    blocks: list[list[str]] = [[]]
    for title in titles:
        if blocks[-1] and _width(console, _table(columns, [*blocks[-1], title], figures)) > console.width:
            blocks.append([])
        blocks[-1].append(title)
    return [_table(columns, block, figures) for block in blocks]


def _table(names: Sequence[Sequence[str]], titles: Sequence[str], figures: Mapping[str, list[str]]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in _NAMES:
        table.add_column(name, no_wrap=True, overflow="ignore")
    # Padded here: rich justifies nothing that overflow leaves as it is.
    aligned = []
    for title in titles:
        width = max(map(len, (title, *figures[title])))
        table.add_column(title.rjust(width), no_wrap=True, overflow="ignore")
        aligned.append([figure.rjust(width) for figure in figures[title]])
    before = None
    for row, (model, task, variant) in enumerate(zip(*names, strict=True)):
        cells = ["" if model == before else model, task, variant, *(column[row] for column in aligned)]
        table.add_row(*(_literal(cell) for cell in cells))
        before = model
    return table


def _literal(cell: str) -> Any:
    """The cell as it is; rich reads brackets in a string as markup."""
    from rich.text import Text

    return Text(cell)


def _width(console: "Console", table: "Table") -> int:
    """Width of the table with nothing cut."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(width=_WHOLE), table).maximum


def shortened(names: Sequence[str], limit: int) -> list[str]:
    """Names of at most `limit` characters; of longer ones the middle is left out.

    Different names stay different: the cut moves where it would make two alike, and where no cut tells them apart they
    are numbered.

    >>> shortened(["laion2b_s34b_b79k", "laion2b_s32b_b82k"], 12)
    ['laion2b…b79k', 'laion2b…b82k']
    """
    different = list(dict.fromkeys(names))
    usual = (limit - 1) * 2 // 5
    for tail in sorted(range(1, limit - 1), key=lambda tail: abs(tail - usual)):
        short = {
            name: name if len(name) <= limit else f"{name[: limit - 1 - tail]}…{name[-tail:]}" for name in different
        }
        if len(set(short.values())) == len(different):
            return [short[name] for name in names]
    digits = len(str(len(different)))
    numbered = {
        name: name if len(name) <= limit else f"{name[: limit - 1 - digits]}…{place:0{digits}}"
        for place, name in enumerate(different, 1)
    }
    return [numbered[name] for name in names]


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
