"""`rococo leaderboard`: a row for each model, a column for each benchmark."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo leaderboard out
  rococo leaderboard out --facts models.csv --format latex --out leaderboard.tex
  rococo leaderboard ours/ theirs/ --format csv > leaderboard.csv
  rococo leaderboard out --cite > papers.bib

Columns are the headlines that the benchmarks declare. With three models or more, each value has a 95 % interval of its
rank, and models that share a letter cannot be told apart. models.csv has a column `model` and any facts, such as
parameters, data, link or a reported value; models.json is a list of such objects."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Print one table of all models and benchmarks, with intervals of values and ranks.

    Attributes:
        results: results.json files, or folders that contain them
        format: table (Markdown in a file or a pipe), markdown, latex (needs the package booktabs), csv or json
        facts: CSV or JSON file of facts about the models, with a column `model`, which become columns
        out: file to write (default: print)
        cite: print BibTeX of the benchmarks that the results are of, and of this software, instead of the leaderboard
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    format: Literal["table", "markdown", "latex", "csv", "json"] = "table"
    facts: Annotated[str | None, Option("FILE")] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None
    cite: Annotated[bool, Option(excludes=("format", "facts"))] = False


def run(options: Options) -> None:
    """Print the leaderboard, or write it into a file."""
    import csv
    import io
    import json
    from pathlib import Path

    from rococo_jax.benchmarks.citations import bibtex_of
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.latex import latex_table
    from rococo_jax.report.leaderboard import leaderboard_tables, leaderboards_markdown, print_leaderboards
    from rococo_jax.report.markdown import records_of
    from rococo_jax.storage import write_text

    groups = group_by_fingerprint(load_results(options.results))
    tables = [] if options.cite else leaderboard_tables(groups, options.facts)
    match options.format:
        case _ if options.cite:
            text = bibtex_of(name for group in groups for name in group.benchmarks) + "\n"
        case "table" if options.out is None:
            print_leaderboards(tables)
            return
        case "table" | "markdown":
            text = leaderboards_markdown(tables)
        case "latex":
            text = "\n".join(map(latex_table, tables))
        case "csv":
            rows, output = records_of(tables), io.StringIO()
            csv.writer(output, lineterminator="\n").writerows([list(rows[0]), *(row.values() for row in rows)])
            text = output.getvalue()
        case "json":
            text = json.dumps(records_of(tables), indent=2, ensure_ascii=False) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        write_text(Path(options.out), text)
