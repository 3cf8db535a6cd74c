"""BiVLC (arXiv 2406.09952): SugarCrepe's captions with a made image for each false one; both directions are asked.

`data/test-*.parquet`, the published data set, which holds its images: `image, caption, negative_image,
negative_caption, type, subtype`; or `test.jsonl` with the same fields and images as paths. A part is type and subtype.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record


def items(record: Record) -> Iterator[Item]:
    """A photograph, a made image, and their captions."""
    images = [record.image(name) for name in ("image", "negative_image")]
    texts = [record.text(name) for name in ("caption", "negative_caption")]
    yield choose_pairs(record.id, images, texts, f"{record.word('type')}_{record.word('subtype')}".lower())


INFO = choice_benchmark(
    ChoiceReader(items),
    name="bivlc",
    question="Do a photograph and an image made for a false caption find their own captions, and the captions them?",
    paper="BiVLC: Extending Vision-Language Compositionality Evaluation with Text-to-Image Retrieval, arXiv 2406.09952",
    licence="MIT",
    size="2,933 items",
    folders={"images": "bivlc", "annotations": "bivlc"},
    files=("test.jsonl", "data/test-*.parquet", "test*.parquet"),
    source="huggingface.co/datasets/imirandam/BiVLC, as it is, or its images unpacked into files",
)
