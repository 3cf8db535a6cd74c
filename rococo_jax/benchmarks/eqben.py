"""EqBen (arXiv 2303.14465): two images with the smallest visual change, and their captions.

`private_info_global.json` (all) or `eqben_subset_10percent_final.json`: `[{"image0", "caption0", "image1", "caption1",
...}]`, the form that the published code reads. A part is the first folder of the image's path.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record


def items(record: Record) -> Iterator[Item]:
    """Two images and their captions."""
    images = [record.image(f"image{place}") for place in (0, 1)]
    texts = [record.text(f"caption{place}") for place in (0, 1)]
    yield choose_pairs(record.id, images, texts, images[0].file.partition("/")[0])


INFO = choice_benchmark(
    ChoiceReader(items),
    name="eqben",
    question="Do similarities follow a minimal visual change: which of two captions belongs to which image?",
    paper="Equivariant Similarity for Vision-Language Foundation Models, arXiv 2303.14465",
    licence="Apache-2.0; frames of videos under the licences of their data sets",
    size="250,612 items; the subset has a tenth",
    folders={"images": "eqben/images", "annotations": "eqben"},
    files=("private_info_global.json", "eqben_subset_10percent_final.json"),
    source="the links in the benchmark's public repository; frames stored as .npy must be saved as image files",
)
