"""`rococo join`: make a dual encoder from two single-modality towers."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.inputs import PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.evaluation.options import EmbeddingOptions
from rococo_jax.options import Option

EXAMPLES = """\
  rococo join towers/dinov2_vits14 towers/minilm_l6_v2 models/joined --images coco/images --captions captions_train.json
  rococo join VISION TEXT OUT --images coco/images,flickr8k/images --captions coco/train.json,flickr8k/captions.json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Make a dual encoder from an image and a text tower, with heads fitted in closed form (CCA) on captioned images.

    Attributes:
        vision: model with the image tower: model directory, folder, or hub name
        text: model with the text tower
        out: the new model directory
        dim: length of the joint embedding
        embedding: embedding
        pairs: images and captions
    """

    vision: Annotated[str, Option("VISION", positional=True)]
    text: Annotated[str, Option("TEXT", positional=True)]
    out: Annotated[str, Option("OUT", positional=True, check=output_folder)]
    dim: int = 256
    embedding: EmbeddingOptions
    pairs: PairOptions


def run(options: Options) -> None:
    from pathlib import Path

    from rococo_jax.checkpoints import save_model
    from rococo_jax.data.training_images import training_images
    from rococo_jax.encoders import load_model
    from rococo_jax.encoders.embedding import embed_images, embed_texts
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import refuse_existing_folder
    from rococo_jax.training.join import image_tower_of, join_towers, text_tower_of

    enable_compilation_cache()
    refuse_existing_folder(options.out)
    data = options.pairs.read()
    compute = options.embedding.compute()
    vision = image_tower_of(load_model(options.vision, dtype=compute.dtype))
    text = text_tower_of(load_model(options.text, dtype=compute.dtype))
    for tower in (vision, text):
        tower.use(compute)
    cache = options.embedding.open_cache()
    image_features = embed_images(vision, data.paths, cache, features=True)
    text_features = embed_texts(text, data.captions, cache, features=True)
    out = Path(options.out)
    features = image_features, text_features, data.caption_image
    images = training_images(data.names, data.paths)
    joined, record = join_towers(vision, text, *features, options.dim, out.name, images)
    save_model(out, joined)
    print(f"{out}: {vision.name} + {text.name}, {options.dim} dimensions")
    for key, value in record.items():
        print(f"  {key}: {value}")
