"""ARO (arXiv 2210.01936): which of two captions fits a region of an image, and which order of the words an image?

`visual_genome_relation.json` and `visual_genome_attribution.json`: `[{"image_id", "image_path", "true_caption",
"false_caption", "bbox_x", "bbox_y", "bbox_w", "bbox_h", "relation_name" or "attributes", ...}]`, the form that the
published code reads. The image is cut to its box, as there. The published figure is `by_kind`, the mean over relations,
or over pairs of attributes with 25 items or more. The published notebook leaves symmetric relations out of it: those
that `symmetric_relations.txt`, beside the annotations, names one a line; without that file all relations count.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Bundle, Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

PARTS = {"visual_genome_relation": "relation", "visual_genome_attribution": "attribution"}
SYMMETRIC = "symmetric_relations.txt"
_LEAST_ATTRIBUTES = 25
_ALL_RELATIONS = (
    f"aro: By kind of relations is the published figure only where {SYMMETRIC}, beside the annotations, names the "
    "symmetric relations that the authors' notebook leaves out; without it all relations count"
)


def items(record: Record) -> Iterator[Item]:
    """The part of an image inside the box, its caption, and the one with words exchanged."""
    image = record.crop(record.image("image_path"), "bbox_x", "bbox_y", "bbox_w", "bbox_h")
    wrong = [record.text("false_caption")]
    part = PARTS[record.source.stem]
    if part == "relation":
        name = record.text("relation_name")
        bundles = [] if name in record.beside.get(SYMMETRIC, ()) else [Bundle("kind", name)]
    else:
        bundles = [Bundle("kind", "_".join(record.texts("attributes")[:2]), _LEAST_ATTRIBUTES)]
    yield choose_text(record.id, image, [record.text("true_caption")], wrong, part, bundles)


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline(
            "by_kind", "parts", "[ours] for the mean of both parts; each is the paper's number (arXiv 2210.01936)"
        ),
        parts=tuple(PARTS.values()),
        beside=(SYMMETRIC,),
        notes=(_ALL_RELATIONS,),
    ),
    name="aro",
    question="Is a caption of a region more similar to it than the same words with roles exchanged?",
    paper="When and Why Vision-Language Models Behave like Bags-of-Words, and What to Do About It?, arXiv 2210.01936",
    licence="annotations MIT; images Visual Genome (CC BY 4.0)",
    size="23,937 relations and 28,748 attributes",
    folders={"images": "aro/images", "annotations": "aro"},
    files=tuple(f"{name}.json" for name in PARTS),
    source="annotations and images: the links in the benchmark's public repository",
)
