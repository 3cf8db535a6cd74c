"""SugarCrepe (arXiv 2306.14610): is the true caption more similar to its image than a fluent false one?

Seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy is OTA; `mean` is the macro mean
over the parts.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_object

PARTS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def items(record: Record) -> Iterator[Item]:
    """One image, its caption and a false one."""
    image, right = record.image("filename"), record.text("caption")
    yield choose_text(record.id, image, [right], [record.text("negative_caption")], record.source.stem)


INFO = choice_benchmark(
    ChoiceReader(items),
    name="sugarcrepe",
    question="Is the true caption more similar to its image than a fluent false one?",
    paper="SugarCrepe: Fixing Hackable Benchmarks for Vision-Language Compositionality, arXiv 2306.14610",
    licence="annotations MIT; images under their Flickr licences",
    size="7,511 items on 1,560 images in 7 parts",
    folders={"images": "coco/images", "annotations": "sugar_crepe"},
    files=tuple(f"{part}.json" for part in PARTS),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_object,
)
