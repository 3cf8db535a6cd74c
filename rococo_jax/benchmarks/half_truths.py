"""Half-truths (arXiv 2602.23906): does a wrong detail that is added to a right caption lower its score?

The release of its authors: `data/{coco_qwen,coco_mistral,cc3m_qwen}.parquet`, `id, image, triplet_type, anchor,
half_truth, full_truth`, with the images inside; or the same as JSON lines with paths, `coco_qwen.jsonl`, which the
published code reads too. `triplet_type` is what was added, an entity or a relation. Ties are errors:

    HT     s(anchor) > s(half_truth)                    OTA of a file, and of `FILE_entity` and `FILE_relation`
    COR    s(full_truth) > s(anchor) > s(half_truth)    the pairs of `FILE_order`, whose two comparisons are both right

`mean` is the published average over the three files. The paper's image side (which of several images that share parts)
is drawn from COCO by its code, not released as data, and not here.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Bundle, Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

FILES = ("coco_qwen", "coco_mistral", "cc3m_qwen")
_KINDS = ("entity", "relation")


def items(record: Record) -> Iterator[Item]:
    """An image, a short caption, the same with a wrong detail, and the same with a right one."""
    id, image, file, kind = record.word("id"), record.image("image"), record.source.stem, record.word("triplet_type")
    if kind not in _KINDS:
        raise record.refuse("triplet_type", repr(kind), " or ".join(_KINDS))
    anchor, half, full = (record.text(field) for field in ("anchor", "half_truth", "full_truth"))
    for part in (file, f"{file}_{kind}"):
        yield choose_text(id, image, [anchor], [half], part)
    for side, right, wrong in (("half", anchor, half), ("full", full, anchor)):
        yield choose_text(f"{id} {side}", image, [right], [wrong], f"{file}_order", [Bundle("pair", id, 2)])


choice_benchmark(
    ChoiceReader(items, pooled=dict.fromkeys(FILES, "mean")),
    name="half_truths",
    question="Does a short right caption score higher than the same with one wrong detail added?",
    paper="Half-Truths Break Similarity-Based Retrieval, arXiv 2602.23906",
    licence="generated annotations CC BY 4.0; images and captions of COCO and CC3M under theirs",
    size="1,437 comparisons: 509, 454 and 474",
    folders={"images": "half_truths", "annotations": "half_truths"},
    files=(*(f"data/{file}.parquet" for file in FILES), *(f"{file}.jsonl" for file in FILES)),
    source="huggingface.co/datasets/kbora/Half-Truths, as it is",
)
