"""`rococo alter-captions`: replace one noun of every caption, and write a benchmark annotation."""

import argparse

from rococo_jax.cli.influence import add_influence_arguments
from rococo_jax.perturb.text import VARIANTS

HELP = "Replace one noun of every caption, and write the altered captions as a benchmark annotation."
EXAMPLES = """\
  rococo alter-captions models/clip-b32 --captions captions.json --variant same_concept --out same_concept.json
  rococo alter-captions models/clip-b32 --captions captions.json --variant danger --select highest --out danger.json
  rococo alter-captions models/clip-b32 --captions captions.json --variant rand_voca --influence table.jsonl \\
      --lexicon nouns.json --seed 1 --out rand_voca.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("--captions", required=True, metavar="FILE", help="captions file")
    parser.add_argument("--variant", required=True, choices=VARIANTS, help="what a noun is replaced by")
    parser.add_argument("--out", required=True, metavar="F.json", help="where the annotation goes")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the replacements (default: 0)")
    parser.add_argument(
        "--select", choices=("lowest", "highest", "random"), default="lowest", help="which noun, by influence"
    )
    parser.add_argument("--lexicon", metavar="F", help="concept groups as JSON (default: the shipped ones)")
    parser.add_argument("--influence", metavar="F.jsonl", help="a table of `rococo influence`, instead of computing it")
    parser.add_argument(
        "--style", choices=("plain", "paper"), default="plain", help="paper: the look of the published captions"
    )
    parser.add_argument(
        "--any-number", action="store_true", help="let a plural take a singular's place, and vice versa"
    )
    add_influence_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.benchmarks.rococo.generate import alter_captions, write_altered
    from rococo_jax.data.captions import read_captions
    from rococo_jax.encoders import load_model
    from rococo_jax.perturb.text.influence_table import influences_from_table, read_influence_table
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.progress import progress
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    images = read_captions(arguments.captions)
    lexicon = open_lexicon(arguments.lexicon or "")
    influences = None
    if arguments.influence and arguments.select != "random":
        influences = influences_from_table(read_influence_table(arguments.influence), images, arguments.influence)
    encoder = load_model(arguments.model, dtype=arguments.dtype)
    choices = {name: getattr(arguments, name) for name in ("seed", "select", "style", "method", "any_number")}
    total = sum(len(image.captions) for image in images)
    with progress("influence", total, "captions") as advance:
        altered = alter_captions(
            encoder, images, [arguments.variant], lexicon=lexicon, influences=influences, on_progress=advance, **choices
        )[arguments.variant]
    made_by = {"model": encoder.describe(), "lexicon": {"name": lexicon.name, "sha256": lexicon.hash()}, **choices}
    write_altered(arguments.out, altered, made_by)
    left = sum(altered.unaltered.values())
    reasons = "; ".join(f"{count}: {reason}" for reason, count in altered.unaltered.items())
    print(f"{arguments.out}: {total - left} of {total} captions altered" + (f" ({reasons})" if left else ""))
