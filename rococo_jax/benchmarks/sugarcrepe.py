"""SugarCrepe and SugarCrepe++: is a true caption more similar to its image than a fluent false one?

SugarCrepe (arXiv 2306.14610): seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy
is OTA; `all` counts all items alike, as the average of the paper's table does, and `mean` is the mean over the parts.

SugarCrepe++ (arXiv 2406.11171): five parts, `PART.json`: `[{"id", "filename", "caption", "caption2",
"negative_caption"}]`. ITT is ATA; TOT compares the texts alone.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, holds_list, holds_object
from rococo_jax.benchmarks.pooling import Headline


def items(record: Record) -> Iterator[Item]:
    """One image, its caption and a false one."""
    image, right = record.image("filename"), record.text("caption")
    yield choose_text(record.id, image, [right], [record.text("negative_caption")], record.source.stem)


def items_pp(record: Record) -> Iterator[Item]:
    """One image, its caption, the same in other words, and a false one."""
    right, wrong = (record.text("caption"), record.text("caption2")), record.text("negative_caption")
    yield choose_text(record.word("id"), record.image("filename"), right, [wrong], record.source.stem)


PARTS_PP = ("replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
PARTS = ("add_att", "add_obj", *PARTS_PP)
INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "items", "average of the paper's table (github.com/RAIVNLab/sugar-crepe, issue 3)"),
        parts=PARTS,
    ),
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

choice_benchmark(
    ChoiceReader(
        items_pp,
        headline=Headline("itt", "parts", "[ours]: the paper has a number for each part (arXiv 2406.11171)"),
        leads=("tot",),
        parts=PARTS_PP,
    ),
    name="sugarcrepe_pp",
    question="Are a caption and its paraphrase both more similar to the image than a false caption?",
    paper="SUGARCREPE++: Vision-Language Model Sensitivity to Semantic and Lexical Alterations, arXiv 2406.11171",
    licence="annotations CC BY 4.0; images under their Flickr licences",
    size="4,757 items in 5 parts",
    folders={"images": "coco/images", "annotations": "sugarcrepe_pp"},
    files=tuple(f"{part}.json" for part in PARTS_PP),
    source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
    holds=holds_list,
)
