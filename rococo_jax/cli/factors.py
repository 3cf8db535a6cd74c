"""`rococo factors`: accuracy on images of a visual factor against accuracy on all, over models."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo factors out --task imagenet --factors imagenet_x.jsonl --out factors.html

factors are lines {"file_name": "a.jpg", "pose": 1, "background": 0, ...}, as ImageNet-X has them; a CSV with such
columns will do. Columns with other values than 0 and 1 are no factors. A line over models needs five models or
more, and 200 images or more of the factor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Say how robust models are to visual factors (pose, background, ...) beyond what their accuracy foretells.

    Attributes:
        results: results of models on one classify task
        factors: which images have which factor: .jsonl, .csv or .tsv
        task: which task (default: the first with classes)
        out: the page; the figures go into .json beside it
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    factors: Annotated[str, Option("F")]
    out: Annotated[str, Option("F.html", check=output_file)]
    task: str | None = None


def run(options: Options) -> None:
    """Measures, and writes the page and the figures."""
    from rococo_jax.report import page_path
    from rococo_jax.studies.factors import write_factors

    page, figures = write_factors(options.results, options.factors, options.task, page_path(options.out, "--out"))
    print(f"{page}: the page; {figures}: the figures")
