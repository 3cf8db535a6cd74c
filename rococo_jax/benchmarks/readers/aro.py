"""ARO (arXiv 2210.01936): which of two captions describes a region of an image?

`visual_genome_relation.json` and `visual_genome_attribution.json`: `[{"image_id", "image_path", "true_caption",
"false_caption", "bbox_x", "bbox_y", "bbox_w", "bbox_h", "relation_name" or "attributes", ...}]`, the form that the
published code reads. As there, the image is cropped to its box. The published number is `by_kind`, the mean over
relations, or over pairs of attributes with at least 25 items. The published notebook excludes symmetric relations;
`symmetric_relations.txt`, beside the annotations, lists them, one per line. Without that file all relations count.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, ItemGroup, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

PARTS = {"visual_genome_relation": "relation", "visual_genome_attribution": "attribution"}
SYMMETRIC = "symmetric_relations.txt"
_MIN_ITEMS_OF_ATTRIBUTES = 25
_ALL_RELATIONS = (
    f"aro: by_kind of relations is the published number only if {SYMMETRIC}, beside the annotations, lists the "
    "symmetric relations that the authors' notebook excludes; without that file all relations count"
)


def items(record: Record) -> Iterator[Item]:
    """Yield the region of an image, its caption, and the caption with words exchanged."""
    image = record.crop(record.image("image_path"), "bbox_x", "bbox_y", "bbox_w", "bbox_h")
    wrong = [record.text("false_caption")]
    part = PARTS[record.source.stem]
    if part == "relation":
        name = record.text("relation_name")
        groups = [] if name in record.side_lines.get(SYMMETRIC, ()) else [ItemGroup("kind", name)]
    else:
        groups = [ItemGroup("kind", "_".join(record.texts("attributes")[:2]), _MIN_ITEMS_OF_ATTRIBUTES)]
    yield choose_text(record.id, image, [record.text("true_caption")], wrong, part, groups)


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline(
            "by_kind", "parts", "[ours] for the mean of both parts; each is the paper's number (arXiv 2210.01936)"
        ),
        parts=tuple(PARTS.values()),
        side_files=(SYMMETRIC,),
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
