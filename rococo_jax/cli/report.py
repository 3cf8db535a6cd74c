"""`rococo report`: one page and one CSV from results."""

import argparse

HELP = "Write one self-contained page (tables, charts, examples) and a CSV from results."
EXAMPLES = """\
  rococo report results/ --out report.html
  rococo report results/clip-b32 results/siglip-b16/results.json --out comparison.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", nargs="+", metavar="RESULTS", help="results.json files, or folders that contain them"
    )
    parser.add_argument("--out", required=True, metavar="F.html", help="the page; the CSV goes beside it")


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.evaluation.report import write_report

    page, table = write_report(arguments.results, arguments.out)
    print(f"{page}: the page; {table}: the same figures as CSV")
