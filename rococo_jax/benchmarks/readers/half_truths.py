"""Half-truths (arXiv 2602.23906): does adding one false detail to a true caption lower its score?

The authors' release: `data/{coco_qwen,coco_mistral,cc3m_qwen}.parquet` with `id, image, triplet_type, anchor,
half_truth, full_truth` and the images; or the same as JSON lines with paths, `coco_qwen.jsonl`. The authors' evaluation
script (github.com/kargibora/CS-CLIP, commit 6b064a0) reads both and defines the two scores. `triplet_type` is the kind
of the added detail, entity or relation. Ties are errors:

    HT     s(anchor) > s(half_truth)                    OTA of a file, and of `FILE_entity` and `FILE_relation`
    COR    s(full_truth) > s(anchor) > s(half_truth)    pairs of `FILE_order`: both comparisons are right

`mean` is the average over the three files [paper], `all` the accuracy over all items. The image side (which of several
images with a shared object shows another object as well) is not in the release: `image_side` generates it from any
captions [ours].
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.choices.items import Item, ItemGroup, Picture, choose_image, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.word_slots import alters, named_objects
from rococo_jax.perturb.text.words import article_of, caption_words, plain
from rococo_jax.progress import progress

FILES = ("coco_qwen", "coco_mistral", "cc3m_qwen")
_KINDS = ("entity", "relation")
_MIN_DISTRACTORS, _MAX_DISTRACTORS = 2, 5


def items(record: Record) -> Iterator[Item]:
    """Yield comparisons of a short caption with the same caption plus a false and plus a true detail."""
    id, image = record.label("id"), record.image("image")
    file, kind = record.source.stem, record.label("triplet_type")
    if kind not in _KINDS:
        raise record.error("triplet_type", repr(kind), " or ".join(_KINDS))
    anchor, half, full = (record.text(field) for field in ("anchor", "half_truth", "full_truth"))
    for part in (file, f"{file}_{kind}"):
        yield choose_text(id, image, [anchor], [half], part)
    for side, right, wrong in (("half", anchor, half), ("full", full, anchor)):
        yield choose_text(f"{id} {side}", image, [right], [wrong], f"{file}_order", [ItemGroup("pair", id, 2)])


choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "average over the three files in the paper (arXiv 2602.23906)"),
        pooled=dict.fromkeys(FILES, "mean"),
    ),
    name="half_truths",
    question="Does a short true caption score higher than the same caption with one false detail added?",
    paper="Half-Truths Break Similarity-Based Retrieval, arXiv 2602.23906",
    licence="generated annotations CC BY 4.0; images and captions of COCO and CC3M under theirs",
    size="1,437 comparisons: 509, 454 and 474",
    folders={"images": "half_truths", "annotations": "half_truths"},
    files=(*(f"data/{file}.parquet" for file in FILES), *(f"{file}.jsonl" for file in FILES)),
    source="huggingface.co/datasets/kbora/Half-Truths, as it is",
)


def image_side(images: Sequence[CaptionedImage], lexicon: Lexicon, seed: int) -> Iterator[Item]:
    """Yield items that ask which of 3 to 6 images shows two objects, at most one item per image.

    The text reads "a SHARED and an OWN". All candidate images show the shared object; only the right one shows its own
    object as well: no caption of another has that noun, a synonym or a special case of it. The authors' script extracts
    objects with a language model; here they are the lexicon's nouns in an image's captions [ours].
    """
    objects, words = [], []
    with progress("half-truths: reading captions", len(images), "images") as advance:
        for image in images:
            objects.append(sorted(named_objects(image.captions, lexicon)))
            words.append(caption_words(image.captions))
            advance(1)
    images_with = {noun: np.array(rows) for noun, rows in _rows_by(objects).items()}
    images_showing = _ImagesShowing(words, lexicon)
    with progress("half-truths: choosing images", len(images), "images") as advance:
        for image, nouns in zip(images, objects, strict=True):
            rng = np.random.default_rng(hash_key([seed, "image side", image.image]))
            pairs = [(shared, unique) for shared in nouns for unique in nouns if alters(shared, unique, lexicon)]
            for shared, unique in rng.permutation(pairs).tolist():
                candidates = images_with[shared]
                distractors = candidates[~images_showing(unique)[candidates]]
                if len(distractors) >= _MIN_DISTRACTORS:
                    rows = rng.permutation(distractors)[:_MAX_DISTRACTORS].tolist()
                    wrong = [Picture(images[row].image) for row in rows]
                    text = f"{article_of(shared)} {shared} and {article_of(unique)} {unique}"
                    right = Picture(image.image)
                    yield choose_image(f"image side {image.image}", text, right, wrong, "half_truth_images")
                    break
            advance(1)


class _ImagesShowing:
    """Index of the images whose captions name an object, a synonym or a special case of it."""

    def __init__(self, words: Sequence[frozenset[str]], lexicon: Lexicon):
        self.lexicon = lexicon
        self.rows_of_word = {word: np.array(rows) for word, rows in _rows_by(words).items()}
        self.nouns = {word: noun for word in self.rows_of_word if (noun := lexicon.find(word)) is not None}
        self.rows: dict[str, np.ndarray] = {}
        self.is_showing = np.zeros(len(words), bool)
        self.last = np.empty(0, int)

    def __call__(self, noun: str) -> Bool[np.ndarray, " images"]:
        """Return for each image whether it shows the object. The next call overwrites the array."""
        if noun not in self.rows:
            self.rows[noun] = self._find(noun)
        self.is_showing[self.last] = False
        self.last = self.rows[noun]
        self.is_showing[self.last] = True
        return self.is_showing

    def _find(self, noun: str) -> Int[np.ndarray, " rows"]:
        entry = self.lexicon.find(noun)
        words = [word for word, other in self.nouns.items() if not self.lexicon.alters(other, entry)]
        words += [plain(form) for form in (entry.singular, entry.plural) if form is not None]
        rows = [self.rows_of_word[word] for word in words if word in self.rows_of_word]
        return np.unique(np.concatenate(rows))  # never empty: one image names the object


def _rows_by(names_of_rows: Sequence[Iterable[str]]) -> dict[str, list[int]]:
    """Return the rows that contain each name, in ascending order."""
    rows: dict[str, list[int]] = {}
    for row, names in enumerate(names_of_rows):
        for name in names:
            rows.setdefault(name, []).append(row)
    return rows
