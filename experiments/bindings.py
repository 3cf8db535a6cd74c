"""Is a gain on altered captions a gain on bindings that no training caption contains?

    python experiments/bindings.py --out OUT [--cache DIR] [--data DATA --split DIR joined=models/fit]

`worlds` describes images and models. The parser knows two kinds of bindings, both of the words of the lexicon:

    adjective, noun          an adjective of colour, size, age, material or state right before a noun
    noun, relation, noun     two neighbouring nouns with one to three words between them, articles and adjectives left
                             out, unless one of these is "and" or "or", or a comma or a full stop is between them

Items are an image, a caption and an altered caption (attribute, relation, order, or a noun of the same concept; for
photographs also those of SugarCrepe) in which both texts have a binding that the other has not. A side is *seen* if
all of these bindings occur in training captions. False sides that are unseen are of two kinds: of *known words*, or
with a *new word*, which occurs in no training caption (added after the first split had been seen, for scenes). OUT has
the accuracy (a tie is an error) and grounding against all other images of each arm, by class, and the difference from
the first arm; means over training seeds, intervals over images. No test and no margin: described only.
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

from rococo_jax.perturb.text.kinds import KindAlterer, Slot, find_slots
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words, plain, split_words

ADJECTIVES = ("colour", "size", "age", "material", "state")
ARTICLES, LISTS = ("a", "an", "the"), ("and", "or")
CLASSES = [
    f"{true}, {false}"
    for true in ("true seen", "true unseen")
    for false in ("false seen", "false unseen (known words)", "false unseen (new word)")
]


class BoundItems(NamedTuple):
    """Items with the class of each."""

    items: Items
    classes: list[str]


def bindings_of(caption: str, lexicon: Lexicon) -> set[tuple[str, ...]]:
    """Return the bindings of a caption."""
    words = split_words(caption)
    texts = [plain(word.text) for word in words]
    slots = {slot.index: slot for slot in find_slots(texts, lexicon)}
    bindings: set[tuple[str, ...]] = set()
    last: Slot | None = None
    for index, slot in slots.items():
        if slot.noun is None:
            continue
        before = slots.get(index - 1)
        if before is not None and before.noun is None and before.concept in ADJECTIVES:
            bindings.add((texts[index - 1], slot.noun.name))
        if last is not None and last.noun is not None:
            separators = caption[words[last.index].end : words[index].start]
            between = [
                texts[place]
                for place in range(last.index + 1, index)
                if texts[place] not in ARTICLES and not (place in slots and slots[place].concept in ADJECTIVES)
            ]
            is_relation = 1 <= len(between) <= 3 and not {*between} & {*LISTS} and not {*separators} & {",", "."}
            if is_relation:
                bindings.add((last.noun.name, " ".join(between), slot.noun.name))
        last = slot
    return bindings


def classify(items: Items, training_captions: Iterable[str], lexicon: Lexicon) -> BoundItems:
    """Return the items whose texts differ in bindings on both sides, with their classes."""
    captions = list(training_captions)
    seen = set().union(*(bindings_of(caption, lexicon) for caption in captions))
    known_words = caption_words(captions)
    kept, classes = [], []
    for place, (true, false) in enumerate(zip(items.true, items.false, strict=True)):
        of_true, of_false = bindings_of(true, lexicon), bindings_of(false, lexicon)
        if of_true - of_false and of_false - of_true:
            true_side = "true seen" if of_true - of_false <= seen else "true unseen"
            kind = "known words" if caption_words([false]) <= known_words else "new word"
            false_side = "false seen" if of_false - of_true <= seen else f"false unseen ({kind})"
            kept.append(place)
            classes.append(f"{true_side}, {false_side}")
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
