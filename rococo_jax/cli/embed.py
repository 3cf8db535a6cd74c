"""`rococo embed`: write a model's embeddings of a captioned image set to one `.npz` for any other tool."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.inputs import PairOptions
from rococo_jax.cli.outputs import output_file
from rococo_jax.evaluation.options import LOADING, EmbeddingOptions, ModelOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo embed models/clip-b32 --images coco/images --captions coco/captions_test.json --out clip-b32.npz
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Write a model's image and caption embeddings to one .npz file.

    Attributes:
        model: model directory, Hugging Face folder, or hub name
        out: output file
        pairs: images and captions
        loading: models
        embedding: embedding
    """

    model: Annotated[str, Option("MODEL", positional=True)]
    out: Annotated[str, Option("F.npz", check=output_file)]
    pairs: PairOptions
    loading: Annotated[ModelOptions, LOADING]
    embedding: EmbeddingOptions


def run(options: Options) -> None:
    import numpy as np

    from rococo_jax.encoders import load_encoder
    from rococo_jax.encoders.embedding import embed_images, embed_texts
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import atomic_write

    enable_compilation_cache()
    data = options.pairs.read()
    model = load_encoder(options.model, compute=options.embedding.compute(), options=options.loading.load_options())
    encoder = model.require_embedder()
    cache = options.embedding.open_cache()
    arrays = {
        "image_names": np.array(data.names),
        "image_embeddings": embed_images(encoder, data.paths, cache),
        "captions": np.array(data.captions),
        "caption_image": data.caption_image,
        "text_embeddings": embed_texts(encoder, data.captions, cache),
    }
    with atomic_write(options.out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    left_out = f", {len(data.missing)} images left out" if data.missing else ""
    print(f"{options.out}: {len(data.names)} images, {len(data.captions)} captions{left_out}")
