"""`rococo join`: two single-modality towers become one dual encoder."""

import argparse

from rococo_jax.cli.inputs import add_pair_arguments, read_pairs
from rococo_jax.cli.outputs import output_folder

HELP = (
    "Make a dual encoder from an image tower and a text tower: heads fitted in closed form (CCA) on captioned images."
)
EXAMPLES = """\
  rococo join towers/dinov2_vits14 towers/minilm_l6_v2 models/joined --images coco/images --captions captions_train.json
  rococo join VISION TEXT OUT --images coco/images,flickr8k/images --captions coco/train.json,flickr8k/captions.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from rococo_jax.cli.embed import add_embedding_arguments

    parser.add_argument("vision", metavar="VISION", help="model with the image tower: directory, folder, or hub name")
    parser.add_argument("text", metavar="TEXT", help="model with the text tower")
    parser.add_argument("out", type=output_folder, metavar="OUT", help="the new model directory")
    add_pair_arguments(parser)
    parser.add_argument("--dim", type=int, default=256, help="length of the joint embedding (default 256)")
    parser.add_argument(
        "--image-pooling",
        choices=("cls", "mean", "cls+mean"),
        help="how a class-token tower is pooled (default: cls+mean for a headless tower, else as the model says)",
    )
    parser.add_argument("--cross-fit", action="store_true", help="fit two models on a half of the images each, as one "
                        "folder whose every item is evaluated by the model that has not seen its image")  # fmt: skip
    add_embedding_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    from pathlib import Path

    import numpy as np

    from rococo_jax.checkpoints import save_model
    from rococo_jax.cli.embed import compute_of, embedding_cache
    from rococo_jax.data.images import FileImages
    from rococo_jax.data.training_images import fold_of, training_images, write_folds, write_training_images
    from rococo_jax.encoders import load_model
    from rococo_jax.encoders.embedding import embed_images, embed_texts
    from rococo_jax.runtime import enable_compilation_cache
    from rococo_jax.storage import atomic_directory, refuse_existing_folder
    from rococo_jax.training.join import image_tower_of, join_towers, text_tower_of

    enable_compilation_cache()
    refuse_existing_folder(arguments.out)
    data = read_pairs(arguments)
    compute = compute_of(arguments)
    vision = image_tower_of(load_model(arguments.vision, dtype=compute.dtype), arguments.image_pooling)
    text = text_tower_of(load_model(arguments.text, dtype=compute.dtype))
    for tower in (vision, text):
        tower.use(compute)
    cache = embedding_cache(arguments)
    image_features = embed_images(vision, data.paths, cache, features=True)
    text_features = embed_texts(text, data.captions, cache, features=True)
    files = FileImages(data.names, data.paths)
    image = data.caption_image

    def fit(kept: np.ndarray, out: Path) -> None:
        """Fits heads on the kept images, and writes the model with the list of them."""
        of_kept = kept[image]
        rows = (np.cumsum(kept) - 1)[image[of_kept]]
        features = image_features[kept], text_features[of_kept], rows
        joined, record = join_towers(vision, text, *features, arguments.dim, out.name, cache)
        chosen = np.flatnonzero(kept).tolist()
        save_model(out, joined)
        write_training_images(out, training_images(*([each[i] for i in chosen] for each in (data.names, data.paths))))
        print(f"{out}: {vision.name} + {text.name}, {arguments.dim} dimensions")
        for key, value in record.items():
            print(f"  {key}: {value}")

    if not arguments.cross_fit:
        fit(np.ones(len(data.names), bool), Path(arguments.out))
        return
    fold = fold_of(files.names, files.hashes)
    with atomic_directory(arguments.out) as folder:
        for number in (0, 1):
            fit(fold != number, folder / f"fold_{number}")
        write_folds(folder, ("fold_0", "fold_1"))
