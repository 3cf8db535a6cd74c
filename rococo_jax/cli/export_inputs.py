"""`rococo export-inputs`: all images and captions that a model has to embed, for models that run elsewhere."""

import argparse

from rococo_jax.cli.outputs import output_folder

HELP = "Write every image (mixed and corrupted ones rendered) and caption that a model elsewhere has to embed."
EXAMPLES = """\
  rococo export-inputs --images coco/images --annotations rococo/annotations --out inputs
  rococo export-inputs --data DATA --benchmarks rococo,sugarcrepe --corruptions fog --severities 3 --out inputs
  rococo score --embeddings my-vectors --images coco/images --annotations rococo/annotations --out out/my-model

OUT/images.jsonl and OUT/captions.jsonl list what to embed: vectors go into .npz files with image_names,
image_embeddings, captions, text_embeddings, or .parquet files with image or caption, and embedding."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from rococo_jax.cli.evaluate import add_data_arguments

    parser.add_argument("--out", type=output_folder, required=True, metavar="DIR", help="where lists and images go")
    add_data_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress; errors and warnings are still printed")


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.cli.evaluate import benchmarks_of
    from rococo_jax.evaluation.input_lists import write_inputs

    counts = write_inputs(arguments.out, benchmarks_of(arguments))
    print(f"{arguments.out}: {counts['images']:,} images, {counts['captions']:,} captions")
