"""ColorSwap (arXiv 2402.04492): two images and two captions that exchange their colours.

`data/test-*.parquet`, the published data set, which holds its images; or `test.json`, `[{"id", "image_1", "caption_1",
"image_2", "caption_2", ...}]`, with images as paths.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record


def items(record: Record) -> Iterator[Item]:
    """Two images and their captions."""
    images = [record.image(f"image_{place}") for place in (1, 2)]
    texts = [record.text(f"caption_{place}") for place in (1, 2)]
    yield choose_pairs(record.word("id"), images, texts, "all")


INFO = choice_benchmark(
    ChoiceReader(items),
    name="colorswap",
    question="Which of two captions with exchanged colours belongs to which of two images?",
    paper="ColorSwap: A Color and Word Order Dataset for Multimodal Evaluation, arXiv 2402.04492",
    licence="MIT",
    size="300 items in the test split",
    folders={"images": "colorswap", "annotations": "colorswap"},
    files=("test.json", "data/test-*.parquet", "test*.parquet"),
    source="huggingface.co/datasets/stanfordnlp/colorswap, as it is, or its images unpacked into files",
)
