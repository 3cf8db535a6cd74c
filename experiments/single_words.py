"""Replace the least, a random and the most influential noun of the same captions; ground against nearest wrong images.

    python experiments/single_words.py --out OUT [--cache DIR] [--data DATA --split DIR joined=models/fit]

`worlds` describes images and models. Captions are those in which the noun of lowest and of highest influence are
different words and every choice has a replacement; others stay in the gallery unaltered. Replacements are nouns of the
same concept and of another one, each with the seeds 0, 1 and 2. Queries are all images:

    clean       the best caption of the image is above every caption of other images
    R@1         ... and above every altered caption
    FR@1        an altered caption is above all captions
    drop        clean R@1 minus R@1, in points

Grounding is the share of wrong images that prefer the true caption to the altered one (lowest influence) by less than
the matching image does; ties count one half. Wrong images are all others, or the 10 or the 1 nearest to the matching
image by the embeddings of the first model of the first arm. They are the same for all models.

Values are means over training seeds, variants and seeds of the replacement; intervals resample images. The tables
OUT/word_choice.csv and OUT/nearest_grounding.csv have the differences of every arm from the first, too.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from worlds import EmbeddedWorld, World, cell, embed, prepare, write_table

from rococo_jax.benchmarks.rococo.generate import candidate_influence
from rococo_jax.encoders.embedding import embed_images
from rococo_jax.encoders.loading import load_encoder
from rococo_jax.perturb.text.replacement import Alteration, CaptionAlterer

CHOICES = ("lowest", "random", "highest")
VARIANTS, SEEDS = ("same_concept", "diff_concept"), (0, 1, 2)
NEAREST = (1, 10, None)  # None: all wrong images
COLUMNS = ("clean", "r1", "fr1")


class AlteredCaptions(NamedTuple):
    """Altered captions of one variant, seed and choice of the word, and the place of the caption of each."""

    texts: list[str]
    captions: np.ndarray


def alter_same_captions(
    world: World, influences: Sequence[np.ndarray], variant: str, seed: int
) -> dict[str, AlteredCaptions]:
    """Return the altered captions of each choice of the word, of the captions that every choice can alter."""
    alterers = {choice: CaptionAlterer(variant, world.lexicon, seed, choice, fit_article=True) for choice in CHOICES}
    kept: dict[str, list[str]] = {choice: [] for choice in CHOICES}
    places = []
    for place, (caption, influence) in enumerate(zip(world.captions, influences, strict=True)):
        originals = world.items[world.image_of_caption[place]].captions
        altered: dict[str, Alteration] = {}
        for choice, alterer in alterers.items():
            for each in alterer.alter(caption, originals, influence):
                altered[choice] = each
        if len(altered) == len(CHOICES) and altered["lowest"].word_index != altered["highest"].word_index:
            places.append(place)
            for choice, each in altered.items():
                kept[choice].append(each.caption)
    return {choice: AlteredCaptions(texts, np.array(places)) for choice, texts in kept.items()}


def recall(
    images: np.ndarray, captions: np.ndarray, altered: np.ndarray, image_of_caption: np.ndarray
) -> dict[str, np.ndarray]:
    """Return which images are right without and with altered captions, and which are fooled; a tie is an error."""
    scores = images @ captions.T
    is_own = image_of_caption == np.arange(len(images))[:, None]
    own, other = np.where(is_own, scores, -np.inf).max(axis=1), np.where(is_own, -np.inf, scores).max(axis=1)
    false = (images @ altered.T).max(axis=1)
    return {"clean": own > other, "r1": own > np.maximum(other, false), "fr1": false >= np.maximum(own, other)}


def grounding(preferences: np.ndarray, matching: np.ndarray, nearest: np.ndarray, count: int | None) -> np.ndarray:
    """Return for each pair the share of its wrong images that prefer the true caption by less than the matching one.

    Args:
        preferences: similarity of the true minus that of the altered caption, pairs x images.
        matching: the matching image of each pair.
        nearest: for each query image the other images, the nearest first.
        count: number of wrong images; all if None.
    """
    wrong = nearest[matching][:, :count]
    own = np.take_along_axis(preferences, matching[:, None], axis=1)
    others = np.take_along_axis(preferences, wrong, axis=1)
    return ((own > others) + 0.5 * (own == others)).mean(axis=1)


def order_by_distance(features: np.ndarray, queries: int) -> np.ndarray:
    """Return for each of the first images all other images, the nearest by cosine first."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarities = unit[:queries] @ unit.T
    similarities[np.arange(queries), np.arange(queries)] = np.inf
    return np.argsort(-similarities, axis=1, kind="stable")[:, 1:]


def measure(
    world: World,
    embedded: EmbeddedWorld,
    altered_sets: Mapping[tuple[str, int], Mapping[str, AlteredCaptions]],
    nearest: np.ndarray,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return sums and numbers of values of each image, by the name of the number."""
    queries, captions = embedded.images[: len(world.items)], embedded.texts(world.captions)
    count = len(queries)
    values = {f"{choice} {name}": np.zeros(count) for choice in CHOICES for name in COLUMNS}
    grounded = {number: np.zeros(count) for number in NEAREST}
    pairs = np.zeros(count)
    for choices in altered_sets.values():
        for choice, altered in choices.items():
            embeddings = embedded.texts(altered.texts)
            for name, outcome in recall(queries, captions, embeddings, world.image_of_caption).items():
                values[f"{choice} {name}"] += outcome
            if choice != "lowest":
                continue
            matching = world.image_of_caption[altered.captions]
            preferences = (captions[altered.captions] - embeddings) @ embedded.images.T
            pairs += np.bincount(matching, minlength=count)
            for number in NEAREST:
                shares = grounding(preferences, matching, nearest, number)
                grounded[number] += np.bincount(matching, shares, minlength=count)
    runs = np.full(count, float(len(altered_sets)))
    results = {name: (sums, runs) for name, sums in values.items()}
    return results | {f"grounding {number or 'all'}": (sums, pairs) for number, sums in grounded.items()}


def mean_of_seeds(runs: Sequence[Mapping[str, tuple[np.ndarray, np.ndarray]]]) -> dict[str, tuple]:
    """Return the sums and numbers of values of each image over all training seeds."""
    return {name: tuple(sum(run[name][side] for run in runs) for side in (0, 1)) for name in runs[0]}


def word_rows(world: str, arms: Mapping[str, dict[str, tuple]], captions: int) -> list[list[str]]:
    """Return a row for each arm and choice of the word."""
    rows = []
    for (arm, results), choice in itertools.product(arms.items(), CHOICES):
        drop = results[f"{choice} clean"][0] - results[f"{choice} r1"][0]
        least = results["lowest clean"][0] - results["lowest r1"][0]
        false, least_false = results[f"{choice} fr1"][0], results["lowest fr1"][0]
        runs = results[f"{choice} r1"][1]
        row = [world, arm, choice, str(captions), *(cell(*results[f"{choice} {name}"]) for name in COLUMNS)]
        row.append(cell(drop, runs))
        if choice != "lowest":
            row += [cell(least - drop, runs, "+"), cell(least_false - false, runs, "+")]
        rows.append([*row, *[""] * (10 - len(row))])
    return rows


def grounding_rows(world: str, arms: Mapping[str, dict[str, tuple]]) -> list[list[str]]:
    """Return a row for each arm: grounding against all wrong images and the nearest ones, and differences."""
    reference = next(iter(arms.values()))
    rows = []
    for arm, results in arms.items():
        row = [world, arm]
        for number in reversed(NEAREST):
            sums, pairs = results[f"grounding {number or 'all'}"]
            reference_sums, reference_pairs = reference[f"grounding {number or 'all'}"]
            row.append(cell(sums, pairs))
            # Arms have the same pairs, up to their numbers of seeds.
            scale = pairs.sum() / reference_pairs.sum()
            row.append("" if results is reference else cell(sums - scale * reference_sums, pairs, "+"))
        rows.append(row)
    return rows


def main() -> None:
    arguments, cache, worlds = prepare(__doc__.splitlines()[0])
    differences = ["less drop than lowest", "less FR@1 than lowest"]
    words = [["images", "arm", "word", "captions altered", "clean R@1", "R@1", "FR@1", "drop, points", *differences]]
    names = ["all", "nearest 10", "nearest 1"]
    pairs = [["images", "arm", *(column for name in names for column in (name, f"{name}, difference"))]]
    for name, world in worlds.items():
        encoder = load_encoder(world.influence_model)
        influences = candidate_influence(encoder, world.items, world.lexicon)
        altered_sets = {
            (variant, seed): alter_same_captions(world, influences, variant, seed)
            for variant, seed in itertools.product(VARIANTS, SEEDS)
        }
        first = load_encoder(next(iter(world.models.values()))[0])
        features = embed_images(first, world.files, cache)
        nearest = order_by_distance(features, len(world.items))
        arms = {
            arm: mean_of_seeds([measure(world, embed(world, each, cache), altered_sets, nearest) for each in sources])
            for arm, sources in world.models.items()
        }
        captions = round(np.mean([len(choices["lowest"].texts) for choices in altered_sets.values()]))
        words += word_rows(name, arms, captions)
        pairs += grounding_rows(name, arms)
    for file, rows in (("word_choice.csv", words), ("nearest_grounding.csv", pairs)):
        write_table(arguments.out / file, rows)


if __name__ == "__main__":
    main()
