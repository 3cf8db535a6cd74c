"""`rococo convert`: a model directory from a checkpoint folder or hub name."""

import argparse

HELP = "Convert a checkpoint of another project into a model directory."
EXAMPLES = """\
  rococo convert openai/clip-vit-base-patch32 models/clip_b32
  rococo convert towers/dinov2_vits14 models/dinov2 --pooling cls+mean
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="Hugging Face folder (config.json, safetensors), or hub name")
    parser.add_argument("out", metavar="OUT", help="the new model directory")
    parser.add_argument(
        "--source-format",
        choices=("auto", "huggingface", "openai", "open_clip"),
        default="auto",
        help="what SOURCE is (default: find out)",
    )
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "cls+mean"),
        help="how a DINOv2 or BERT tower is pooled (default: what the checkpoint says, else cls)",
    )


def run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    from rococo_jax.errors import InputError
    from rococo_jax.storage import refuse_existing_folder

    if arguments.source_format in ("openai", "open_clip"):
        raise InputError("--source-format", "format", f"{arguments.source_format}, not read yet", "auto or huggingface")
    refuse_existing_folder(arguments.out)

    from rococo_jax.checkpoints import convert_huggingface, save_model
    from rococo_jax.encoding import Encoder
    from rococo_jax.runtime import make_mesh

    parts = convert_huggingface(arguments.source, pooling=arguments.pooling)
    encoder = Encoder(*parts, name=Path(arguments.source).name, mesh=make_mesh(_first_device()))
    save_model(arguments.out, encoder)
    print(f"{arguments.out}: {encoder.provenance['model_type']} from {arguments.source}")
    for line in describe(encoder):
        print(f"  {line}")


def _first_device() -> list:
    import jax

    return jax.devices()[:1]


def describe(encoder) -> list[str]:
    """What a person wants to see of a model that was just read."""
    from rococo_jax.models import parameter_counts

    spec, lines = encoder.spec, []
    counts = ", ".join(f"{part} {count:,}" for part, count in parameter_counts(spec).items() if part != "logits")
    lines.append(f"parameters: {counts}")
    if spec.vision is not None:
        vision = spec.vision
        activation = f"gated {vision.activation}" if vision.gated_mlp else vision.activation
        lines.append(f"images: {vision.image_size} x {vision.image_size}, patches of {vision.patch_size}")
        lines.append(f"  {vision.layers} layers of {vision.width}, {activation}, pooling {vision.pooling}")
        lines.append(f"  {encoder.preprocessing.describe()} (from {encoder.provenance['preprocessing']})")
    if spec.text is not None:
        text = spec.text
        longest = encoder.tokenizer.spec.context_length if encoder.tokenizer else text.context_length
        lines.append(f"texts: up to {longest} tokens, vocabulary of {text.vocabulary_size:,}")
        lines.append(f"  {text.layers} layers of {text.width}, {text.activation}, pooling {text.pooling}")
        found = encoder.tokenizer
        lines.append(f"  {f'{found.spec.family} tokenizer' if found else 'no tokenizer in the source: token ids only'}")
    lines.append(f"embeddings: {spec.dim} dimensions")
    return lines
