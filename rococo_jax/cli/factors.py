"""`rococo factors`: accuracy on images of a visual factor against accuracy on all, over models."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "Say how robust models are to visual factors (pose, background, ...) beyond what their accuracy foretells."
EXAMPLES = """\
  rococo factors out --task imagenet --factors imagenet_x.jsonl --out factors.html

factors are lines {"file_name": "a.jpg", "pose": 1, "background": 0, ...}, as ImageNet-X has them; a CSV with such
columns will do. A line over models needs five models or more, and 200 images or more of the factor."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="results of models on one classify task")
    add("--factors", required=True, metavar="F", help="which images have which factor: .jsonl, .csv or .tsv")
    add("--task", help="which task (default: the first with classes)")
    add(
        "--out", type=output_file, required=True, metavar="F.html", help="the page; the figures go into .json beside it"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measures, and writes the page and the figures."""
    from rococo_jax.report import page_path
    from rococo_jax.report.factors import write_factors

    page, figures = write_factors(
        arguments.results, arguments.factors, arguments.task, page_path(arguments.out, "--out")
    )
    print(f"{page}: the page; {figures}: the figures")
