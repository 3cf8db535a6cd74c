"""MMVP-VLM (arXiv 2401.06209): pairs of images that CLIP finds alike, with a statement each, in nine visual patterns.

`Questions.csv`: `Question ID, Type, Statement`, two lines in a row a pair; images `TYPE/ID.jpg`, as in the published
archive. The published figure is the image score: each statement prefers its own image.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, read_records


def records(path: Path) -> tuple[str, Iterator[Record]]:
    """Two lines as one record of a list."""
    content, lines = read_records(path)
    pairs = itertools.zip_longest(lines, lines)
    return content, (Record(path, one.id, [one, other]) for one, other in pairs)


def items(record: Record) -> Iterator[Item]:
    """Two images and their statements."""
    one, other = record.value
    if other is None or one.word("Type") != other.word("Type"):
        raise one.refuse("Type", "no second line of its type", "two lines in a row a pair")
    kind = one.word("Type")
    folder = kind.replace("{", "{{").replace("}", "}}")
    images = [each.image("Question ID", folder + "/{}.jpg") for each in (one, other)]
    part = "_".join(kind.lower().replace("&", "and").split())
    yield choose_pairs(one.word("Question ID"), images, [one.text("Statement"), other.text("Statement")], part)


INFO = choice_benchmark(
    ChoiceReader(items, records, leads=("image_score",)),
    name="mmvp",
    question="Does each statement prefer its own of two images that CLIP finds alike?",
    paper="Eyes Wide Shut? Exploring the Visual Shortcomings of Multimodal LLMs, arXiv 2401.06209",
    licence="MIT",
    size="135 items in 9 parts",
    folders={"images": "mmvp/MLLM_VLM Images", "annotations": "mmvp"},
    files=("Questions.csv",),
    source="huggingface.co/datasets/MMVP/MMVP_VLM",
)
