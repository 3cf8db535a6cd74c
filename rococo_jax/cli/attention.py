"""`rococo attention`: where an image tower looks, before and after another image is mixed in."""

import argparse

from rococo_jax.cli.outputs import output_file

HELP = "Show where an image tower looks, before and after another image is mixed in, as one page."
EXAMPLES = """\
  rococo attention models/clip-b32 --images coco/images --out attention.html
  rococo attention models/clip-b32 --images coco/images --captions captions_test.json --seed 10 --out attention.html
  rococo attention models/dinov2 --images some/photos --method mix --ratio 0.7 --count 20 --out attention.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model directory, Hugging Face folder, or hub name")
    parser.add_argument("--images", required=True, metavar="DIR", help="folder of images")
    parser.add_argument("--out", type=output_file, required=True, metavar="F.html", help="the page")
    parser.add_argument("--captions", metavar="FILE", help="its images that are present, in its order, which decides "
                        "the pairs (default: all images of the folder)")  # fmt: skip
    parser.add_argument("--method", choices=("mix", "patch"), default="patch", help="blend or paste (default: patch)")
    parser.add_argument("--ratio", type=float, default=0.9, metavar="R", help="share of own content (default: 0.9)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="published: 1, 10, 100 (default: 1)")
    parser.add_argument("--protocol", choices=("paper", "strict"), default="paper", help="of the mixing")
    parser.add_argument("--count", type=int, default=8, metavar="N", help="images to show (default: 8)")


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from rococo_jax.benchmarks.rococo.published_mixing import make_plan
    from rococo_jax.encoders import load_model
    from rococo_jax.errors import InputError
    from rococo_jax.report import page_path
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.studies.attention import choose_pairs
    from rococo_jax.studies.attention_page import write_attention_page

    page_path(arguments.out, "--out")
    if arguments.count < 1:
        raise InputError("--count", "images", arguments.count, "at least 1")
    files, captions = _find(arguments)
    if len(files) < 2:
        raise InputError(arguments.images, "images", len(files), "at least two images to mix")
    plan = make_plan(list(files), arguments.method, arguments.ratio, arguments.seed, arguments.protocol)
    enable_compilation_cache()
    encoder = load_model(arguments.model)
    pairs = choose_pairs(encoder, plan, files, arguments.count)
    page = write_attention_page(arguments.out, encoder, plan, pairs, captions)
    boxed = [pair.ratios for pair in pairs if pair.has_box]
    said = f"overlap {100 * np.mean([pair.overlap for pair in pairs]):.1f} %"
    if boxed:
        before, after = np.mean(boxed, axis=0)
        said = f"box looked at {after:.2f} times as much as its area, {before:.2f} before it was mixed in; {said}"
    print(f"{page}: {len(pairs)} images, {plan.variant}, seed {plan.seed}; {said}")
    return 0


def _find(arguments: argparse.Namespace) -> tuple[dict, dict]:
    """Files by name, and a caption for each where there are captions."""
    from pathlib import Path

    from rococo_jax.data.captioned_images import read_captions
    from rococo_jax.data.image_files import find_images, list_images
    from rococo_jax.errors import InputError

    if arguments.captions is None:
        return {name: Path(arguments.images) / name for name in list_images(arguments.images)}, {}
    items = read_captions(arguments.captions)
    found, missing = find_images([item.image for item in items], arguments.images)
    if not found:
        raise InputError(
            arguments.images, "images", f"none of {len(missing)}", f"images that {arguments.captions} names"
        )
    files = {item.image: found[item.image] for item in items if item.image in found}
    return files, {item.image: item.captions[0] for item in items if item.image in found}
