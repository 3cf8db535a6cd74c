"""`rococo lexicon`: write concept groups, shipped or recovered from published altered captions, as a file to edit."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "Write a lexicon of concept groups: the shipped one, or one recovered from published altered captions."
EXAMPLES = """\
  rococo lexicon --out nouns.json
  rococo lexicon --from-annotations rococo/annotations --out recovered.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-annotations", metavar="DIR", help="folder with same_concept.json, and diff_concept.json and danger.json"
    )
    parser.add_argument("--out", type=output_file, required=True, metavar="F.json", help="output file")


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.benchmarks.rococo.annotations import read_annotation_folder
    from rococo_jax.benchmarks.rococo.caption_diff import recover_lexicon
    from rococo_jax.errors import InputError
    from rococo_jax.perturb.text.lexicon import shipped_lexicon
    from rococo_jax.storage import write_json

    if arguments.from_annotations is None:
        lexicon = shipped_lexicon()
    else:
        variants = read_annotation_folder(arguments.from_annotations).variants
        if "same_concept" not in variants:
            found = ", ".join(variants) or "no variants"
            raise InputError(arguments.from_annotations, "annotation folder", found, "same_concept among the variants")
        lexicon = recover_lexicon(variants["same_concept"], variants.get("diff_concept"), variants.get("danger"))
    write_json(arguments.out, lexicon.to_json())
    print(f"{arguments.out}: {len(lexicon.nouns)} nouns in {len(lexicon.groups)} concept groups")
