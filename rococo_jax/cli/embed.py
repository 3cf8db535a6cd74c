"""`rococo embed`: a model's vectors of a captioned image set, as one `.npz` for any other tool."""

import argparse

from rococo_jax.cli.inputs import add_pair_arguments, read_pairs
from rococo_jax.cli.outputs import output_file

HELP = "Write a model's image and caption embeddings to one .npz file."
EXAMPLES = """\
  rococo embed models/clip-b32 --images coco/images --captions coco/captions_test.json --out clip-b32.npz
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model directory, Hugging Face folder, or hub name")
    add_pair_arguments(parser)
    parser.add_argument("--out", type=output_file, required=True, metavar="F.npz", help="where the embeddings go")
    add_loading_arguments(parser)
    add_embedding_arguments(parser)


def add_embedding_arguments(parser: argparse.ArgumentParser) -> None:
    """What every command that embeds takes."""
    parser.add_argument("--precision", choices=("float32", "high", "bfloat16"), default="float32", help="of the "
        "towers; high is float32 with products in 3 passes of bfloat16 or TF32 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--batch-size", dest="images_at_once", metavar="N",
                        help="images at once on each device (default: what fits into its memory)")  # fmt: skip
    parser.add_argument("--device", metavar="KIND", help="cpu, gpu (cuda, rocm) or tpu (default: the fastest there is)")
    parser.add_argument("--quiet", action="store_true", help="no progress; errors and warnings are still printed")
    parser.add_argument("--cache", metavar="DIR", help="where embeddings are kept (default: $ROCOCO_CACHE/embeddings, "
                        "else ~/.cache/rococo_jax/embeddings)")  # fmt: skip
    parser.add_argument("--no-cache", action="store_true", help="neither read nor keep embeddings")


def add_loading_arguments(parser: argparse.ArgumentParser) -> None:
    """What a model's source may leave open."""
    parser.add_argument("--model-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the "
                        "function or adapter that MODEL names; may be repeated")  # fmt: skip
    parser.add_argument("--activation", choices=("quick_gelu", "gelu"), help="of an OpenAI or open_clip checkpoint "
                        "that does not say")  # fmt: skip
    parser.add_argument("--tokenizer", metavar="NAME", help="folder or hub name, for a checkpoint without one")


def load_options(arguments: argparse.Namespace):
    """The `LoadOptions` that the arguments ask for."""
    from rococo_jax.encoders import LoadOptions
    from rococo_jax.encoders.adapters import parse_arguments

    return LoadOptions(arguments.activation, arguments.tokenizer, parse_arguments(arguments.model_arg))


def compute_of(arguments: argparse.Namespace):
    """The `Compute` that the arguments ask for."""
    from rococo_jax.encoders.compute import Compute
    from rococo_jax.errors import InputError

    count = arguments.images_at_once
    if count is not None and (not count.isdecimal() or int(count) == 0):
        raise InputError("--batch-size", "number", count, "a whole number, 1 or more")
    return Compute(arguments.precision, None if count is None else int(count))


def embedding_cache(arguments: argparse.Namespace):
    """The `EmbeddingCache` that the arguments ask for."""
    from pathlib import Path

    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.runtime import cache_folder

    if arguments.no_cache:
        return EmbeddingCache(None)
    return EmbeddingCache(Path(arguments.cache) if arguments.cache else cache_folder() / "embeddings")


def run(arguments: argparse.Namespace) -> None:
    import numpy as np

    from rococo_jax.encoders import load_encoder
    from rococo_jax.encoders.embedding import embed_images, embed_texts
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import atomic_write

    enable_compilation_cache()
    data = read_pairs(arguments)
    encoder = load_encoder(arguments.model, compute=compute_of(arguments), options=load_options(arguments))
    cache = embedding_cache(arguments)
    arrays = {
        "image_names": np.array(data.names),
        "image_embeddings": embed_images(encoder, data.paths, cache),
        "captions": np.array(data.captions),
        "caption_image": data.caption_image,
        "text_embeddings": embed_texts(encoder, data.captions, cache),
    }
    with atomic_write(arguments.out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    left_out = f", {len(data.missing)} images left out" if data.missing else ""
    print(f"{arguments.out}: {len(data.names)} images, {len(data.captions)} captions{left_out}")
