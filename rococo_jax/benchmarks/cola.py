"""COLA (arXiv 2305.03689), several objects: two images whose objects exchange their attributes.

`COLA_multiobjects_matching_benchmark.json`: `[[link 1, caption 1, link 2, caption 2]]`; images are looked for by the
last part of the link. The published figure is the image score.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_pairs
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record


def items(record: Record) -> Iterator[Item]:
    """Two images and their captions."""
    images = [record.link(place) for place in (0, 2)]
    yield choose_pairs(record.id, images, [record.text(place) for place in (1, 3)], "multi_objects")


INFO = choice_benchmark(
    ChoiceReader(items, leads=("image_score",)),
    name="cola",
    question="Which of two captions with exchanged attributes belongs to which of two images?",
    paper="COLA: A Benchmark for Compositional Text-to-image Retrieval, arXiv 2305.03689",
    licence="MIT; images Visual Genome (CC BY 4.0)",
    size="210 items",
    folders={"images": "cola/images", "annotations": "cola"},
    files=("COLA_multiobjects_matching_benchmark.json",),
    source="annotations: the benchmark's public repository; images: the links in it",
)
