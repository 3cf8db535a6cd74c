"""ARO (arXiv 2210.01936), relations and attributes: which of two captions fits a region of an image?

`visual_genome_relation.json` and `visual_genome_attribution.json`: `[{"image_id", "image_path", "true_caption",
"false_caption", "bbox_x", "bbox_y", "bbox_w", "bbox_h", "relation_name" or "attributes", ...}]`, the form that the
published code reads. The image is cut to its box, as there. The published figure is a macro mean over relations, or
over pairs of attributes; here every item has the same weight.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

PARTS = {"visual_genome_relation": "relation", "visual_genome_attribution": "attribution"}


def items(record: Record) -> Iterator[Item]:
    """The part of an image inside the box, its caption, and the one with words exchanged."""
    image = record.crop(record.image("image_path"), "bbox_x", "bbox_y", "bbox_w", "bbox_h")
    wrong = [record.text("false_caption")]
    yield choose_text(record.id, image, [record.text("true_caption")], wrong, PARTS[record.source.stem])


INFO = choice_benchmark(
    ChoiceReader(items),
    name="aro",
    question="Is a caption of a region more similar to it than the same words with roles exchanged?",
    paper="When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?, arXiv 2210.01936",
    licence="annotations MIT; images Visual Genome (CC BY 4.0)",
    size="23,937 relations and 28,748 attributes",
    folders={"images": "aro/images", "annotations": "aro"},
    files=tuple(f"{name}.json" for name in PARTS),
    source="annotations and images: the links in the benchmark's public repository",
)
