"""Does training with altered captions make hubs, and texts that beat the true captions of many images, or remove them?

    python experiments/hubs.py --out OUT [--cache DIR] [--data DATA --split DIR joined=models/fit]

`worlds` describes images and models. For each arm, a mean over its training seeds:

    universal text    The text that is above all own captions of the most images of one half is tested on the other
                      half, both ways round: the share of images for which it is above all own captions. Texts are
                          altered    altered captions of the queries, one of the same concept for each caption
                          training   the first 10,000 captions of training images
                          list       one to four nouns of the lexicon, "dog, car, tree": the best noun, then the noun
                                     whose addition beats the most images, and so on (of several, the one with
                                     the largest mean margin); the best of the four lists
    largest hub       on the clean gallery, from image to text and from text to image: the share of queries whose first
                      item is the one that ranks first most often
    skewness          of N_10, the number of queries that have an item among their first ten, over items (Radovanovic
                      et al. 2010, Hubs in space)

The halves are the images of even and of odd places. Intervals resample images; skewness has none, and the hub is the
same in all resamples. Differences are from the first arm; one whose interval lies within 5 points of 0 is equivalent.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats
from worlds import EmbeddedWorld, World, altered_items, cell, embed, prepare, same_concept_alterer, write_table

TEXTS = ("altered", "training", "list")
HUBS = ("image to text", "text to image")
NOUNS, FIRST, TRAINING_TEXTS = 4, 10, 10_000


def best_own_caption(images: np.ndarray, captions: np.ndarray, image_of_caption: np.ndarray) -> np.ndarray:
    """Return the highest similarity of each image to one of its own captions."""
    is_own = image_of_caption == np.arange(len(images))[:, None]
    return np.where(is_own, images @ captions.T, -np.inf).max(axis=1)


def beaten_by_chosen_text(beats: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return for each image of the other half whether the text that beats most images of this half beats it."""
    return beats[~half, beats[half].sum(axis=0).argmax()]


def beaten_by_list(
    embedded: EmbeddedWorld, nouns: Sequence[str], images: np.ndarray, own: np.ndarray, half: np.ndarray
) -> np.ndarray:
    """Return for each image of the other half whether the list that is chosen on this half beats it."""
    lists = [""]
    columns = []
    for _ in range(NOUNS):
        texts = [f"{lists[-1]}, {noun}".removeprefix(", ") for noun in nouns]
        margins = images @ embedded.texts(texts).T - own[:, None]
        place = np.lexsort((margins[half].mean(axis=0), (margins[half] > 0).sum(axis=0)))[-1]
        lists.append(texts[place])
        columns.append(margins[:, place] > 0)
    return beaten_by_chosen_text(np.column_stack(columns), half)


def in_largest_hub(scores: np.ndarray) -> np.ndarray:
    """Return which queries have the first item that ranks first for most queries."""
    first = scores.argmax(axis=1)
    return first == np.bincount(first).argmax()


def skewness(scores: np.ndarray) -> float:
    """Return the skewness over items of the number of queries that have the item among their first `FIRST`."""
    first = np.argsort(-scores, axis=1, kind="stable")[:, :FIRST]
    return float(stats.skew(np.bincount(first.ravel(), minlength=scores.shape[1])))


def measure(world: World, embedded: EmbeddedWorld, altered: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return sums and numbers of values of each image, by the name of the number."""
    images, captions = embedded.images[: len(world.items)], embedded.texts(world.captions)
    own = best_own_caption(images, captions, world.image_of_caption)
    nouns = sorted({noun.singular for noun in world.lexicon.nouns if noun.singular is not None})
    beats = {
        name: images @ embedded.texts(texts).T > own[:, None]
        for name, texts in (("altered", altered), ("training", world.training_captions[:TRAINING_TEXTS]))
    }
    ones = np.ones(len(images))
    results = {name: np.zeros(len(images)) for name in TEXTS}
    for half in (np.arange(len(images)) % 2 == side for side in (0, 1)):
        for name in ("altered", "training"):
            results[name][~half] = beaten_by_chosen_text(beats[name], half)
        results["list"][~half] = beaten_by_list(embedded, nouns, images, own, half)
    measured = {name: (sums, ones) for name, sums in results.items()}
    scores = images @ captions.T
    for name, table, owner in (
        ("image to text", scores, np.arange(len(images))),
        ("text to image", scores.T, world.image_of_caption),
    ):
        sums = np.bincount(owner, in_largest_hub(table), minlength=len(images))
        measured[name] = (sums, np.bincount(owner, minlength=len(images)).astype(float))
        measured[f"{name}, skewness"] = (np.array([skewness(table)]), np.ones(1))
    return measured


def rows_of(world: str, arms: Mapping[str, Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]]]) -> list[list[str]]:
    """Return a row for each arm: means over seeds, and differences from the first arm."""
    rows, reference = [], None
    for arm, runs in arms.items():
        row = [world, arm, str(len(runs))]
        means = {name: np.mean([run[name][0] for run in runs], axis=0) for name in runs[0]}
        for name in (*TEXTS, *HUBS):
            counts = runs[0][name][1]
            row.append(cell(means[name], counts))
            row.append("" if reference is None else cell(means[name] - reference[name], counts, "+"))
        row += [f"{means[f'{name}, skewness'][0]:.2f}" for name in HUBS]
        reference = means if reference is None else reference
        rows.append(row)
    return rows


def main() -> None:
    arguments, cache, worlds = prepare(__doc__.splitlines()[0])
    names = [f"universal text: {name}" for name in TEXTS] + [f"largest hub, {name}" for name in HUBS]
    head = ["images", "arm", "seeds", *(column for name in names for column in (name, f"{name}, difference"))]
    rows = [head + [f"skewness, {name}" for name in HUBS]]
    for name, world in worlds.items():
        altered = sorted(set(altered_items(world, [same_concept_alterer(world)]).false))
        arms = {
            arm: [measure(world, embed(world, source, cache), altered) for source in sources]
            for arm, sources in world.models.items()
        }
        rows += rows_of(name, arms)
    write_table(arguments.out / "hubs.csv", rows)


if __name__ == "__main__":
    main()
