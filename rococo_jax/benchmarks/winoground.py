"""Winoground (arXiv 2204.03162): two images, two captions of the same words; which belongs to which?

`examples.jsonl`: `{"id", "image_0", "caption_0", "image_1", "caption_1", "collapsed_tag", ...}`, images `NAME.png`, as
in the published archive. A part is the collapsed tag: object, relation or both.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record


def items(record: Record) -> Iterator[Item]:
    """Two images and their captions."""
    images = [record.image(f"image_{place}", "{}.png") for place in (0, 1)]
    texts = [record.text(f"caption_{place}") for place in (0, 1)]
    yield choose_pairs(record.word("id"), images, texts, record.word("collapsed_tag").lower())


INFO = choice_benchmark(
    ChoiceReader(items),
    name="winoground",
    question="Which of two captions of the same words belongs to which of two images?",
    paper="Winoground: Probing Vision and Language Models for Visio-Linguistic Compositionality, arXiv 2204.03162",
    licence="META IMAGES RESEARCH LICENSE; images by Getty Images",
    size="400 items, 800 images",
    folders={"images": "winoground/images", "annotations": "winoground"},
    files=("examples.jsonl",),
    source="huggingface.co/datasets/facebook/winoground, after its terms are accepted",
)
