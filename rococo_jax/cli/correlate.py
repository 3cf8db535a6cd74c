"""`rococo correlate`: correlations of metrics over many models."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_folder
from rococo_jax.errors import InputError
from rococo_jax.options import Option

EXAMPLES = """\
  rococo evaluate --models models.txt --data DATA --out out
  rococo correlate out --out correlations
  rococo correlate out --metrics image_to_text/danger/fr1,sugarcrepe/mean/ota,sugarcrepe/mean/blind --out correlations
  rococo correlate openclip_retrieval_results.csv --given "MSCOCO text retr. R@1" --out correlations
  rococo correlate out --facts models.csv --out correlations

models.csv has a column `model` and any facts, such as architecture, data, data_size, loss, fine_tuning or prompts.
Needs five models or more, evaluated on the same data. Writes correlations.html, .md, .svg, .csv and .json into DIR,
and partial.svg with the partial correlations."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Correlate metrics over models: Spearman's rho, also controlling for clean R@1, with intervals and corrected p.

    Attributes:
        results: results.json files, or folders that contain them; or one CSV table with a row per model, whose columns
            --metrics and --given name
        out: folder for the page, the chart, and every pair as CSV and JSON
        metrics: TASK/VARIANT/METRIC, as in results.json (default: the main ones of each kind of task: R@1, FR@1, drop,
            blind, grounding; accuracies; ECE, shape bias; drop and RAS under corruption)
        given: metric to control for in partial correlations (default: image_to_text/clean/r1, if it was measured)
        facts: CSV of facts about the models, with a column `model`: columns of numbers are correlated as well, columns
            of words divide the models into groups, whose means are compared
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    out: Annotated[str, Option("DIR", check=output_folder)]
    metrics: Annotated[tuple[str, ...], Option("A,B")] = ()
    given: Annotated[str | None, Option("A")] = None
    facts: Annotated[str | None, Option("FILE")] = None

    def __post_init__(self):
        if not self.results:
            raise InputError("rococo correlate", "RESULTS", "nothing", "results, or a table of scores")


def run(options: Options) -> None:
    """Write the correlations, and print how many are significant after the correction."""
    from pathlib import Path

    from rococo_jax.studies.correlate import write_correlations

    out = Path(options.out)
    names = options.metrics or None
    study = write_correlations(options.results, out, names, options.given, options.facts)
    significant = sum(pair.plain[4] < 0.05 for pair in study.pairs)
    partials = [pair for pair in study.pairs if pair.partial]
    significant_partials = sum(pair.partial[4] < 0.05 for pair in partials)
    partial = f"; {significant_partials} of {len(partials)} controlling for {study.control.path}" if partials else ""
    print(
        f"{out / 'correlations.html'}: {len(study.models)} models, {len(study.places)} metrics; after Holm's "
        f"correction {significant} of {len(study.pairs)} pairs correlate (p below 0.05){partial}"
    )
