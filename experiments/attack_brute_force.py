"""Compare searches of altered captions with brute force in NumPy over all one- and two-word changes of drawn scenes.

    python experiments/attack_brute_force.py [--scenes 100] [--model demo:plain]

Nouns of captions replace each other within their group. The brute force is written without the package's spaces and
searches: loops over words and a table of nouns. It prints for how many scenes the exhaustive search agrees, and which
share of the smallest changes the beam finds.
"""

import argparse
import itertools
import json
import re
import tempfile
from pathlib import Path

import numpy as np

from rococo_jax.attacks.run import AttackedData, attack_models
from rococo_jax.attacks.settings import CaptionAttack
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import load_encoder


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


def altered(caption: str, allowed: set[str], lexicon: dict, count: int) -> list[str]:
    """Return the caption with exactly `count` nouns replaced, in all ways, with fitting articles."""
    words = re.findall(r"[A-Za-z]+|[^A-Za-z]+", caption)
    present = {word.lower() for word in words}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--model", default="demo:plain")
    arguments = parser.parse_args()
    scenes = [make_scene("test", 61, index) for index in range(arguments.scenes)]
    items = [CaptionedImage(f"{scene.name}.png", (captions_of(scene)[0],)) for scene in scenes]
    allowed = {word for item in items for word in re.findall(r"[a-z]+", item.captions[0].lower())}
    lexicon, model = demo_lexicon().to_json(), load_encoder(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / item.image for item in items]
        for scene, file in zip(scenes, files, strict=True):
            draw_scene(scene, 256).save(file, compress_level=1)
        records = {}
        for search in ("exhaustive", "beam"):
            attack = CaptionAttack("words", (1, 2), "own", demo_lexicon(), ("same_concept",), True, search, seed=61)
            data = AttackedData(items, files, "scenes")
            folders = {model.name: Path(folder) / search}
            models, _ = attack_models(lambda name: model, folders, data, [attack], EmbeddingCache(None))
            records[search] = models[model.name].records["words"]
        images = model.encode_image([draw_scene(scene, 256) for scene in scenes])
    texts = [[altered(item.captions[0], allowed, lexicon, count) for count in (1, 2)] for item in items]
    captions = (item.captions[0] for item in items)
    flat = list(dict.fromkeys([*captions, *(text for each in texts for of_count in each for text in of_count)]))
    embeddings = dict(zip(flat, model.encode_text(flat), strict=True))
    smallest = []
    for item, image, each in zip(items, images, texts, strict=True):
        own = np.dot(embeddings[item.captions[0]], image)
        best = [max((np.dot(embeddings[text], image) for text in of_count), default=-9) for of_count in each]
        smallest.append(next((count for count, value in zip((1, 2), best, strict=True) if value >= own - 1e-6), None))
    broken = [number for number, value in enumerate(smallest) if value is not None]
    agree = sum(record["smallest"] == value for record, value in zip(records["exhaustive"], smallest, strict=True))
    found = sum(records["beam"][number]["smallest"] == smallest[number] for number in broken)
    print(json.dumps({
        "scenes": len(items), "texts": len(flat), "broken by one, two, none": [smallest.count(n) for n in (1, 2, None)],
        "exhaustive agrees": agree, "beam finds": f"{found} of {len(broken)}",
        "tried": {name: sum(record["tried"] for record in each) for name, each in records.items()},
    }))  # fmt: skip


if __name__ == "__main__":
    main()
