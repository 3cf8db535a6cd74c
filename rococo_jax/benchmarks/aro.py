"""ARO (arXiv 2210.01936): which of two captions fits a region of an image, and which order of the words an image?

`visual_genome_relation.json` and `visual_genome_attribution.json`: `[{"image_id", "image_path", "true_caption",
"false_caption", "bbox_x", "bbox_y", "bbox_w", "bbox_h", "relation_name" or "attributes", ...}]`, the form that the
published code reads. The image is cut to its box, as there. The published figure is `by_kind`, the mean over relations,
or over pairs of attributes with 25 items or more. The published notebook leaves symmetric relations out of it: those
that `symmetric_relations.txt`, beside the annotations, names one a line; without that file all relations count.

`coco_order` is made from any captions in the Karpathy form. Up to four wrong orders of each caption, after those of the
published code: its nouns exchanged, its other words exchanged, its groups of three exchanged, and the words within each
group. [ours]: nouns are those of the shipped lexicon, where the published code asks a tagger for nouns and adjectives,
and an order depends on (seed, caption) alone. Orders that say the same are left out, and so are captions without one.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

from rococo_jax.benchmarks.choices.items import Bundle, Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.perturb.text.lexicon import shipped_lexicon

PARTS = {"visual_genome_relation": "relation", "visual_genome_attribution": "attribution"}
SYMMETRIC = "symmetric_relations.txt"
_LEAST_ATTRIBUTES = 25
_ALL_RELATIONS = (
    f"aro: By kind of relations is the published figure only where {SYMMETRIC}, beside the annotations, names the "
    "symmetric relations that the authors' notebook leaves out; without it all relations count"
)


def items(record: Record) -> Iterator[Item]:
    """The part of an image inside the box, its caption, and the one with words exchanged."""
    image = record.crop(record.image("image_path"), "bbox_x", "bbox_y", "bbox_w", "bbox_h")
    wrong = [record.text("false_caption")]
    part = PARTS[record.source.stem]
    if part == "relation":
        name = record.text("relation_name")
        bundles = [] if name in record.beside.get(SYMMETRIC, ()) else [Bundle("kind", name)]
    else:
        bundles = [Bundle("kind", "_".join(record.texts("attributes")[:2]), _LEAST_ATTRIBUTES)]
    yield choose_text(record.id, image, [record.text("true_caption")], wrong, part, bundles)


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline(
            "by_kind", "parts", "[ours] for the mean of both parts; each is the paper's number (arXiv 2210.01936)"
        ),
        parts=tuple(PARTS.values()),
        beside=(SYMMETRIC,),
        notes=(_ALL_RELATIONS,),
    ),
    name="aro",
    question="Is a caption of a region more similar to it than the same words with roles exchanged?",
    paper="When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?, arXiv 2210.01936",
    licence="annotations MIT; images Visual Genome (CC BY 4.0)",
    size="23,937 relations and 28,748 attributes",
    folders={"images": "aro/images", "annotations": "aro"},
    files=tuple(f"{name}.json" for name in PARTS),
    source="annotations and images: the links in the benchmark's public repository",
)


SEED = 0


def wrong_orders(caption: str, seed: int = SEED) -> list[str]:
    """The caption's words in up to four other orders, each once."""
    words = caption.rstrip(" .").lower().split()
    nouns = [place for place, word in enumerate(words) if shipped_lexicon().find(word.strip(",.;:!?\"'"))]
    others = [place for place in range(len(words)) if place not in nouns]
    groups = [list(range(start, min(start + 3, len(words)))) for start in range(0, len(words), 3)]
    orders = []
    for kind in range(4):
        rng = random.Random(hashlib.sha256(f"{seed}/{kind}/{caption}".encode()).digest())
        order = list(range(len(words)))
        if kind < 2:
            places = (nouns, others)[kind]
            for place, other in zip(places, _shuffled(places, rng), strict=True):
                order[place] = other
        elif kind == 2:
            order = [place for group in _shuffled(groups, rng) for place in group]
        else:
            order = [place for group in groups for place in _shuffled(group, rng)]
        orders.append(" ".join(words[place] for place in order))
    return [order for order in dict.fromkeys(orders) if order != " ".join(words)]


def _shuffled(items: Sequence, rng: random.Random) -> list:
    return rng.sample(list(items), len(items))


def order_items(record: Record) -> Iterator[Item]:
    """The captions of an image, in lower case without the final stop, each with its wrong orders."""
    image = record.image("image")
    for place, caption in enumerate(record.texts("caption")):
        if wrong := wrong_orders(caption):
            yield choose_text(f"{image.file}/{place}", image, [caption.rstrip(" .").lower()], wrong, "order")


choice_benchmark(
    ChoiceReader(
        order_items,
        headline=Headline("ota", "items", "[ours]: these are not the published orders"),
        notes=("coco_order: nouns after the shipped lexicon, so not the published orders",),
    ),
    name="coco_order",
    question="Is a caption more similar to its image than the same words in another order?",
    paper="When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?, arXiv 2210.01936",
    licence="COCO captions CC BY 4.0; images under their Flickr licences",
    size="25,010 captions of the Karpathy test split, or those of any captions file",
    folders={"images": "coco/images", "annotations": "coco"},
    files=("captions_test.json", "coco_karpathy_test.json"),
    source="a captions file in the Karpathy form; images: MS-COCO, cocodataset.org",
)
