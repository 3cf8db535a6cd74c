"""`rococo history`: how results change from one evaluation to the next."""

import dataclasses
from pathlib import Path
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo history nightly/*
  rococo history nightly/* --chart history.svg --badge badge.svg
  rococo history nightly/* --numbers image_to_text/clean/r1,image_to_text/danger/fr1

The date is that of the last evaluation in journal.jsonl, in the folder of the results or above it; without a journal,
that of the last change of results.json."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """List results by date, one line each, and draw them as a chart or a badge (SVG).

    Attributes:
        results: results.json files, or folders that contain them
        numbers: the numbers to show (default: the headline of each task)
        chart: draw the numbers over time
        badge: draw the latest value of the first number of one model, for a README
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    numbers: Annotated[tuple[str, ...], Option("TASK/VARIANT/METRIC,...")] = ()
    chart: Annotated[str | None, Option("F.svg", check=output_file)] = None
    badge: Annotated[str | None, Option("F.svg", check=output_file)] = None


def run(options: Options) -> None:
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.history import badge, evaluations_of, history_chart, history_table, numbers_of
    from rococo_jax.report.markdown import print_table
    from rococo_jax.storage import write_text

    evaluations = evaluations_of(group_by_fingerprint(load_results(options.results)))
    numbers = numbers_of(evaluations, options.numbers)
    drawings = {}
    if options.chart is not None:
        drawings[options.chart] = history_chart(evaluations, numbers)
    if options.badge is not None:
        drawings[options.badge] = badge(evaluations, numbers[0])
    print_table(*history_table(evaluations, numbers))
    for path, drawing in drawings.items():
        print(write_text(Path(path), drawing))
