"""SPEC (arXiv 2312.00081): size, position, existence and count, among texts of an image and among images of a text.

`SUBSET/image2text.json`: `[{"query": image, "keys": [texts], "label": place of the right one}]`, and
`SUBSET/text2image.json`, the same with a text and images; images lie in the subset's folder. A part is subset and
direction, `count_image_to_text`; its accuracy is the published one but for ties, which are errors here. `image_to_text`
and `text_to_image` are the published averages over the subsets.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_image, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

SUBSETS = ("absolute_size", "relative_size", "absolute_spatial", "relative_spatial", "existence", "count")
_WAYS = {"image2text": "image_to_text", "text2image": "text_to_image"}


def items(record: Record) -> Iterator[Item]:
    """An image and a few texts, or a text and a few images."""
    subset, way = record.source.parent.name, _WAYS[record.source.stem]
    inside, part, keys, right = f"{subset}/{{}}", f"{subset}_{way}", record.under("keys"), record.number("label")
    if not 0 <= right < len(keys.value):
        raise record.refuse("label", right, f"0 to {len(keys.value) - 1}")
    others = [place for place in range(len(keys.value)) if place != right]
    if way == "image_to_text":
        texts = record.texts("keys")
        image = record.image("query", inside)
        yield choose_text(record.id, image, [texts[right]], [texts[place] for place in others], part)
    else:
        wrong = [keys.image(place, inside) for place in others]
        yield choose_image(record.id, record.text("query"), keys.image(right, inside), wrong, part)


choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "average over the subsets in the paper (arXiv 2312.00081)", "image_to_text"),
        pooled={f"{subset}_{way}": way for subset in SUBSETS for way in _WAYS.values()},
    ),
    name="spec",
    question="Which of a few texts, or of a few images, has the size, place, presence or number that is meant?",
    paper="Synthesize, Diagnose, and Optimize: Towards Fine-Grained Vision-Language Understanding, arXiv 2312.00081",
    licence="none stated where it is published",
    size="6 subsets, some 15,000 questions in each direction",
    folders={"images": "spec", "annotations": "spec"},
    files=tuple(f"{subset}/{way}.json" for subset in SUBSETS for way in _WAYS),
    source="huggingface.co/datasets/wjpoom/SPEC, data.zip",
)
