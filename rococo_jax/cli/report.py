"""`rococo report`: one page, one CSV and one Markdown file from results."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "Write one self-contained page (leaderboard, differences, charts, examples), a CSV and a Markdown file."
EXAMPLES = """\
  rococo report results/ --out report.html
  rococo report results/clip-b32 results/siglip-b16/results.json --out comparison.html
  rococo report results/ --out report.html --reference clip-b32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", metavar="RESULTS", help="results.json files, or folders that contain them"
    )
    parser.add_argument(
        "--out", type=output_file, required=True, metavar="F.html", help="the page; .csv, .md and .tex go beside it"
    )
    parser.add_argument(
        "--reference", metavar="NAME", help="the model to compare the others with (default: the best of each task)"
    )
    parser.add_argument(
        "--csv-long", action="store_true", help="also one row a metric, for pandas: F_long.csv, and F_long.json"
    )


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.errors import InputError
    from rococo_jax.report import page_path, write_report

    page_path(arguments.out, "--out")
    try:
        page, table = write_report(arguments.results, arguments.out, arguments.reference, arguments.csv_long)
    except InputError as error:
        source = "--reference" if error.source == "reference" else error.source
        raise InputError(source, error.field, error.found, error.wanted) from None
    print(f"{page}: the page; {table}: the same figures as CSV; {page.with_suffix('.md')}, .tex: as Markdown and LaTeX")
