"""`rococo pack`: image-text pairs in a few large files."""

import argparse

from rococo_jax.cli.inputs import add_pair_arguments
from rococo_jax.cli.outputs import output_folder

HELP = "Pack images and captions into ArrayRecord shards, which training reads faster than many small files."
EXAMPLES = """\
  rococo pack --images coco/images --captions captions_train.json --out shards
  rococo pack --images cc3m --captions cc3m.jsonl --out shards --shards 256 --image-size 256 --leave-out-broken
  rococo pack --images "cc12m-{00000..01242}.tar" --out shards --shards 1024 --allow-missing-images --leave-out-broken
  rococo pack --images "tfds:coco_captions/2014?split=train" --out shards --shards 64
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument(
        "--out", type=output_folder, required=True, metavar="DIR", help="where the shards and manifest.json go"
    )
    parser.add_argument("--shards", type=int, default=16, metavar="N", help="how many files (default: 16)")
    parser.add_argument(
        "--image-size", type=int, metavar="S", help="shorter side in pixels of larger images, written as JPEG"
    )
    parser.add_argument(
        "--leave-out-broken", action="store_true", help="leave out images that cannot be decoded, and name them"
    )


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.data.array_record import pack_pairs
    from rococo_jax.data.caption_tables import parse_columns
    from rococo_jax.data.pairs import open_pairs
    from rococo_jax.progress import progress

    source = open_pairs(
        arguments.images,
        arguments.captions,
        allow_missing=arguments.allow_missing_images,
        columns=parse_columns(arguments.columns),
    )
    with progress("packing", len(source), "images") as advance:
        packed = pack_pairs(
            source,
            arguments.out,
            shards=arguments.shards,
            image_size=arguments.image_size,
            leave_out_broken=arguments.leave_out_broken,
            on_progress=advance,
        )
    print(
        f"{arguments.out}: {packed.images} images with {packed.captions} captions in {arguments.shards} shards, "
        f"{packed.written} of them written now"
    )
    if packed.left_out:
        print(f"left out, cannot be decoded: {len(packed.left_out)}; the first is {packed.left_out[0]}")
