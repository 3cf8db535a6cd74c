"""How much do ties and 16-bit numbers add to accuracy where a tie counts as right?

    python experiments/ties.py --out ties.csv [--cache DIR] [--data DATA --split DIR joined=models/fit]

`worlds` describes models and images. An item is an image, a true and a false caption. Scenes: each caption and the same
caption with a noun of the same concept. Photographs: the items of SugarCrepe whose image is a query or a further one.
Three rules, of which the first is that of tools which take the index of the largest score and list the true caption
first:

    first     s(true) >= s(false)
    half      a tie counts one half
    strict    s(true) > s(false)

and four computations, from the same float32 embeddings:

    float32   unit vectors and product in float32
    stored    embeddings rounded to 16 bits; unit vectors and product in float32
    scores    all in float32, and the scores rounded to 16 bits
    kept      embeddings rounded to 16 bits; unit vectors and product in 16 bits, as PyTorch computes them on a CPU

The towers themselves compute in float32, so this is what the last step alone adds. Intervals resample images;
`added` is the accuracy by rule `first` minus that of float32 by rule `half`, in points.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from worlds import EmbeddedWorld, World, add_arguments, cell, embed, worlds_of

from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.perturb.text.replacement import CaptionAlterer
from rococo_jax.storage import write_csv_rows

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Items(NamedTuple):
    """Image number, true and false caption of each item."""

    images: np.ndarray
    true: list[str]
    false: list[str]


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


def items_of_captions(world: World) -> Items:
    """Return an item for each caption of which a noun can be replaced by one of the same concept."""
    alterer = CaptionAlterer("same_concept", world.lexicon, 0, "random", fit_article=True)
    images, true, false = [], [], []
    for image, caption in zip(world.image_of_caption, world.captions, strict=True):
        for each in alterer.alter(caption, world.items[image].captions):
            images.append(image)
            true.append(caption)
            false.append(each.caption)
    return Items(np.array(images), true, false)


def scores(images: np.ndarray, texts: np.ndarray, types: Sequence[torch.dtype]) -> np.ndarray:
    """Return the similarity of each image to its text.

    Args:
        images, texts: float32 embeddings.
        types: of the embeddings as they are stored, of the unit vectors and the product, and of the scores.
    """
    stored, product, score = types
    sides = [torch.tensor(side).to(stored).to(product) for side in (images, texts)]
    image_units, text_units = (torch.nn.functional.normalize(side, dim=-1) for side in sides)
    return torch.bmm(image_units[:, None], text_units[:, :, None])[:, 0, 0].to(score).float().numpy()


def count(true: np.ndarray, false: np.ndarray) -> dict[str, np.ndarray]:
    """Return for each item whether it is right by each rule, and whether it is a tie."""
    tie = (true == false).astype(float)
    return {"first": true >= false, "half": (true > false) + tie / 2, "strict": true > false, "ties": tie}


def rows_of(world: str, arm: str, embedded: EmbeddedWorld, items: Items) -> list[list[str]]:
    """Return a row for each type and computation."""
    images, true, false = embedded.images[items.images], embedded.texts(items.true), embedded.texts(items.false)
    float32 = torch.float32
    computations = {("float32", "float32"): (float32, float32, float32)}
    for name, dtype in TYPES.items():
        computations[name, "stored"] = dtype, float32, float32
        computations[name, "scores"] = float32, float32, dtype
        computations[name, "kept"] = dtype, dtype, dtype
    numbers = np.bincount(items.images).astype(float)
    rows, exact = [], None
    for (name, computation), types in computations.items():
        outcome = count(scores(images, true, types), scores(images, false, types))
        sums = {rule: np.bincount(items.images, hits) for rule, hits in outcome.items()}
        exact = sums["half"] if exact is None else exact
        row = [world, arm, str(len(items.true)), name, computation]
        row += [cell(sums[rule], numbers) for rule in ("first", "half", "strict")]
        rows.append([*row, f"{100 * outcome['ties'].mean():.2f}", cell(sums["first"] - exact, numbers, "+")])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    arguments = parser.parse_args()
    cache = EmbeddingCache(arguments.cache)
    rows = [["images", "model", "items", "type", "computation", "first", "half", "strict", "ties, %", "added, points"]]
    for name, world in worlds_of(arguments).items():
        if name == "scenes":
            items = items_of_captions(world)
        else:
            items = sugar_crepe(arguments.data / "compositionality/sugar_crepe", world.files)
        for arm, sources in world.models.items():
            rows += rows_of(name, arm, embed(world, sources[0], cache, int(items.images.max()) + 1), items)
    write_csv_rows(arguments.out, rows)
    print("\n".join("; ".join(row) for row in rows))


if __name__ == "__main__":
    main()
