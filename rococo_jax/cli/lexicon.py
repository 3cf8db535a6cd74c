"""`rococo lexicon`: write concept groups, shipped or recovered from published altered captions, as a file to edit."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo lexicon --out nouns.json
  rococo lexicon --from-annotations rococo/annotations --out recovered.json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write a lexicon of concept groups: the shipped one, or one recovered from published altered captions.

    Attributes:
        from_annotations: folder with same_concept.json, and diff_concept.json and danger.json
        out: output file
    """

    out: Annotated[str, Option("F.json", check=output_file)]
    from_annotations: Annotated[str | None, Option("DIR")] = None


def run(options: Options) -> None:
    from rococo_jax.benchmarks.rococo.annotations import read_annotation_folder
    from rococo_jax.benchmarks.rococo.caption_diff import recover_lexicon
    from rococo_jax.errors import InputError
    from rococo_jax.perturb.text.lexicon import shipped_lexicon
    from rococo_jax.storage import write_json

    if options.from_annotations is None:
        lexicon = shipped_lexicon()
    else:
        variants = read_annotation_folder(options.from_annotations).variants
        if "same_concept" not in variants:
            found = ", ".join(variants) or "no variants"
            raise InputError(options.from_annotations, "annotation folder", found, "same_concept among the variants")
        lexicon = recover_lexicon(variants["same_concept"], variants.get("diff_concept"), variants.get("danger"))
    write_json(options.out, lexicon.to_json())
    print(f"{options.out}: {len(lexicon.nouns)} nouns in {len(lexicon.groups)} concept groups")
