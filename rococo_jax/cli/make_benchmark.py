"""`rococo make-benchmark`: a benchmark of one's own images and captions, in one command."""

import argparse

from rococo_jax.cli.inputs import add_pair_arguments, read_pairs
from rococo_jax.cli.outputs import output_folder

HELP = "Make a benchmark of your own images and captions: altered captions, choices and a data card."
EXAMPLES = """\
  rococo make-benchmark --images photos --captions photos.csv --out DATA
  rococo make-benchmark --images photos --captions photos.csv --columns image=file,caption=de --name urlaub --out DATA
  rococo make-benchmark --images hf:nlphuji/flickr30k?split=test --model models/clip-b32 --name flickr --out DATA
  rococo make-benchmark --images photos --mixed mix_0.9,patch_0.9 --seeds 1,10 --licence CC-BY-4.0 --out DATA
Then `rococo evaluate MODEL --data DATA --out OUT`. The same command goes on where it was stopped."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--out", type=output_folder, required=True, metavar="DATA", help="the data folder: DATA/NAME")
    parser.add_argument("--name", default="mine", help="of the benchmark, in results as well (default: %(default)s)")
    parser.add_argument(
        "--model", metavar="MODEL", help="whose influence chooses the words, and whose vocabulary rand_voca takes "
        "(default: none; words are drawn, and rand_voca takes nouns of the lexicon)"
    )  # fmt: skip
    parser.add_argument("--select", choices=("lowest", "highest", "random"), help="which noun, by influence (default: "
                        "lowest with --model, else random)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the replacements (default: 0)")
    parser.add_argument("--lexicon", metavar="F", help="concept groups as JSON (default: the shipped ones)")
    parser.add_argument("--licence", default="not stated", metavar="TEXT", help="of your data, for the data card")
    parser.add_argument("--mixed", default="", metavar="A,B", help="also write mixed images with manifests: mix_R, "
                        "patch_R (evaluate needs none: it mixes by itself)")  # fmt: skip
    parser.add_argument("--seeds", default="1", metavar="N,N", help="of --mixed (default: 1)")


def run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from rococo_jax.benchmarks.own import check_name, write_mixed_galleries, write_own
    from rococo_jax.benchmarks.rococo.generate import alter_captions
    from rococo_jax.encoders import load_model
    from rococo_jax.evaluation.inputs import names_in, numbers_in
    from rococo_jax.perturb.text.lexicon import open_lexicon
    from rococo_jax.runtime import enable_compilation_cache

    check_name(arguments.name)
    enable_compilation_cache()
    mixed = [
        (name, seed) for name in names_in(arguments.mixed or None) for seed in numbers_in("--seeds", arguments.seeds)
    ]
    data, lexicon = read_pairs(arguments), open_lexicon(arguments.lexicon or "")
    encoder = None if arguments.model is None else load_model(arguments.model)
    choices = {"seed": arguments.seed, "select": arguments.select or ("random" if encoder is None else "lowest")}
    altered = alter_captions(encoder, data.items, lexicon=lexicon, fit_article=True, **choices)
    folder = Path(arguments.out) / arguments.name
    made_by = {"model": None if encoder is None else encoder.describe(), **choices}
    figures = write_own(folder, data, altered, lexicon, licence=arguments.licence, made_by=made_by)
    write_mixed_galleries(folder, data, mixed)
    variants = ", ".join(f"{name} {each['altered']:,}" for name, each in figures["variants"].items())
    print(
        f"{folder}: {figures['images']:,} images, {figures['captions']:,} captions, "
        f"{figures['lexicon_coverage']:.1%} of them with a noun of the lexicon; altered: {variants}\n"
        f"rococo evaluate MODEL --data {arguments.out} --out OUT"
    )
