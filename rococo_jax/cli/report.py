"""`rococo report`: one page, one CSV and one Markdown file from results."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo report results/ --out report.html
  rococo report results/clip-b32 results/siglip-b16/results.json --out comparison.html
  rococo report results/ --out report.html --reference clip-b32
  rococo report results/ --out report.html --concepts
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write one self-contained page (leaderboard, differences, charts, examples), a CSV and a Markdown file.

    Attributes:
        results: results.json files, or folders that contain them
        out: the page to write; .csv (one row per metric, for pandas) and .md are written beside it
        reference: model to compare the others with (default: the first result)
        concepts: also write F.concepts.csv: FR@1 and preference by the word that was replaced and by its concept group
        lexicon: with --concepts: lexicon of the groups: demo, or a file (default: the one that comes with the package)
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    out: Annotated[str, Option("F.html", check=output_file)]
    reference: Annotated[str | None, Option("NAME")] = None
    concepts: bool = False
    lexicon: Annotated[str, Option("FILE")] = ""


def run(options: Options) -> None:
    from rococo_jax.errors import InputError
    from rococo_jax.report import page_path, write_compared
    from rococo_jax.report.collection import group_by_fingerprint, load_results, runs_of
    from rococo_jax.report.comparison import compare_groups

    page = page_path(options.out, "--out")
    results = load_results(options.results)
    if options.concepts:
        from rococo_jax.perturb.text.lexicon import open_lexicon
        from rococo_jax.report.concepts import write_concepts

        concepts = page.with_suffix(".concepts.csv")
        write_concepts(concepts, runs_of(results), open_lexicon(options.lexicon))
        print(f"{concepts}: by concept group and replaced word")
    groups = group_by_fingerprint(results)
    try:
        comparisons = compare_groups(groups, options.reference)
    except InputError as error:
        source = "--reference" if error.source == "reference" else error.source
        raise InputError(source, error.field, error.found, error.wanted) from None
    page, table = write_compared(groups, comparisons, page)
    print(f"{page}: the page; {table}: the same numbers as CSV; {page.with_suffix('.md')}: as Markdown")
