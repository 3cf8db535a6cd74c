"""Compare searches of altered captions with brute force in NumPy over all one- and two-word changes of drawn scenes.

    python experiments/attack_brute_force.py [--scenes 100] [--model demo:plain]

All five captions of a scene may change. Two spaces: nouns that replace each other within their group, where the brute
force is written without the package's spaces and searches, with loops over words and a table of nouns; and all kinds
but additions, where it combines the package's single changes itself. Two goals: as similar as the image's own captions,
and more similar by a margin that four scenes of five do not reach with one word, so that many need two.

It prints which of the smallest changes each search finds, and how many scenes it fools by how many tries. `genetic` is
no search of `rococo attack`; it is here to be compared.
"""

import argparse
import dataclasses
import itertools
import json
import operator
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rococo_jax.attacks.captions import CaptionAttack, Spaces, attack_captions
from rococo_jax.attacks.changes import Candidate, Space, apply_changes, are_separate, word_changes
from rococo_jax.attacks.scoring import TIE, CaptionGoal, EmbeddedSimilarities
from rococo_jax.attacks.search import SEARCHES, Search
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import load_encoder
from rococo_jax.perturb.text.kinds import KINDS

KINDS_WITHOUT_ADDITION = tuple(kind for kind in KINDS if kind != "addition")


def replacements(word: str, before: list[str], present: set[str], allowed: set[str], lexicon: dict) -> list[str]:
    """Return what may replace a word after the words `before`, from the JSON form of the lexicon."""
    nouns = {noun: plural for group in lexicon["groups"] for noun, plural in group["nouns"].items()}
    for group in lexicon["groups"]:
        for singular, plural in group["nouns"].items():
            if word.lower() not in (singular, plural):
                continue
            excluded = {singular, *lexicon["more_general"].get(singular, ())}
            excluded |= {each for words in lexicon["synonyms"] if singular in words for each in words}
            is_plural = word.lower() == plural
            if singular == plural:  # a fish, a blue fish, two fish
                is_plural = not {"a", "an", "one"} & {each.lower() for each in before}
            return [
                nouns[new] if is_plural else new
                for new in group["nouns"]
                if new not in excluded
                and not present & {new, nouns[new]}
                and (nouns[new] if is_plural else new) in allowed
            ]
    return []


def altered(caption: str, originals: Sequence[str], allowed: set[str], lexicon: dict, count: int) -> list[str]:
    """Return the caption with exactly `count` nouns replaced, in all ways, with fitting articles."""
    words = re.findall(r"[A-Za-z]+|[^A-Za-z]+", caption)
    present = {word for each in originals for word in re.findall(r"[a-z]+", each.lower())}
    options = {
        place: replacements(word, [words[i] for i in (place - 2, place - 4) if i >= 0], present, allowed, lexicon)
        for place, word in enumerate(words)
    }
    texts = []
    for places in itertools.combinations([place for place in options if options[place]], count):
        for chosen in itertools.product(*(options[place] for place in places)):
            new = list(words)
            for place, word in zip(places, chosen, strict=True):
                new[place] = word.capitalize() if place == 0 else word
                if place >= 2 and words[place - 1] == " " and words[place - 2].lower() in ("a", "an"):
                    article = "an" if word[0] in "aeiou" else "a"
                    new[place - 2] = article.capitalize() if words[place - 2][0] == "A" else article
            texts.append("".join(new))
    return texts


def genetic(space: Space, count: int, width: int, block_size: int) -> Search:
    """Breed `width` candidates for 60 generations: of each 16 half are new ones, half change a good one again."""
    rng, new = np.random.default_rng(0), space.combinations(1)
    best: list[tuple[float, Candidate]] = []
    for _ in range(60):
        block = list(itertools.islice(new, 8 if best else 16))
        for _ in range(8 if best else 0):
            parent = best[rng.integers(len(best))][1]
            if len(parent.changes) == count:  # one of its changes is replaced
                kept = rng.permutation(count)[: count - 1]
                parent = parent._replace(changes=tuple(parent.changes[place] for place in sorted(kept)))
            of_caption = space.changes[parent.caption]
            block += itertools.islice(space.extend(parent, [of_caption[rng.integers(len(of_caption))]]), 1)
        if not block:
            break
        margins = yield block, 0
        best = sorted([*best, *zip(margins.tolist(), block, strict=True)], key=lambda each: -each[0])[:width]
    return 0


def combined(captions: Sequence[str], originals: Sequence[str], count: int) -> list[str]:
    """Return the captions with every combination of `count` of the package's changes at separate places."""
    texts = []
    for caption in captions:
        changes = word_changes(caption, originals, demo_lexicon(), KINDS_WITHOUT_ADDITION)
        for chosen in itertools.combinations(changes, count):
            ordered = sorted(chosen)
            if count == 1 or are_separate(*ordered):
                texts.append(apply_changes(caption, ordered))
    return texts


def compare(items: Sequence[CaptionedImage], model, files: Sequence[Path], space: str) -> None:
    """Print agreement and found shares of one space, for both goals."""
    known = {word for item in items for caption in item.captions for word in re.findall(r"[a-z]+", caption.lower())}
    lexicon = demo_lexicon().to_json()
    kinds = ("same_concept",) if space == "nouns" else KINDS_WITHOUT_ADDITION
    attack = CaptionAttack("words", (1, 2), "own", demo_lexicon(), kinds, space == "nouns", seed=61)
    queries, spaces = attack.make_queries(items), Spaces(attack, items)
    goal = CaptionGoal("own", EmbeddedSimilarities(model, files, EmbeddingCache(None)), queries, items)
    best = np.full((len(items), 2), -9.0)
    texts = 0
    for row, item in enumerate(items):
        for count in (1, 2):
            if space == "nouns":
                found = [text for each in item.captions for text in altered(each, item.captions, known, lexicon, count)]
            else:
                found = combined(item.captions, item.captions, count)
            found = sorted({text for text in found if text not in item.captions})
            texts += len(found)
            if found:
                vectors = np.asarray(model.encode_text(found), np.float64)
                best[row, count - 1] = (vectors @ goal.similarities.images[row]).max() - goal.threshold[row]
    threshold = goal.threshold.copy()
    for name, margin in (("own", 0.0), ("own by a margin", max(0.0, float(np.quantile(best[:, 0], 0.8))) + 1e-4)):
        goal.threshold = threshold + margin
        expected = [next((n for n in (1, 2) if row[n - 1] >= margin - TIE), None) for row in best]
        broken = [number for number, value in enumerate(expected) if value is not None]
        result = {"space": space, "goal": name, "margin": round(margin, 4), "scenes": len(items), "texts": texts}
        result["broken by one, two, none"] = [expected.count(value) for value in (1, 2, None)]
        for search in SEARCHES:
            searched = dataclasses.replace(attack, search=search)
            records = [each for group in attack_captions(searched, queries, items, goal, spaces) for each in group]
            smallest = [record["smallest"] for record in records]
            found = sum(smallest[number] == expected[number] for number in broken)
            of_two = [number for number in broken if expected[number] == 2]
            first = [record["first"] or np.inf for record in records]
            result[search] = {
                "smallest found": f"{found} of {len(broken)}",
                "of two words": f"{sum(smallest[number] == 2 for number in of_two)} of {len(of_two)}",
                "none wrongly": sum(map(operator.eq, smallest, expected)) - found == expected.count(None),
                "tried": sum(record["tried"] for record in records),
                "fooled by 16, 64, 256 tries": [sum(each <= tries for each in first) for tries in (16, 64, 256)],
            }
        print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--model", default="demo:plain")
    parser.add_argument("--spaces", default="nouns,kinds")
    arguments = parser.parse_args()
    scenes = [make_scene("test", 61, index) for index in range(arguments.scenes)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    model = load_encoder(arguments.model)
    SEARCHES["genetic"] = genetic
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / item.image for item in items]
        for scene, file in zip(scenes, files, strict=True):
            draw_scene(scene, 256).save(file, compress_level=1)
        for space in arguments.spaces.split(","):
            compare(items, model, files, space)


if __name__ == "__main__":
    main()
