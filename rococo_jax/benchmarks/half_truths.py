"""Half-truths (arXiv 2602.23906): does a wrong detail that is added to a right caption lower its score?

The release of its authors: `data/{coco_qwen,coco_mistral,cc3m_qwen}.parquet`, `id, image, triplet_type, anchor,
half_truth, full_truth`, with the images inside; or the same as JSON lines with paths, `coco_qwen.jsonl`, which the
published code reads too. `triplet_type` is what was added, an entity or a relation. Ties are errors:

    HT     s(anchor) > s(half_truth)                    OTA of a file, and of `FILE_entity` and `FILE_relation`
    COR    s(full_truth) > s(anchor) > s(half_truth)    the pairs of `FILE_order`, whose two comparisons are both right

`mean` is the published average over the three files. The image side, which of several images that share a part has
another one, is not in the release: `image_side` draws it from any captions.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from rococo_jax.benchmarks.choices.items import Bundle, Item, Picture, choose_image, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text import hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.word_exchange import alters, is_new, named_objects, words_of
from rococo_jax.perturb.text.words import article_of

FILES = ("coco_qwen", "coco_mistral", "cc3m_qwen")
_KINDS = ("entity", "relation")
_DISTRACTORS = 2, 5


def items(record: Record) -> Iterator[Item]:
    """An image, a short caption, the same with a wrong detail, and the same with a right one."""
    id, image, file, kind = record.word("id"), record.image("image"), record.source.stem, record.word("triplet_type")
    if kind not in _KINDS:
        raise record.refuse("triplet_type", repr(kind), " or ".join(_KINDS))
    anchor, half, full = (record.text(field) for field in ("anchor", "half_truth", "full_truth"))
    for part in (file, f"{file}_{kind}"):
        yield choose_text(id, image, [anchor], [half], part)
    for side, right, wrong in (("half", anchor, half), ("full", full, anchor)):
        yield choose_text(f"{id} {side}", image, [right], [wrong], f"{file}_order", [Bundle("pair", id, 2)])


choice_benchmark(
    ChoiceReader(items, pooled=dict.fromkeys(FILES, "mean")),
    name="half_truths",
    question="Does a short right caption score higher than the same with one wrong detail added?",
    paper="Half-Truths Break Similarity-Based Retrieval, arXiv 2602.23906",
    licence="generated annotations CC BY 4.0; images and captions of COCO and CC3M under theirs",
    size="1,437 comparisons: 509, 454 and 474",
    folders={"images": "half_truths", "annotations": "half_truths"},
    files=(*(f"data/{file}.parquet" for file in FILES), *(f"{file}.jsonl" for file in FILES)),
    source="huggingface.co/datasets/kbora/Half-Truths, as it is",
)


def image_side(images: Sequence[CaptionedImage], lexicon: Lexicon, seed: int) -> Iterator[Item]:
    """Items of any captions, one an image or none: "a SHARED and an OWN" is its own, not of 2 to 5 others.

    After the script of the authors that finds such images: all images have the shared part, and only the right one its
    own. There parts come from a language model; here they are the nouns of the lexicon in an image's captions [ours].
    """
    words, objects = [words_of(each.captions) for each in images], [named_objects(e.captions, lexicon) for e in images]
    for each, named in zip(images, objects, strict=True):
        random, fewest, most = np.random.default_rng(hash_key([seed, "image side", each.image])), *_DISTRACTORS
        pairs = [(shared, own) for shared in sorted(named) for own in sorted(named) if alters(shared, own, lexicon)]
        for shared, own in random.permutation(pairs).tolist():
            others = [n for n, there in enumerate(objects) if shared in there and is_new(own, words[n], lexicon)]
            if len(others) >= fewest:
                wrong = [Picture(images[n].image) for n in random.permutation(others)[:most]]
                text = f"{article_of(shared)} {shared} and {article_of(own)} {own}"
                id = f"image side {each.image}"
                yield choose_image(id, text, Picture(each.image), wrong, "half_truth_images")
                break
