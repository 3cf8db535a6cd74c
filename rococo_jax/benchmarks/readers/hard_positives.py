"""REPLACE and SWAP of The Hard Positive Truth (arXiv 2409.17958): do a caption and a hard positive beat a negative?

REPLACE: `data/vl_checklist_{relations,attributes}.json` hold (caption, hard negative), `swapped_data/` of the same name
(hard positive, the same hard negative), in the same order: `[{"image_id", "true_caption", "false_caption",
"image_path"}]`. SWAP: `visual_genome_attribution.json` in both, with a box that the image is cropped to. `replace` is
the mean of relations and attributes, `replace/all` the accuracy over all their items. Without a folder of images, only
the texts are compared (TOT).
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, read_records
from rococo_jax.benchmarks.pooling import Headline, HumanResults
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

PARTS = {
    "vl_checklist_relations": "replace_relations",
    "vl_checklist_attributes": "replace_attributes",
    "visual_genome_attribution": "swap",
}
_SHARED_FIELDS = ("image_path", "false_caption", "bbox_x", "bbox_y", "bbox_w", "bbox_h")


def records(path: Path) -> tuple[str, Iterator[Record]]:
    """Read the records of a file of `data/`, each with its hard positive from `swapped_data/`."""
    positive_path = path.parent.parent / "swapped_data" / path.name
    caption_hash, caption_records = read_records(path)
    positive_hash, positive_records = read_records(positive_path)
    captions, positives = list(caption_records), list(positive_records)
    if len(captions) != len(positives):
        raise InputError(positive_path, "items", len(positives), f"{len(captions)}, as in {path}")
    return hash_json([caption_hash, positive_hash]), map(_with_positive, captions, positives)


def _with_positive(record: Record, positive: Record) -> Record:
    record.text("true_caption")
    for field in _SHARED_FIELDS:
        if record.value.get(field) != positive.value.get(field):
            found = f"{positive.value.get(field)!r} where the other file has {record.value.get(field)!r}"
            raise positive.error(field, found[:120], "the same in both files")
    return dataclasses.replace(record, value={**record.value, "hard_positive": positive.text("true_caption")})


def items(record: Record) -> Iterator[Item]:
    """Yield an image or its region with its caption, the hard positive and the hard negative."""
    image = record.image("image_path")
    if "bbox_x" in record.value:
        image = record.crop(image, "bbox_x", "bbox_y", "bbox_w", "bbox_h")
    right = (record.text("true_caption"), record.text("hard_positive"))
    yield choose_text(record.id, image, right, [record.text("false_caption")], PARTS[record.source.stem])


INFO = choice_benchmark(
    ChoiceReader(
        items,
        records,
        headline=Headline("ata", "parts", "REPLACE of the paper's tables (arXiv 2409.17958)", "replace"),
        parts=tuple(PARTS.values()),
        pooled={"replace_relations": "replace", "replace_attributes": "replace"},
        works_without_images=True,
    ),
    name="hard_positives",
    question="Does a change of words that keeps the meaning keep a caption above one that changes it?",
    paper="The Hard Positive Truth about Vision-Language Compositionality, arXiv 2409.17958",
    licence="no licence stated; texts after VL-CheckList and Visual Genome (CC BY 4.0)",
    size="REPLACE: 16,868 relations and 10,575 attributes; SWAP: 28,748 items",
    folders={"images": "visual_genome", "annotations": "hard_positives"},
    files=tuple(f"data/{stem}.json" for stem in PARTS),
    source="annotations: the benchmark's public repository; images: Visual Genome, `data/VG_100K*/ID.jpg`",
    humans=(
        HumanResults(
            {"replace": {"ata": 99.0}, "swap": {"ata": 99.0}},
            items="one number for REPLACE and SWAP",
            source="abstract of arXiv 2409.17958",
        ),
    ),
)
