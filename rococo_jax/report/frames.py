"""Results as a pandas table, and as LaTeX tables for a paper."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Group, group_by_fingerprint, load_results, tasks_of, variants_of
from rococo_jax.report.exports import NUMBERS, long_rows
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.tables import has_any
from rococo_jax.report.vocabulary import percent, printable, task_label, variant_label
from rococo_jax.storage import write_text

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def read_results(*sources: str | Path) -> Any:
    """Results as a long `pandas.DataFrame`: one row a model, task, variant and metric.

    Columns: `section` (rows of one section are comparable), `model`, `protocol`, `task`, `variant`, `metric`, `value`,
    `low`, `high` (bounds of the 95 % interval, NaN where there is none), `path`.

    Args:
        sources: results files, or folders that contain them.

    Raises:
        InputError: no results, or a file that is not what it should be; pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise InputError("read_results", "library", "no pandas", "pip install 'rococo-jax[pandas]'") from None
    groups = group_by_fingerprint(load_results(sources))
    rows = [row | {"path": str(run.path)} for run, row in long_rows(groups)]
    if not rows:
        raise InputError("read_results", "sources", "none", "at least one results file or folder")
    columns = ["section", "model", "protocol", "task", "variant", "metric", *NUMBERS, "path"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(NUMBERS, float))


def write_latex(path: Path, groups: Sequence[Group]) -> None:
    """Writes a `tabular` (package booktabs) for every task of every group, by rename."""
    write_text(path, "\n".join(line for group in groups for line in latex_lines(group)) + "\n")


def latex_lines(group: Group) -> Iterator[str]:
    """The tables of a group, line by line: models down, the main figures of each variant, best of a column bold."""
    for task in tasks_of(group.runs):
        runs, section = ordered(group.runs, task), section_of(group.runs, task)
        variants = variants_of(runs, task)
        names = [name for name in section.figures if has_any(runs, task, variants, name)]
        yield f"% {task_label(task)}, protocol {group.runs[0].results['protocol']}; percentages"
        yield rf"\begin{{tabular}}{{ll{'r' * len(names)}}}"
        yield r"\toprule"
        yield " & ".join(["Model", "Variant", *(_escaped(metric_of(name).label) for name in names)]) + r" \\"
        yield r"\midrule"
        for variant in variants:
            column = {name: [run.figure(task, variant, name).value for run in runs] for name in names}
            for place, run in enumerate(runs):
                cells = [_cell(name, column[name], place) for name in names]
                if any(cells):
                    yield " & ".join([_escaped(run.label), _escaped(variant_label(variant)), *cells]) + r" \\"
        yield r"\bottomrule"
        yield r"\end{tabular}"
        yield ""


def _cell(name: str, column: Sequence[float | None], place: int) -> str:
    value, better = column[place], metric_of(name).better
    if value is None:
        return ""
    there = [each for each in column if each is not None]
    best = {"higher": max, "lower": min}.get(better or "")
    return rf"\textbf{{{percent(value)}}}" if best and len(there) > 1 and value == best(there) else percent(value)


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in printable(text))
