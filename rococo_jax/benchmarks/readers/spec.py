"""SPEC (arXiv 2312.00081): size, position, existence and count, in texts of an image and in images of a text.

`SUBSET/image2text.json`: `[{"query": image, "keys": [texts], "label": index of the right text}]`;
`SUBSET/text2image.json` has a text as query and images as keys. Images are in the subset's folder. A part is a subset
and a direction, such as `count_image_to_text`; its accuracy is the published one, except that ties count as errors.
`image_to_text` and `text_to_image` are the published averages over the subsets.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_image, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

SUBSETS = ("absolute_size", "relative_size", "absolute_spatial", "relative_spatial", "existence", "count")
_WAYS = {"image2text": "image_to_text", "text2image": "text_to_image"}


def items(record: Record) -> Iterator[Item]:
    """Yield an image and a few texts, or a text and a few images."""
    subset, way = record.source.parent.name, _WAYS[record.source.stem]
    inside, part, keys, right = f"{subset}/{{}}", f"{subset}_{way}", record.child("keys"), record.number("label")
    if not 0 <= right < len(keys.value):
        raise record.error("label", right, f"0 to {len(keys.value) - 1}")
    wrong_places = [place for place in range(len(keys.value)) if place != right]
    if way == "image_to_text":
        texts = record.texts("keys")
        image = record.image("query", inside)
        yield choose_text(record.id, image, [texts[right]], [texts[place] for place in wrong_places], part)
    else:
        wrong = [keys.image(place, inside) for place in wrong_places]
        yield choose_image(record.id, record.text("query"), keys.image(right, inside), wrong, part)


choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "average over the subsets in the paper (arXiv 2312.00081)", "image_to_text"),
        pooled={f"{subset}_{way}": way for subset in SUBSETS for way in _WAYS.values()},
    ),
    name="spec",
    question="Which of a few texts, or of a few images, has the right size, position, presence or number of objects?",
    paper="Synthesize, Diagnose, and Optimize: Towards Fine-Grained Vision-Language Understanding, arXiv 2312.00081",
    licence="none stated where it is published",
    size="6 subsets, some 15,000 questions in each direction",
    folders={"images": "spec", "annotations": "spec"},
    files=tuple(f"{subset}/{way}.json" for subset in SUBSETS for way in _WAYS),
    source="huggingface.co/datasets/wjpoom/SPEC, data.zip",
)
