"""How much do ties and 16-bit numbers add to accuracy where a tie counts as right?

    python experiments/ties.py --out OUT [--cache DIR] [--data DATA --split DIR joined=models/fit]

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

from collections.abc import Sequence

import numpy as np
import torch
from worlds import (
    EmbeddedWorld,
    Items,
    altered_items,
    cell,
    embed,
    prepare,
    same_concept_alterer,
    sugar_crepe,
    write_table,
)

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


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
    arguments, cache, worlds = prepare(__doc__.splitlines()[0])
    rows = [["images", "model", "items", "type", "computation", "first", "half", "strict", "ties, %", "added, points"]]
    for name, world in worlds.items():
        if name == "scenes":
            items = altered_items(world, [same_concept_alterer(world)])
        else:
            items = sugar_crepe(arguments.data / "compositionality/sugar_crepe", world.files)
        for arm, sources in world.models.items():
            rows += rows_of(name, arm, embed(world, sources[0], cache, int(items.images.max()) + 1), items)
    write_table(arguments.out / "ties.csv", rows)


if __name__ == "__main__":
    main()
