"""Half-truths (arXiv 2602.23906): does adding one false detail to a true caption lower its score?

The authors' release: `data/{coco_qwen,coco_mistral,cc3m_qwen}.parquet` with `id, image, triplet_type, anchor,
half_truth, full_truth` and the images; or the same as JSON lines with paths, `coco_qwen.jsonl`. The authors' evaluation
script (github.com/kargibora/CS-CLIP, commit 6b064a0) reads both and defines the two scores. `triplet_type` is the kind
of the added detail, entity or relation. Ties are errors:

    HT     s(anchor) > s(half_truth)                    OTA of a file, and of `FILE_entity` and `FILE_relation`
    COR    s(full_truth) > s(anchor) > s(half_truth)    pairs of `FILE_order`: both comparisons are right

`mean` is the average over the three files [paper], `all` the accuracy over all items.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, ItemGroup, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

FILES = ("coco_qwen", "coco_mistral", "cc3m_qwen")
_KINDS = ("entity", "relation")


def items(record: Record) -> Iterator[Item]:
    """Yield comparisons of a short caption with the same caption plus a false and plus a true detail."""
    id, image = record.label("id"), record.image("image")
    file, kind = record.source.stem, record.label("triplet_type")
    if kind not in _KINDS:
        raise record.error("triplet_type", repr(kind), " or ".join(_KINDS))
    anchor, half, full = (record.text(field) for field in ("anchor", "half_truth", "full_truth"))
    for part in (file, f"{file}_{kind}"):
        yield choose_text(id, image, [anchor], [half], part)
    for side, right, wrong in (("half", anchor, half), ("full", full, anchor)):
        yield choose_text(f"{id} {side}", image, [right], [wrong], f"{file}_order", [ItemGroup("pair", id, 2)])


choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "average over the three files in the paper (arXiv 2602.23906)"),
        pooled=dict.fromkeys(FILES, "mean"),
    ),
    name="half_truths",
    question="Does a short true caption score higher than the same caption with one false detail added?",
    paper="Half-Truths Break Similarity-Based Retrieval, arXiv 2602.23906",
    licence="generated annotations CC BY 4.0; images and captions of COCO and CC3M under theirs",
    size="1,437 comparisons: 509, 454 and 474",
    folders={"images": "half_truths", "annotations": "half_truths"},
    files=(*(f"data/{file}.parquet" for file in FILES), *(f"{file}.jsonl" for file in FILES)),
    source="huggingface.co/datasets/kbora/Half-Truths, as it is",
)
