"""`rococo alter-captions`: replace one noun of every caption, and write a benchmark annotation."""

import argparse
from collections.abc import Mapping

from rococo_jax.cli.influence import add_influence_arguments
from rococo_jax.cli.inputs import add_captions_arguments, read_captions_of
from rococo_jax.cli.outputs import output_file_or_folder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import OPERATIONS, VARIANTS

HELP = "Replace one noun of every caption, and write the altered captions as a benchmark annotation."
EXAMPLES = """\
  rococo alter-captions models/clip-b32 --captions captions.json --variant same_concept --out same_concept.json
  rococo alter-captions models/clip-b32 --captions mine.csv --variant all --out annotations
  rococo alter-captions models/clip-b32 --captions captions.json --variant danger --select highest --out danger.json
  rococo alter-captions models/clip-b32 --captions captions.json --variant rand_voca --influence table.jsonl \\
      --lexicon nouns.json --seed 1 --out rand_voca.json
  rococo alter-captions --balance --reference captions_train.json --captions captions_test.json \\
      --variant same_concept --operation replace --out balanced/same_concept.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="model directory, Hugging Face folder, or hub name; none to --balance"
    )
    add_captions_arguments(parser)
    parser.add_argument("--variant", required=True, choices=(*VARIANTS, "all"), help="what a noun is replaced by; "
                        "all: every one, as --out/VARIANT.json")  # fmt: skip
    parser.add_argument("--out", type=output_file_or_folder, required=True, metavar="F.json", help="where the "
                        "annotation goes; for all variants a folder")  # fmt: skip
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
    parser.add_argument("--any-article", action="store_true", help="let 'a' stand before a vowel: 'a infant'; the "
                        "published captions (--style paper) do")  # fmt: skip
    parser.add_argument(
        "--balance",
        action="store_true",
        help="n-gram models cannot tell altered captions; adds rewordings that stay true",
    )
    parser.add_argument(
        "--operation", choices=OPERATIONS, help="of --balance: what is done to a caption (default: replace)"
    )
    parser.add_argument(
        "--reference", metavar="FILE", help="of --balance: captions that say what is usual (default: --captions)"
    )
    add_influence_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.balance:
        _balance(arguments)
        return
    for name in ("operation", "reference"):
        if getattr(arguments, name):
            raise InputError("arguments", f"--{name}", getattr(arguments, name), "--balance beside it")
    if not arguments.model:
        raise InputError("arguments", "MODEL", "none", "a model that chooses the words, or --balance")

    from rococo_jax.benchmarks.rococo.generate import alter_captions
    from rococo_jax.encoders import load_model
    from rococo_jax.perturb.text.influence_table import influences_from_table, read_influence_table
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.progress import progress
    from rococo_jax.runtime import enable_compilation_cache

    enable_compilation_cache()
    images = read_captions_of(arguments)
    lexicon = open_lexicon(arguments.lexicon or "")
    influences = None
    if arguments.influence and arguments.select != "random":
        influences = influences_from_table(read_influence_table(arguments.influence), images, arguments.influence)
    encoder = load_model(arguments.model, dtype=arguments.dtype)
    choices = {name: getattr(arguments, name) for name in ("seed", "select", "style", "method", "any_number")}
    choices["fit_article"] = arguments.style != "paper" and not arguments.any_article
    total = sum(len(image.captions) for image in images)
    with progress("influence", total, "captions") as advance:
        made = alter_captions(
            encoder,
            images,
            _variants(arguments),
            lexicon=lexicon,
            influences=influences,
            on_progress=advance,
            **choices,
        )
    made_by = {"model": encoder.describe(), "lexicon": {"name": lexicon.name, "sha256": lexicon.hash()}, **choices}
    for altered in made.values():
        _write(arguments, altered, made_by)


def _balance(arguments: argparse.Namespace) -> None:
    from rococo_jax.benchmarks.rococo.balanced import balance_captions
    from rococo_jax.data.captioned_images import read_captions
    from rococo_jax.perturb.text.balance import balanced_alterer
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.perturb.text.word_exchange import ReferenceCaptions
    from rococo_jax.progress import progress

    defaults = {"model": None, "influence": None, "select": "lowest", "style": "plain", "any_number": False}
    defaults["any_article"] = False
    for name, default in defaults.items():
        if getattr(arguments, name) != default:
            found = f"{getattr(arguments, name)!r} with --balance"
            raise InputError("arguments", name, found, "captions alone decide a balanced set")
    images = read_captions_of(arguments)
    lexicon = open_lexicon(arguments.lexicon or "")
    reference = ReferenceCaptions(read_captions(arguments.reference) if arguments.reference else images, lexicon)
    operation = arguments.operation or "replace"
    total = sum(len(image.captions) for image in images)
    made_by = {"balanced": True, "operation": operation, "seed": arguments.seed, "reference": reference.hash()}
    made_by["lexicon"] = {"name": lexicon.name, "sha256": lexicon.hash()}
    for variant in _variants(arguments):
        alterer = balanced_alterer(variant, reference, operation, arguments.seed)
        with progress(f"altering ({variant})", total, "captions") as advance:
            altered = balance_captions(images, alterer, advance)
        _write(arguments, altered, made_by)


def _variants(arguments: argparse.Namespace) -> tuple[str, ...]:
    return VARIANTS if arguments.variant == "all" else (arguments.variant,)


def _write(arguments: argparse.Namespace, altered, made_by: Mapping[str, object]) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.rococo.generate import write_altered

    out = Path(arguments.out)
    out = out / f"{altered.variant}.json" if arguments.variant == "all" else out
    write_altered(out, altered, made_by)
    total = sum(len(item.originals) for item in altered.items)
    left = sum(altered.unaltered.values())
    reasons = "; ".join(f"{count}: {reason}" for reason, count in altered.unaltered.items())
    print(f"{out}: {total - left} of {total} captions altered" + (f" ({reasons})" if left else ""))
