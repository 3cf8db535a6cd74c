"""Images and captions to attack, a search written out by hand, and models with planted weaknesses."""

import functools
import itertools
import json
import re
from pathlib import Path

import numpy as np

from rococo_jax.attacks.captions import CaptionAttack
from rococo_jax.attacks.run import AttackedData
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.perturb.text.lexicon import Lexicon

ANIMALS = {"dog": "dogs", "cat": "cats", "cow": "cows", "owl": "owls", "puppy": "puppies"}
THINGS = {"car": "cars", "tree": "trees", "house": "houses"}
LEXICON_JSON = {
    "format": "rococo_jax.lexicon",
    "version": 1,
    "groups": [{"concept": "animal", "nouns": ANIMALS}, {"concept": "object", "nouns": THINGS}],
    "synonyms": [["dog", "puppy"]],
}
LEXICON = Lexicon.from_json(LEXICON_JSON)
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "gray", "grey", "pink", "purple")
ITEMS = (
    CaptionedImage("0.png", ("A dog near a red car.", "Two dogs", "Nothing to alter")),
    CaptionedImage("1.png", ("There is a cat under the tree", "An owl")),
    CaptionedImage("2.png", ("A white house and a cow", "a house")),
    CaptionedImage("3.png", ("a cow, a car and a tree", "a blue car")),
    CaptionedImage("4.png", ("three cows near a black house",)),
)


def draw(folder: Path, count: int = len(ITEMS)) -> list[Path]:
    """Write drawn scenes as the images of `ITEMS`; return the files."""
    paths = [folder / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        draw_scene(make_scene("test", 3, number), size=96, fineness=1).save(path)
    return paths


def data_of(paths: list[Path]) -> AttackedData:
    return AttackedData(ITEMS, paths, "scenes")


def attack_of(unit: str = "words", budgets: tuple[int, ...] = (1, 2), **changes) -> CaptionAttack:
    """Return an attack on nouns and colours, exhaustive unless changed."""
    goal = changes.pop("goal", "gallery" if unit == "words" else "image")
    changes = {"kinds": ("same_concept", "attribute"), **changes}
    return CaptionAttack(unit, budgets, goal, LEXICON, **changes)


def altered_by_hand(item: CaptionedImage, count: int) -> set[str]:
    """Return every caption of an image with exactly `count` nouns or colours replaced, from plain loops over words."""
    present = {word for caption in item.captions for word in re.findall(r"[a-z]+", caption.lower())}
    altered = set()
    for caption in item.captions:
        words = re.findall(r"[A-Za-z]+|[^A-Za-z]+", caption)
        options = {place: replacements(word, present) for place, word in enumerate(words)}
        for places in itertools.combinations([place for place in options if options[place]], count):
            for chosen in itertools.product(*(options[place] for place in places)):
                new = list(words)
                for place, word in zip(places, chosen, strict=True):
                    new[place] = word.capitalize() if words[place][0].isupper() else word
                altered.add("".join(with_articles(new)))
    return altered - set(item.captions)


def replacements(word: str, present: set[str]) -> list[str]:
    """Return what may replace a word: same group and number, no synonym, in no caption of the image."""
    if word in COLOURS:
        taken = present | ({"gray", "grey"} if present & {"gray", "grey"} else set())
        return [colour for colour in COLOURS if colour != word and colour not in taken]
    for group in (ANIMALS, THINGS):
        for place, forms in enumerate((list(group), list(group.values()))):
            if word.lower() in forms:
                old = list(group)[forms.index(word.lower())]
                same = {"dog", "puppy"} if old in ("dog", "puppy") else {old}
                return [pair[place] for pair in group.items() if pair[0] not in same and not present & {*pair}]
    return []


def with_articles(words: list[str]) -> list[str]:
    """Return the words with `a` before consonants and `an` before vowels."""
    fixed = list(words)
    for place, word in enumerate(words):
        if word.lower() in ("a", "an") and place + 2 < len(words) and words[place + 1] == " ":
            article = "an" if words[place + 2][0].lower() in "aeiou" else "a"
            fixed[place] = article.capitalize() if word[0].isupper() else article
    return fixed


@functools.cache
def vector_of_word(word: str, width: int) -> np.ndarray:
    """Return a fixed random vector."""
    return np.random.default_rng([ord(letter) for letter in word]).normal(size=width)


@functools.cache
def numbers_of_images(count: int) -> dict[bytes, int]:
    """Return the number of each image that `draw` makes, by its pixels."""
    drawn = (draw_scene(make_scene("test", 3, number), size=96, fineness=1) for number in range(count))
    return {np.asarray(image.convert("RGB")).tobytes(): number for number, image in enumerate(drawn)}


class Words:
    """A bag-of-words encoder: a fixed random vector for each word; images are the vectors of their first caption."""

    name = "words"

    def __init__(self, width: int = 48, captions=None):
        self.width, self.first = width, [item.captions[0] for item in ITEMS] if captions is None else captions
        self.calls = 0

    def fingerprint(self) -> str:
        return f"{type(self).__name__} {self.width}"

    def word(self, word: str) -> np.ndarray:
        return vector_of_word(word.lower(), self.width)

    def text(self, text: str) -> np.ndarray:
        vectors = [self.word(word) for word in re.findall(r"[A-Za-z]+", text)]
        return sum(vectors, np.ones(self.width) * 1e-3)

    def encode_text(self, texts):
        self.calls += len(texts)
        return np.stack([self.text(text) for text in texts]).astype(np.float32)

    def encode_image(self, images):
        # The image is recognised by its pixels; `draw` makes the same ones each time.
        numbers = [self.numbers()[np.asarray(image).tobytes()] for image in images]
        return np.stack([self.text(self.first[number]) for number in numbers]).astype(np.float32)

    def numbers(self) -> dict[bytes, int]:
        return numbers_of_images(len(self.first))


class IgnoresThirdWord(Words):
    """Planted weakness: the third word of a text makes no difference."""

    def text(self, text: str) -> np.ndarray:
        words = re.findall(r"[A-Za-z]+", text)
        return super().text(" ".join(words[:2] + words[3:]))


class LovesATrigger(Words):
    """Planted weakness: a text with `owl` is near every image."""

    def text(self, text: str) -> np.ndarray:
        vector = super().text(text)
        return vector + 1e3 * np.ones(self.width) * ("owl" in text.lower())

    def encode_image(self, images):
        return super().encode_image(images) + 30 * np.ones(self.width, np.float32)


class Constant(Words):
    """Gives every image and every text the same embedding."""

    def text(self, text: str) -> np.ndarray:
        return np.ones(self.width)


class Pairs:
    """Scores pairs by the cosine of `Words`."""

    name = "pairs"

    def __init__(self):
        self.words = Words()

    def score_pairs(self, images, texts):
        one, two = self.words.encode_image(images), self.words.encode_text(texts)
        unit = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
        return (unit(one) * unit(two)).sum(axis=1)


def write_files(folder, paths):
    """Write the captions and the lexicon as files beside the images, and return the folder."""
    captions = [{"image": item.image, "caption": list(item.captions)} for item in ITEMS]
    (folder / "captions.json").write_text(json.dumps(captions))
    (folder / "lexicon.json").write_text(json.dumps(LEXICON_JSON))
    (folder / "images").symlink_to(paths[0].parent)
    return folder


def words(folder, models, out, of_captions=True):
    """Return the command line of an attack on the files of a folder, with a lexicon if it is one on captions."""
    data = f"--images {folder}/images --captions {folder}/captions.json"
    data += f" --lexicon {folder}/lexicon.json" * of_captions
    return f"attack {models} {data} --no-cache --out {folder}/{out}".split()
