"""`rococo explore`: one page with every item of every model."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

if TYPE_CHECKING:  # loads NumPy
    from rococo_jax.report.collection import Group

EXAMPLES = """\
  rococo explore out --out explore.html
  rococo explore out/clip-b32 out/siglip-b16 --out explore.html
  rococo explore out --out explore.html --images rococo=DATA/coco/images

Open the page from the file system. Filter by benchmark, variant, concept, replaced word and each model's answer, such
as wrong in one model and correct in another; its address contains the filters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write one page with every item of every model, its picture and all answers, to filter in a browser.

    Attributes:
        results: results.json files, or folders that contain them
        out: the page to write; pictures are written into F_pictures beside it
        images: folder of a benchmark's images (default: the one that it was evaluated with, if it is there)
        lexicon: lexicon of the concepts of replaced words: demo, or a file (default: the one that comes with the
            package)
    """

    results: Annotated[tuple[str, ...], Option("RESULTS", positional=True)]
    out: Annotated[str, Option("F.html", check=output_file)]
    images: Annotated[tuple[tuple[str, str], ...], Option("NAME=DIR")] = ()
    lexicon: Annotated[str, Option("FILE")] = ""


def run(options: Options) -> None:
    """Write the page and its pictures."""
    from rococo_jax.report import page_path
    from rococo_jax.report.collection import group_by_fingerprint, load_results

    page = page_path(options.out)
    write(group_by_fingerprint(load_results(options.results)), page, options.lexicon, dict(options.images))


def write(groups: "Sequence[Group]", page: Path, lexicon: str, folders: Mapping[str, str]) -> None:
    """Write the page of groups of results and its pictures, and print what they contain."""
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.report.explorer import write_explorer

    items, missing = write_explorer(groups, page, open_lexicon(lexicon), folders)
    answers = f"{len(items.answers):,} answers of {len(items.models)} models"
    print(f"{page}: {len(items.words):,} items, {answers}; pictures in {page.stem}_pictures")
    for name, number in missing.items():
        print(
            f"note: {number:,} images of {name} were not found; rococo explore --images {name}=DIR names their folder"
        )
