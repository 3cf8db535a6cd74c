"""`rococo export-inputs`: write all images and captions that a model has to embed, for models that run elsewhere."""

import dataclasses
from typing import Annotated

from rococo_jax.benchmarks.settings import Settings
from rococo_jax.cli.outputs import output_folder
from rococo_jax.evaluation.options import QUESTIONS, DataOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo export-inputs --images coco/images --annotations rococo/annotations --out inputs
  rococo export-inputs --data DATA --benchmarks rococo,sugarcrepe --corruptions fog --severities 3 --out inputs
  rococo score --embeddings my-vectors --images coco/images --annotations rococo/annotations --out out/my-model

OUT/images.jsonl and OUT/captions.jsonl list what to embed: vectors go into .npz files with image_names,
image_embeddings, captions, text_embeddings, or .parquet files with image or caption, and embedding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write every image and caption that a model elsewhere has to embed, with mixed and corrupted images rendered.

    Attributes:
        out: folder of the lists and images
        quiet: no progress; errors and warnings are still printed
        data: data
        settings: questions
    """

    out: Annotated[str, Option("DIR", check=output_folder)]
    quiet: bool = False
    data: DataOptions
    settings: Annotated[Settings, QUESTIONS]


def run(options: Options) -> None:
    """Write the missing files, and print the number of images and captions."""
    from rococo_jax.evaluation.input_lists import write_inputs

    counts = write_inputs(options.out, options.data.open(options.settings))
    print(f"{options.out}: {counts['images']:,} images, {counts['captions']:,} captions")
