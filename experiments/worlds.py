"""Images, captions and models of the experiments on words, ties, hubs and bindings, as unit vectors.

    python experiments/worlds.py --data DATA --out split

    scenes        drawn scenes of the split `test`, whose compositions occur in no training scene. Models are the demo's
    photographs   of COCO, and two frozen towers that were joined

A world has queries (images with captions) and further images that no model was trained on, for comparison. Intervals
resample images, with the models fixed. The command writes the captions of the training photographs on which no item of
SugarCrepe or SugarCrepe++ lies, `split/fit.json`, and of the others, `split/others.json`. The towers are joined on the
former:

    rococo join towers/dinov2_vits14 towers/minilm_l6_v2 models/fit --images coco/images --captions split/fit.json
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.demo.training_scenes import training_captions_of
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_images, embed_texts
from rococo_jax.encoders.loading import load_encoder
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer
from rococo_jax.storage import write_csv_rows, write_json

SCENES, FURTHER_SCENES, TRAINING_SCENES, SEED = 300, 700, 20_000, 64
FURTHER_PHOTOGRAPHS = 250
DEMO_MODELS = {"plain": ["demo:plain"], "sc-vc": ["demo:sc-vc"], "grounded": ["demo:grounded"]}
DRAWS = 4000


@dataclasses.dataclass(frozen=True)
class World:
    """Images with captions, and the models that are tested on them.

    Attributes:
        items: the queries.
        files: files of the queries, then of the further images.
        lexicon: nouns that replace each other.
        influence_model: model by whose text tower the influence of words is computed.
        models: sources of the models of each arm, one for each training seed; the first arm is the reference.
        training_captions: captions of the images that models were trained on.
    """

    items: Sequence[CaptionedImage]
    files: Sequence[Path]
    lexicon: Lexicon
    influence_model: str
    models: dict[str, list[str]]
    training_captions: Sequence[str]

    @cached_property
    def captions(self) -> list[str]:
        return [caption for item in self.items for caption in item.captions]

    @cached_property
    def image_of_caption(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.items)), [len(item.captions) for item in self.items])


class Items(NamedTuple):
    """Image number, true and false caption of each item."""

    images: np.ndarray
    true: list[str]
    false: list[str]


@dataclasses.dataclass(frozen=True)
class EmbeddedWorld:
    """A model with the embeddings of a world's images."""

    model: LoadedModel
    images: np.ndarray
    cache: EmbeddingCache

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return embed_texts(self.model, texts, self.cache)


def embed(world: World, source: str, cache: EmbeddingCache, images: int | None = None) -> EmbeddedWorld:
    """Load a model and embed the first images of a world, or all."""
    model = load_encoder(source)
    return EmbeddedWorld(model, embed_images(model, world.files[:images], cache), cache)


def scenes() -> World:
    """Return drawn scenes with the models of the demo."""
    drawn = [make_scene("test", SEED, index) for index in range(SCENES + FURTHER_SCENES)]
    folder = Path(tempfile.gettempdir()) / f"rococo-scenes-{SEED}"
    folder.mkdir(exist_ok=True)
    for scene in drawn:
        if not (folder / f"{scene.name}.png").exists():
            draw_scene(scene, 256).save(folder / f"{scene.name}.png", compress_level=1)
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in drawn[:SCENES]]
    files = [folder / f"{scene.name}.png" for scene in drawn]
    training = list(dict.fromkeys(training_captions_of(TRAINING_SCENES)))
    return World(items, files, demo_lexicon(), "demo:plain", DEMO_MODELS, training)


def photographs(data: Path, split: Path, models: Sequence[str]) -> World:
    """Return the test photographs, with the first of `split/others.json` as further images."""
    tests, fit, others = map(read_items, (data / "coco/captions_test.json", split / "fit.json", split / "others.json"))
    files = [data / "coco/images" / item.image for item in [*tests, *others[:FURTHER_PHOTOGRAPHS]]]
    arms: dict[str, list[str]] = {}
    for model in models:
        arm, _, folder = model.partition("=")
        arms.setdefault(arm, []).append(folder)
    training = list(dict.fromkeys(caption for item in fit for caption in item.captions))
    return World(tests, files, shipped_lexicon(), str(data / "towers/minilm_l6_v2"), arms, training)


def read_items(path: Path) -> list[CaptionedImage]:
    """Return the images of a captions file."""
    return [CaptionedImage(each["image"], tuple(each["caption"])) for each in json.loads(path.read_text("utf-8"))]


def same_concept_alterer(world: World) -> CaptionAlterer:
    """Return what replaces a random noun of a caption by one of the same concept."""
    return CaptionAlterer("same_concept", world.lexicon, 0, "random", fit_article=True)


def altered_items(world: World, alterers: Sequence[KindAlterer | CaptionAlterer]) -> Items:
    """Return an item for each caption and alterer, where a word can be replaced."""
    images, true, false = [], [], []
    for image, caption in zip(world.image_of_caption, world.captions, strict=True):
        for alterer in alterers:
            for each in alterer.alter(caption, world.items[image].captions):
                images.append(image)
                true.append(caption)
                false.append(each.caption)
    return Items(np.array(images), true, false)


def sugar_crepe(folder: Path, files: Sequence[Path]) -> Items:
    """Return the items whose image is among the files, by COCO's number of the image."""
    place_of_number = {file.name.rpartition("_")[2]: place for place, file in enumerate(files)}
    images, true, false = [], [], []
    for path in sorted(folder.glob("*.json")):
        for item in json.loads(path.read_text("utf-8")).values():
            if item["filename"] in place_of_number:
                images.append(place_of_number[item["filename"]])
                true.append(item["caption"])
                false.append(item["negative_caption"])
    return Items(np.array(images), true, false)


def split_training_images(data: Path, out: Path) -> None:
    """Write the captions of training images without and with an item of SugarCrepe or SugarCrepe++."""
    items = []
    for path in sorted((data / "compositionality").glob("sugar*crepe*/*.json")):
        value = json.loads(path.read_text("utf-8"))
        items += value.values() if isinstance(value, dict) else value
    numbers = {item["filename"].rpartition("_")[2] for item in items}
    images = json.loads((data / "coco/captions_train.json").read_text("utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    for name, has_item in (("fit", False), ("others", True)):
        chosen = [image for image in images if (image["image"].rpartition("_")[2] in numbers) == has_item]
        write_json(out / f"{name}.json", chosen)
        print(f"{out / name}.json: {len(chosen)} images")


def prepare(description: str) -> tuple[argparse.Namespace, EmbeddingCache, dict[str, World]]:
    """Read the options that all of these experiments have; return them, the cache and the worlds that they choose.

    Scenes are always a world, photographs where models are named.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--cache", type=Path, help="folder of the embedding cache (default: none)")
    parser.add_argument("--data", type=Path, help="data folder: coco, towers, compositionality")
    parser.add_argument("--split", type=Path, help="folder of fit.json and others.json")
    parser.add_argument("models", nargs="*", metavar="ARM=FOLDER", help="models of the photographs")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    worlds = {"scenes": scenes()}
    if arguments.models:
        worlds["photographs"] = photographs(arguments.data, arguments.split, arguments.models)
    return arguments, EmbeddingCache(arguments.cache), worlds


def write_table(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write the rows of a table, of which the first has the names of the columns, and print them."""
    write_csv_rows(path, rows)
    print("\n".join("; ".join(row) for row in rows))


def mean_over_images(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Return 100 * the mean of values with its 95 % percentile interval over images.

    Args:
        sums: sum of the values of each image.
        counts: number of values of each image.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=DRAWS)
    means = (draws @ sums) / (draws @ counts)
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(sums.sum() / counts.sum()), 100 * float(low), 100 * float(high)


def cell(sums: np.ndarray, counts: np.ndarray, sign: str = "") -> str:
    """Return a mean with its interval for a table."""
    value, low, high = mean_over_images(sums, counts)
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    split_training_images(arguments.data, arguments.out)


if __name__ == "__main__":
    main()
