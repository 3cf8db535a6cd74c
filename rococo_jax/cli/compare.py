"""`rococo compare`: which of two or more models is better, with intervals and corrected tests."""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.errors import InputError
from rococo_jax.options import Option

if TYPE_CHECKING:  # loads NumPy
    from rococo_jax.report.collection import Group

# Most conditions that a message names.
_FEW = 4

EXAMPLES = """\
  rococo compare out/base out/finetuned
  rococo compare out --reference clip-b32 --margin 1
  rococo compare out --metrics r5,fr1 --json
  rococo compare out > comparison.md
  rococo compare out --format latex > comparison.tex

The models must have been evaluated on the same data under the same conditions. The reference is the first model, or
--reference. In a file or a pipe the table is Markdown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compare models with a reference: difference, interval, corrected p, detectable effect and a verdict.

    Attributes:
        results: results.json files, or folders that contain them
        reference: the model to compare the others with (default: the first result)
        metrics: names of metrics to compare instead of the primary ones (the headline, and R@1, FR@1, grounding and
            blind of altered variants), such as r5 or fr1; they are corrected together
        margin: differences smaller than this many points do not matter; "equivalent" where that is shown
        family: which primary differences are corrected together: those of each task, or all
        json: print the rows as JSON
        format: table (Markdown in a file or a pipe) or latex, which needs the package booktabs
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    reference: Annotated[str | None, Option("NAME")] = None
    metrics: Annotated[tuple[str, ...], Option("A,B")] = ()
    margin: Annotated[float | None, Option("POINTS")] = None
    family: Literal["task", "all"] = "task"
    json: bool = False
    format: Literal["table", "latex"] = "table"

    def __post_init__(self):
        if self.json and self.format != "table":
            raise InputError("rococo compare", "--json", f"also --format {self.format}", "one of the two")
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            raise InputError("rococo compare", "--margin", self.margin, "a number of points above 0")


def run(options: Options) -> None:
    import json

    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.comparison import compare_groups
    from rococo_jax.report.difference_table import difference_table
    from rococo_jax.report.latex import latex_table
    from rococo_jax.report.left_out import left_out_lines, left_out_metrics
    from rococo_jax.report.markdown import escaped
    from rococo_jax.report.verdicts import print_verdicts, verdict_rows

    groups = group_by_fingerprint(load_results(options.results))
    models = [run.label for group in groups for run in group.runs]
    if max((len(group.runs) for group in groups), default=0) < 2:
        fields = ", ".join(dict.fromkeys(field for group in groups for field in _fields(group)))
        conditions = f"{len(models)} models under {len(groups)} different conditions ({fields})"
        conditions = conditions if len(models) > 1 else "one model"
        expected = "at least two models that were evaluated on the same data with the same protocol"
        raise InputError(", ".join(options.results), "models", conditions if models else "none", expected)
    try:
        comparisons = compare_groups(
            groups, options.reference, options.metrics, margin=options.margin, family=options.family
        )
    except InputError as error:
        source = f"--{error.source}" if error.source in ("reference", "metrics", "margin") else error.source
        raise InputError(source, error.field, error.found, error.wanted) from None
    rows = verdict_rows(comparisons)
    left_out = [*_other_conditions(groups), *left_out_lines(groups, comparisons)]
    metrics = left_out_metrics(options.metrics, rows) if comparisons else []
    if not rows and metrics:
        expected = "metrics that are counted for each query or item, such as r1 or fr1"
        raise InputError("--metrics", "name", "; ".join(metrics), expected)
    left_out += metrics
    if not rows:
        expected = "results of `rococo evaluate` on the same benchmark, with their per_query.parquet"
        raise InputError(", ".join(options.results), "models", "; ".join(left_out), expected)
    for line in left_out:
        print(f"rococo: {line}", file=sys.stderr)
    if options.json:
        print(json.dumps([row.as_json() for row in rows], indent=2, ensure_ascii=False))
        return
    if options.format == "latex":
        print(latex_table(difference_table(comparisons, options.margin)), end="")
        return
    hint = "" if options.margin else "--margin POINTS also tests whether a difference is too small to matter."
    print_verdicts(comparisons, options.margin, hint)
    if not sys.stdout.isatty():
        # The Markdown in a file or a pipe also names what it does not contain.
        for line in left_out:
            print(f"- {escaped(line)}")


def _other_conditions(groups: "Sequence[Group]") -> Iterator[str]:
    """Yield a line for the results of each further group: what is not comparable with the first, and why."""
    first = groups[0].runs[0].path.parent
    for group in groups[1:]:
        folders = ", ".join(str(run.path.parent) for run in group.runs)
        elsewhere = {run.path for run in groups[0].runs} & {run.path for run in group.runs}
        tasks = f"{', '.join(dict.fromkeys(task for run in group.runs for task in run.tasks))}: " if elsewhere else ""
        yield f"{folders}: {tasks}not compared with the first results: {', '.join(_fields(group))} differ from {first}"


def _fields(group: "Group") -> list[str]:
    """Return the first conditions in which results differ from the first group; lists of images come first."""
    fields = [field for field, _, _ in group.differences]
    return sorted(fields, key=lambda field: not field.endswith(".only"))[:_FEW]
