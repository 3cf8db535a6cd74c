"""`rococo report`: one page, one CSV and one Markdown file from results."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.explore import write
from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo report results/ --out report.html
  rococo report results/clip-b32 results/siglip-b16/results.json --out comparison.html
  rococo report results/ --out report.html --reference clip-b32
  rococo report results/ --out report.html --concepts
  rococo report results/ --out report.html --explore
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write one self-contained page (leaderboard, differences, charts, examples), a CSV and a Markdown file.

    Attributes:
        results: results.json files, or folders that contain them
        out: the page to write; .csv (one row per metric, for pandas) and .md are written beside it
        reference: model to compare the others with (default: the first result)
        explore: also write F.explore.html, linked from the page: every item with all answers, as `rococo explore`
        concepts: also write F.concepts.csv: FR@1 and preference by the word that was replaced and by its concept group
        lexicon: lexicon of the groups: demo, or a file (default: the package's own)
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    out: Annotated[str, Option("F.html", check=output_file)]
    reference: Annotated[str | None, Option("NAME")] = None
    explore: bool = False
    concepts: bool = False
    lexicon: Annotated[str, Option("FILE", needs=("concepts", "explore"))] = ""


def run(options: Options) -> None:
    from rococo_jax.report import page_path, write_compared
    from rococo_jax.report.collection import group_by_fingerprint, load_results, runs_of
    from rococo_jax.report.comparison import compare_groups

    page = page_path(options.out)
    results = load_results(options.results)
    if options.concepts:
        from rococo_jax.perturb.text.lexicon import open_lexicon
        from rococo_jax.report.concepts import write_concepts

        concepts = page.with_suffix(".concepts.csv")
        write_concepts(concepts, runs_of(results), open_lexicon(options.lexicon))
        print(f"{concepts}: by concept group and replaced word")
    groups = group_by_fingerprint(results)
    comparisons = compare_groups(groups, options.reference)
    explorer = page.with_suffix(".explore.html") if options.explore else None
    if explorer is not None:
        write(groups, explorer, options.lexicon, {})
    page, table = write_compared(groups, comparisons, page, explorer=explorer)
    print(f"{page}: the page; {table}: the same numbers as CSV; {page.with_suffix('.md')}: as Markdown")
