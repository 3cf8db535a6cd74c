"""Is a gain on altered captions a gain on bindings that no training caption contains?

    python experiments/bindings.py --out OUT [--cache DIR] [--data DATA --split DIR joined=models/fit]

`worlds` describes images and models, `rococo_jax.perturb.text.bindings` the parser and the classes.

Items are an image, a caption and an altered caption (attribute, relation, order, or a noun of the same concept; for
photographs also those of SugarCrepe) in which both texts have a binding that the other has not. A side is *seen* if
all of these bindings occur in training captions; the package calls it known. False sides that are unseen are of two
kinds: of *known words*, or with a *new word*, which occurs in no training caption (added after the first split had been
seen, for scenes). OUT has the accuracy (a tie is an error) and grounding against all other images of each arm, by
class, and the difference from the first arm; means over training seeds, intervals over images. No test and no margin:
described only.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from single_words import grounding, order_by_distance
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

from rococo_jax.perturb.text.bindings import (
    BOTH_KNOWN,
    NONE_KNOWN,
    ONLY_FALSE_KNOWN,
    ONLY_TRUE_KNOWN,
    bindings_of,
    class_of,
)
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words

SIDES = {
    BOTH_KNOWN: "true seen, false seen",
    ONLY_TRUE_KNOWN: "true seen, false unseen",
    ONLY_FALSE_KNOWN: "true unseen, false seen",
    NONE_KNOWN: "true unseen, false unseen",
}
CLASSES = [
    f"{true}, {false}"
    for true in ("true seen", "true unseen")
    for false in ("false seen", "false unseen (known words)", "false unseen (new word)")
]


class BoundItems(NamedTuple):
    """Items with the class of each."""

    items: Items
    classes: list[str]


def classify(items: Items, training_captions: Iterable[str], lexicon: Lexicon) -> BoundItems:
    """Return the items whose texts differ in bindings on both sides, with their classes."""
    captions = list(training_captions)
    known, known_words = bindings_of(captions, lexicon), caption_words(captions)
    kept, classes = [], []
    for place, (true, false) in enumerate(zip(items.true, items.false, strict=True)):
        if name := class_of([true], [false], known, lexicon):
            kind = "known words" if caption_words([false]) <= known_words else "new word"
            kept.append(place)
            classes.append(SIDES[name] + f" ({kind})" * SIDES[name].endswith("unseen"))
    texts = ([side[place] for place in kept] for side in (items.true, items.false))
    return BoundItems(Items(items.images[kept], *texts), classes)


def measure(embedded: EmbeddedWorld, items: Items) -> tuple[np.ndarray, np.ndarray]:
    """Return for each item whether it is right, and its grounding."""
    preferences = (embedded.texts(items.true) - embedded.texts(items.false)) @ embedded.images.T
    nearest = order_by_distance(embedded.images, len(embedded.images))
    right = preferences[np.arange(len(items.true)), items.images] > 0
    return right.astype(float), grounding(preferences, items.images, nearest, None)


def rows_of(world: str, source: str, arms: dict[str, Sequence[tuple]], bound: BoundItems) -> list[list[str]]:
    """Return a row for each class and arm."""
    rows = []
    for name in CLASSES:
        of_class = np.array([each == name for each in bound.classes])
        images = bound.items.images[of_class]
        if not len(images):
            continue
        counts, reference = np.bincount(images).astype(float), None
        for arm, runs in arms.items():
            sums = [np.bincount(images, np.mean([run[side] for run in runs], axis=0)[of_class]) for side in (0, 1)]
            row = [world, source, name, str(len(images)), str(int((counts > 0).sum())), arm]
            for side in (0, 1):
                difference = "" if reference is None else cell(sums[side] - reference[side], counts, "+")
                row += [cell(sums[side], counts), difference]
            reference = sums if reference is None else reference
            rows.append(row)
    return rows


def main() -> None:
    arguments, cache, worlds = prepare(__doc__.splitlines()[0])
    numbers = ["accuracy", "accuracy, difference", "grounding", "grounding, difference"]
    rows = [["images", "items of", "bindings", "items", "images with items", "arm", *numbers]]
    for name, world in worlds.items():
        alterers = [KindAlterer(kind, world.lexicon) for kind in ("attribute", "relation", "order")]
        sources = {"altered captions": altered_items(world, [*alterers, same_concept_alterer(world)])}
        if name == "photographs":
            folder = arguments.data / "compositionality/sugar_crepe"
            sources["SugarCrepe"] = sugar_crepe(folder, world.files)
        embedded = {arm: [embed(world, each, cache) for each in models] for arm, models in world.models.items()}
        for source, items in sources.items():
            bound = classify(items, world.training_captions, world.lexicon)
            arms = {arm: [measure(each, bound.items) for each in models] for arm, models in embedded.items()}
            rows += rows_of(name, source, arms, bound)
    write_table(arguments.out / "bindings.csv", rows)


if __name__ == "__main__":
    main()
