"""`rococo convert`: a model directory from a checkpoint of another project."""

import argparse
from typing import Any

from rococo_jax.cli.outputs import output_folder

HELP = "Convert a checkpoint of another project into a model directory."
EXAMPLES = """\
  rococo convert openai/clip-vit-base-patch32 models/clip_b32
  rococo convert ViT-B-32.pt models/openai_b32 --tokenizer tokenizers/clip
  rococo convert laion/CLIP-ViT-B-32-laion2B-s34B-b79K models/laion_b32 --source-format open_clip
  rococo convert towers/dinov2_vits14 models/dinov2 --pooling cls+mean
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="checkpoint file (.pt, .npz), folder, or hub name")
    parser.add_argument("out", type=output_folder, metavar="OUT", help="the new model directory")
    add_source_arguments(parser)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for what a checkpoint of another project may leave open."""
    parser.add_argument(
        "--source-format",
        choices=("auto", "huggingface", "openai", "open_clip", "big_vision", "vse_infinity"),
        default="auto",
        help="what the checkpoint is (default: find out)",
    )
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "cls+mean"),
        help="how a DINOv2 or BERT tower is pooled (default: as the checkpoint names it, else cls)",
    )
    parser.add_argument(
        "--activation",
        choices=("quick_gelu", "gelu"),
        help="of an OpenAI or open_clip checkpoint, where it is not in the file",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="DIR_OR_NAME",
        help="folder or hub name with the tokenizer, for checkpoints without one; 'none' to go without",
    )


def source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those options as arguments of `load_model`."""
    return {name: getattr(arguments, name) for name in ("source_format", "pooling", "activation", "tokenizer")}


def run(arguments: argparse.Namespace) -> None:
    from rococo_jax.storage import refuse_existing_folder

    refuse_existing_folder(arguments.out)

    from pathlib import Path

    from rococo_jax.checkpoints import convert, save_model
    from rococo_jax.encoders import Encoder, load_model
    from rococo_jax.encoders.run_checkpoints import find_checkpoint
    from rococo_jax.runtime import make_mesh

    mesh = make_mesh(_first_device())
    if find_checkpoint(arguments.source) is not None:
        encoder = load_model(arguments.source, mesh=mesh)
    else:
        parts = convert(arguments.source, **source_options(arguments))
        encoder = Encoder(*parts, name=Path(arguments.source).name, mesh=mesh)
    save_model(arguments.out, encoder)
    print(f"{arguments.out}: {encoder.provenance.get('model_type', encoder.name)} from {arguments.source}")
    for line in describe(encoder):
        print(f"  {line}")


def _first_device() -> list:
    import jax

    return jax.devices()[:1]


def describe(encoder) -> list[str]:
    """A summary of a model that was just read, one line an item."""
    from rococo_jax.models import parameter_counts

    spec, lines = encoder.spec, []
    counts = ", ".join(f"{part} {count:,}" for part, count in parameter_counts(spec).items() if part != "logits")
    lines.append(f"parameters: {counts}")
    if spec.vision is not None:
        vision = spec.vision
        lines.append(f"images: {vision.image_size} x {vision.image_size}, patches of {vision.patch_size}")
        lines.append(f"  {tower_in_words(vision)}")
        lines.append(f"  {encoder.preprocessing.describe()} (from {encoder.provenance['preprocessing']})")
    if spec.text is not None:
        text = spec.text
        longest = encoder.tokenizer.spec.context_length if encoder.tokenizer else text.context_length
        lines.append(f"texts: up to {longest} tokens, vocabulary of {text.vocabulary_size:,}")
        lines.append(f"  {tower_in_words(text)}")
        found = encoder.tokenizer
        lines.append(f"  {f'{found.spec.family} tokenizer' if found else 'no tokenizer in the source: token ids only'}")
    lines.append(f"embeddings: {spec.dim} dimensions")
    return lines


def tower_in_words(tower) -> str:
    """Depth, width, activation and pooling of an image or text tower."""
    stages = getattr(tower, "stage_layers", None)
    if stages is not None:
        widths = getattr(tower, "widths", None)
        wide = "-".join(map(str, widths)) if widths else tower.width
        kind = "ResNeXt" if getattr(tower, "groups", 1) > 1 else tower.architecture
        article = "an" if kind[0] in "AEIOU" else "a"
        return f"{article} {kind} of {'-'.join(map(str, stages))} blocks, {wide} wide, pooling {tower.pooling}"
    activation = f"gated {tower.activation}" if getattr(tower, "gated_mlp", False) else tower.activation
    more = "".join(f", {words}" for field, words in _PARTS.items() if getattr(tower, field, None))
    return f"{tower.layers} layers of {tower.width}, {activation}, pooling {tower.pooling}{more}"


# What few towers have.
_PARTS = {
    "rotary": "rotary positions",
    "inner_norms": "norms inside attention and MLP",
    "norm_changes": "norms of what a block adds",
    "norm_after_pooling": "norm after the pooling",
    "stem_width": "convolutions before the patches",
}
