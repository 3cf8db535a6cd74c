"""`rococo factors`: accuracy on images with a visual factor against accuracy on all images, over models."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo factors out --task imagenet --factors imagenet_x.jsonl --out factors.html

The factors file has lines {"file_name": "a.jpg", "pose": 1, "background": 0, ...}, as in ImageNet-X, or is a CSV with
such columns. Columns with values other than 0 and 1 are ignored. A regression over models needs five models or more,
and 200 images or more with the factor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Measure robustness to visual factors (pose, background, ...) beyond what overall accuracy predicts.

    Attributes:
        results: results of models on one classification task
        factors: factors of each image, as .jsonl, .csv or .tsv
        task: name of the task (default: the first classification task)
        facts: CSV of facts about the models, with a column `model`: columns of words (architecture, data, loss, ...)
            divide the models into groups, whose effective robustness is compared
        out: the page to write; the numbers are written beside it as .json
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    factors: Annotated[str, Option("F")]
    out: Annotated[str, Option("F.html", check=output_file)]
    task: str | None = None
    facts: Annotated[str | None, Option("FILE")] = None


def run(options: Options) -> None:
    """Write the page and the numbers."""
    from rococo_jax.report import page_path
    from rococo_jax.studies.factors import write_factors

    page, numbers = write_factors(options.results, options.factors, options.task, page_path(options.out), options.facts)
    print(f"{page}: the page; {numbers}: its numbers")
