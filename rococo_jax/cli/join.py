"""`rococo join`: two single-modality towers become one dual encoder."""

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
    """Make a dual encoder from an image tower and a text tower: heads fitted in closed form (CCA) on captioned images.

    Attributes:
        vision: model with the image tower: directory, folder, or hub name
        text: model with the text tower
        out: the new model directory
        dim: length of the joint embedding
        cross_fit: fit two models on a half of the images each, as one folder whose every item is evaluated by the
            model that has not seen its image
        embedding: embedding
        pairs: images and captions
    """

    vision: Annotated[str, Option("VISION", positional=True)]
    text: Annotated[str, Option("TEXT", positional=True)]
    out: Annotated[str, Option("OUT", positional=True, check=output_folder)]
    dim: int = 256
    cross_fit: bool = False
    embedding: EmbeddingOptions
    pairs: PairOptions


def run(options: Options) -> None:
    from pathlib import Path

    import numpy as np

    from rococo_jax.checkpoints import save_model
    from rococo_jax.data.images import FileImages
    from rococo_jax.data.training_images import fold_of, training_images, write_folds, write_training_images
    from rococo_jax.encoders import load_model
    from rococo_jax.encoders.embedding import embed_images, embed_texts
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import atomic_directory, refuse_existing_folder
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
    files = FileImages(data.names, data.paths)
    image = data.caption_image

    def fit(kept: np.ndarray, out: Path) -> None:
        """Fits heads on the kept images, and writes the model with the list of them."""
        of_kept = kept[image]
        rows = (np.cumsum(kept) - 1)[image[of_kept]]
        features = image_features[kept], text_features[of_kept], rows
        joined, record = join_towers(vision, text, *features, options.dim, out.name, cache)
        chosen = np.flatnonzero(kept).tolist()
        save_model(out, joined)
        write_training_images(out, training_images(*([each[i] for i in chosen] for each in (data.names, data.paths))))
        print(f"{out}: {vision.name} + {text.name}, {options.dim} dimensions")
        for key, value in record.items():
            print(f"  {key}: {value}")

    if not options.cross_fit:
        fit(np.ones(len(data.names), bool), Path(options.out))
        return
    fold = fold_of(files.names, files.hashes)
    with atomic_directory(options.out) as folder:
        for number in (0, 1):
            fit(fold != number, folder / f"fold_{number}")
        write_folds(folder, ("fold_0", "fold_1"))
