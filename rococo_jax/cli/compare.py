"""`rococo compare`: which of two or more models is better, with intervals and corrected tests."""

import dataclasses
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.options import Option

if TYPE_CHECKING:  # loads NumPy
    from pathlib import Path

    from rococo_jax.report.collection import Group
    from rococo_jax.report.comparison import Comparisons
    from rococo_jax.report.difference import Difference

# Most conditions that a message names.
_FEW = 4

EXAMPLES = """\
  rococo compare out/base out/finetuned
  rococo compare out --reference clip-b32 --margin 1
  rococo compare out --metrics r5,fr1 --json
  rococo compare out --all > comparison.md
  rococo compare out --format latex > comparison.tex
  rococo compare out --cite > papers.bib
  rococo compare out/tonight --baseline baseline --fail-on worse --metrics r1,fr1

The models must have been evaluated on the same data under the same conditions. The reference is the first model, or
--reference or --baseline. With --all or --metrics every primary difference is a row of a table, which is Markdown in a
file or a pipe. With --fail-on the exit code is 3 if the check fails, 0 if it passes, and 2 if a model cannot be
compared."""
# Verdicts that fail a check.
_FAILING = {"worse": ("worse",), "undecided": ("worse", "undecided", "at chance"), "text-bias": ("text bias",)}
_FAILED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compare models with a reference: difference, interval, corrected p, detectable effect and a verdict.

    Attributes:
        results: results.json files, or folders that contain them
        reference: the model to compare the others with (default: the first result)
        baseline: results of the model to compare the others with: a results.json or its folder, also one that another
            version of this package wrote
        metrics: names of metrics to compare instead of the primary ones (the headline, and R@1, FR@1, grounding and
            blind of altered variants), such as r5 or fr1; they are corrected together
        margin: differences smaller than this many points do not matter; "equivalent" where that is shown
        family: which primary differences are corrected together: those of each task, or all (default: task, and all
            with --fail-on, which is one decision)
        fail_on: exit with 3 if a primary difference has such a verdict: worse; undecided (or worse: a loss is not
            excluded); text-bias; several with commas
        all: print every primary difference with its interval, corrected p and detectable effect
        json: print the rows as JSON
        format: table (Markdown in a file or a pipe) or latex, which needs the package booktabs
        cite: print BibTeX of the benchmarks that the results are of, and of this software, instead of the comparison
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    reference: Annotated[str | None, Option("NAME")] = None
    metrics: Annotated[tuple[str, ...], Option("A,B")] = ()
    margin: Annotated[float | None, Option("POINTS")] = None
    family: Literal["task", "all"] | None = None
    fail_on: Annotated[tuple[str, ...], Option("VERDICTS")] = ()
    baseline: Annotated[str | None, Option("RESULTS", excludes=("reference",))] = None
    all: bool = False
    json: Annotated[bool, Option(excludes=("format=latex",))] = False
    format: Literal["table", "latex"] = "table"
    cite: Annotated[bool, Option(excludes=("json", "format", "all", "metrics", "margin", "fail_on"))] = False

    def __post_init__(self):
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            raise InputError("rococo compare", "--margin", self.margin, "a number of points above 0")
        for name in self.fail_on:
            if name not in _FAILING:
                raise unknown_name("rococo compare", "--fail-on", name, _FAILING)


def run(options: Options) -> int:
    """Print the differences. Returns 3 if one has a verdict of `--fail-on`."""
    import json

    from rococo_jax.benchmarks.citations import bibtex_of
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.comparison import compare_groups, left_out_lines, left_out_metrics
    from rococo_jax.report.latex import latex_table
    from rococo_jax.report.markdown import escaped
    from rococo_jax.report.overview import print_overview
    from rococo_jax.report.verdicts import (
        equivalence_phrase,
        margin_lines,
        print_verdicts,
        table_for_papers,
        verdict_rows,
    )

    baseline = () if options.baseline is None else _results_of_one_model(options.baseline)
    # The reference is the first model that is named.
    groups = group_by_fingerprint(load_results([*baseline, *options.results]))
    if options.cite:
        print(bibtex_of(name for group in groups for name in group.benchmarks))
        return 0
    models = [run.label for group in groups for run in group.runs]
    if max((len(group.runs) for group in groups), default=0) < 2:
        fields = ", ".join(dict.fromkeys(field for group in groups for field in _fields(group)))
        conditions = f"{len(models)} models under {len(groups)} different conditions ({fields})"
        conditions = conditions if len(models) > 1 else "one model"
        expected = "at least two models that were evaluated on the same data with the same protocol"
        raise InputError(", ".join(options.results), "models", conditions if models else "none", expected)
    family = options.family or ("all" if options.fail_on else "task")
    comparisons = compare_groups(groups, options.reference, options.metrics, margin=options.margin, family=family)
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
    elif options.format == "latex":
        print(latex_table(table_for_papers(comparisons, options.margin)), end="")
    elif options.all or options.metrics:
        hint = "" if options.margin else "--margin POINTS also tests whether a difference is too small to matter."
        print_verdicts(comparisons, options.margin, hint)
        _print_left_out([f"- {escaped(line)}" for line in left_out])
    else:
        print_overview(groups, comparisons)
        if options.margin is not None:
            print(equivalence_phrase(options.margin), *margin_lines(comparisons, options.margin), sep="\n")
        _print_left_out(left_out)
        chosen = {"--reference": options.reference, "--baseline": options.baseline}
        words = [*options.results, *(word for pair in chosen.items() if pair[1] is not None for word in pair), "--all"]
        print(f"every difference: rococo compare {shlex.join(words)}")
    return _exit_code(options, groups, comparisons, baseline)


def _print_left_out(lines: Sequence[str]) -> None:
    """Print what was not compared, in a file or a pipe, which lacks the lines on standard error."""
    if not sys.stdout.isatty():
        for line in lines:
            print(line)


def _results_of_one_model(source: str) -> "list[Path]":
    """Return the results files under a path. Raises InputError: there are none, or they are of several models."""
    from rococo_jax.errors import object_of
    from rococo_jax.report.collection import load_results
    from rococo_jax.storage import hash_json

    results = load_results([source])
    models = {hash_json([each["model"], object_of(each["fingerprint"].get("model"))]): path for path, each in results}
    if len(models) > 1:
        folders = ", ".join(str(path.parent) for path in models.values())
        raise InputError("--baseline", "models", f"{len(models)} in {source}: {folders}", "the results of one")
    return [path for path, _ in results]


def _exit_code(
    options: Options, groups: "Sequence[Group]", comparisons: "Comparisons", baseline: "Sequence[Path]"
) -> int:
    """Return 3, and print why, if a difference from the reference has a verdict of `--fail-on`; else 0.

    Raises InputError: a model has no difference from the reference, so there is nothing to decide on.
    """
    if not options.fail_on:
        return 0
    against = [each for each in comparisons.values() if not baseline or each.reference.path in baseline]
    rows = [row for each in against for row in each.primary.values()]
    compared = {*baseline, *(each.reference.path for each in against)}
    for each in against:
        models = {model for model, _, _ in each.primary}
        compared |= {run.path for run in each.runs if run.label in models}
    for run in (run for group in groups for run in group.runs):
        if run.path not in compared:
            expected = "at least one primary difference from the reference to decide on"
            raise InputError(run.path.parent, "differences", f"none of {run.label}", expected)
    verdicts = {verdict for name in options.fail_on for verdict in _FAILING[name]}
    failing = [row for row in rows if row.verdict in verdicts]
    if not failing:
        return 0
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    print(f"rococo compare: {_sentence(failing[0])}{more}", file=sys.stderr)
    return _FAILED


def _sentence(row: "Difference") -> str:
    """Return the verdict of a difference with its numbers, in one line."""
    from rococo_jax.metrics import metric_of
    from rococo_jax.report.verdicts import COLUMNS, cells_of

    texts = dict(zip(COLUMNS, cells_of(row), strict=True))
    place = f"{texts['Task']}, {texts['Variant']}, {metric_of(row.metric).label}"
    numbers = f"{texts['Value']}, reference {texts['Reference']}, {texts['Difference']} ({row.bounds}), p {texts['p']}"
    return f"{row.verdict}: {row.model} against {row.reference}: {place}: {numbers}"


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
