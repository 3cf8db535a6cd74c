"""SugarCrepe++ (arXiv 2406.11171): are both of two true captions more similar to the image than the false one?

Five parts, `PART.json`: `[{"id", "filename", "caption", "caption2", "negative_caption"}]`. ITT is ATA; TOT compares the
texts alone.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_list

PARTS = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")


def items(record: Record) -> Iterator[Item]:
    """One image, its caption, the same in other words, and a false one."""
    right, wrong = (record.text("caption"), record.text("caption2")), record.text("negative_caption")
    yield choose_text(record.word("id"), record.image("filename"), right, [wrong], record.source.stem)


INFO = choice_benchmark(
    ChoiceReader(items, leads=("itt", "tot")),
    name="sugarcrepe_pp",
    question="Are a caption and its paraphrase both more similar to the image than a false caption?",
    paper="SUGARCREPE++: Vision-Language Model Sensitivity to Semantic and Lexical Alterations, arXiv 2406.11171",
    licence="annotations CC BY 4.0; images under their Flickr licences",
    size="4,757 items in 5 parts",
    folders={"images": "coco/images", "annotations": "sugarcrepe_pp"},
    files=tuple(f"{part}.json" for part in PARTS),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_list,
)
