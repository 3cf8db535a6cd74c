"""`rococo convert`: a model directory from a checkpoint of another project."""

import dataclasses
from typing import Annotated, Literal

from rococo_jax.cli.outputs import output_folder
from rococo_jax.options import Option

EXAMPLES = """\
  rococo convert openai/clip-vit-base-patch32 models/clip_b32
  rococo convert ViT-B-32.pt models/openai_b32 --tokenizer tokenizers/clip
  rococo convert laion/CLIP-ViT-B-32-laion2B-s34B-b79K models/laion_b32 --source-format open_clip
  rococo convert towers/dinov2_vits14 models/dinov2 --pooling cls+mean
"""


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """Parts that a checkpoint of another project may leave open, as `load_model` takes them.

    Attributes:
        source_format: what the checkpoint is (default: find out)
        pooling: how a DINOv2 or BERT tower is pooled (default: as the checkpoint names it, else cls)
        activation: of an OpenAI or open_clip checkpoint, where it is not in the file
        heads: of image and text tower, such as 16,8, for a state dict of no published size
        tokenizer: folder or hub name with the tokenizer, for checkpoints without one; 'none' to go without
        image_size: pixels of a side of the images, where not the checkpoint's: positions are interpolated as by its
            own library
    """

    source_format: Literal["auto", "huggingface", "openai", "open_clip", "big_vision"] = "auto"
    pooling: Literal["cls", "mean", "cls+mean"] | None = None
    activation: Literal["quick_gelu", "gelu"] | None = None
    heads: Annotated[str | None, Option("IMAGE,TEXT")] = None
    tokenizer: Annotated[str | None, Option("DIR_OR_NAME")] = None
    image_size: Annotated[int | None, Option("PIXELS", least=1)] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Convert a checkpoint of another project into a model directory.

    Attributes:
        source: checkpoint file (.pt, .npz), folder, or hub name
        out: the new model directory
        how: the checkpoint
    """

    source: Annotated[str, Option("SOURCE", positional=True)]
    out: Annotated[str, Option("OUT", positional=True, check=output_folder)]
    how: SourceOptions


def run(options: Options) -> None:
    from rococo_jax.storage import refuse_existing_folder

    refuse_existing_folder(options.out)

    from pathlib import Path

    from rococo_jax.checkpoints import convert, save_model
    from rococo_jax.encoders import Encoder, load_model
    from rococo_jax.encoders.loading import find_checkpoint
    from rococo_jax.runtime import make_mesh

    mesh = make_mesh(_first_device())
    if find_checkpoint(options.source) is not None:
        encoder = load_model(options.source, mesh=mesh, image_size=options.how.image_size)
    else:
        parts = convert(options.source, **vars(options.how))
        encoder = Encoder(*parts, name=Path(options.source).name, mesh=mesh)
    save_model(options.out, encoder)
    print(f"{options.out}: {encoder.provenance.get('model_type', encoder.name)} from {options.source}")
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
        tokenizer = encoder.tokenizer
        lines.append(
            f"  {f'{tokenizer.spec.family} tokenizer' if tokenizer else 'no tokenizer in the source: token ids only'}"
        )
    lines.append(f"embeddings: {spec.dim} dimensions")
    return lines


def tower_in_words(tower) -> str:
    """Depth, width, activation and pooling of an image or text tower."""
    stages = getattr(tower, "stage_layers", None)
    if stages is not None:
        widths = getattr(tower, "widths", None)
        wide = "-".join(map(str, widths)) if widths else tower.width
        kind, article = tower.architecture, "an" if tower.architecture[0] in "AEIOU" else "a"
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
    "mbconv": "stages of convolutions before the patches",
}
