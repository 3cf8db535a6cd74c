"""`rococo mix-images`: a gallery in which every image has another one mixed in."""

import argparse

from rococo_jax.cli.inputs import add_pair_arguments, read_pairs
from rococo_jax.cli.outputs import output_folder

HELP = "Mix another image into every image, as the benchmark does or stricter; writes the images and manifest.json."
EXAMPLES = """\
  rococo mix-images --images coco/images --captions captions_test.json --method mix --ratio 0.9 --seed 1 --out mixed/1
  rococo mix-images --images coco/images --captions captions_test.json --method patch --protocol strict --out patched
  rococo mix-images --images coco/images --captions captions_test.json --protocol control --out squashed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser, use="its order decides who meets whom; ", may_miss=False)
    parser.add_argument(
        "--out", type=output_folder, required=True, metavar="DIR", help="images and manifest.json; one folder a run"
    )
    parser.add_argument("--method", choices=("mix", "patch"), default="mix", help="blend or paste a box (default: mix)")
    parser.add_argument(
        "--ratio", type=float, default=0.9, metavar="R", help="share of own content, 0 to 1 (default: 0.9)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="published: 1, 10, 100 (default: 1)")
    parser.add_argument(
        "--protocol",
        choices=("paper", "strict", "control"),
        default="paper",
        help="paper: as published, JPEG; strict: nobody with itself, PNG; control: squashed and compressed, not mixed",
    )


def run(arguments: argparse.Namespace) -> int:
    from rococo_jax.benchmarks.rococo.mixed_galleries import write_mixed
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.errors import InputError
    from rococo_jax.runtime import enable_compilation_cache

    data = read_pairs(arguments)
    names = list(data.names)
    if len(names) < 2 and arguments.protocol != "control":
        raise InputError(arguments.captions, "images", len(names), "at least two images to mix")
    plan = make_plan(names, arguments.method, arguments.ratio, arguments.seed, arguments.protocol)
    enable_compilation_cache()
    written = write_mixed(plan, dict(zip(names, data.paths, strict=True)), arguments.out)
    print(
        f"{written} images written, {len(names) - written} already there; {plan.variant}, seed {plan.seed}, "
        f"{plan.protocol}: {plan.self_mixed} mixed with themselves, own share {plan.true_ratio.mean():.4f}; "
        f"{arguments.out}/manifest.json"
    )
    return 0
