"""VALSE (arXiv 2112.07566): is the caption more similar to its image than a foil, in eleven parts?

`PART.json`: `{id: {"image_file", "caption", "foil", "mturk": {"caption": votes, ...}, ...}}`. By the benchmark's rule,
an item is valid if at least two of three annotators chose the caption. The images are from several data sets; all are
expected in one folder.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

FILES = (
    *("existence", "plurals", "counting-hard", "counting-small-quant", "counting-adversarial", "relations"),
    *("action-replacement", "actant-swap", "coreference-standard", "coreference-hard", "foil-it"),
)
_VOTES = 2


def items(record: Record) -> Iterator[Item]:
    """Yield an image, its caption and the foil; nothing if the annotators did not agree."""
    image, caption, foil = record.image("image_file"), record.text("caption"), record.text("foil")
    if record.child("mturk").number("caption") >= _VOTES:
        yield choose_text(record.id, image, [caption], [foil], _part(record.source.stem))


def _part(file: str) -> str:
    return file.replace("-", "_")


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "average over the eleven parts in the paper (arXiv 2112.07566)"),
        parts=tuple(map(_part, FILES)),
    ),
    name="valse",
    question="Is a caption more similar to its image than a foil of one linguistic phenomenon?",
    paper="VALSE: A Task-Independent Benchmark for Vision and Language Models Centered on Linguistic Phenomena, "
    "arXiv 2112.07566",
    licence="annotations MIT; images under the licences of their data sets",
    size="8,782 items in 11 parts, those with two votes or more valid",
    folders={"images": "coco/images", "annotations": "valse"},
    files=tuple(f"{name}.json" for name in FILES),
    source="annotations: the benchmark's public repository; images: COCO (fetched: plurals, relations, foil-it); "
    "Visual7W (existence, counting), SWiG (actions) and VisDial (coreference) by hand",
)
