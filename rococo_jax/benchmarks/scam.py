"""SCAM (arXiv 2504.04893): is it what an image shows, or the word on a note in it?

`metadata.jsonl` of the published `images.zip`, folder `images/train`: `{"file_name", "type", "object_label",
"attack_word", "id", ...}`. A part is the type: `scam`, photographs of a written note; `noscam`, the same with the note
wiped; `synthscam`, the word put on it again by a program. All three ask between the same two words.

The text of a word is `a photo of a WORD`. The published code takes the mean vector of 32 templates instead, so its
figures are others than these [ours].
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

PARTS = ("scam", "noscam", "synthscam")


def items(record: Record) -> Iterator[Item]:
    """An image, what it shows, and the word on it."""
    part = record.word("type").lower()
    if part not in PARTS:
        raise record.refuse("type", repr(part), f"one of {', '.join(PARTS)}")
    right, wrong = (f"a photo of a {record.text(field)}" for field in ("object_label", "attack_word"))
    yield choose_text(record.word("id"), record.image("file_name"), [right], [wrong], part)


choice_benchmark(
    ChoiceReader(items, pooled={}),
    name="scam",
    question="Is it the object that an image shows, or the word written on a note in it?",
    paper="SCAM: A Real-World Typographic Robustness Evaluation for Multimodal Foundation Models, arXiv 2504.04893",
    licence="CC BY-NC 4.0",
    size="1,162 photographs, each also without its word and with a made one",
    folders={"images": "scam", "annotations": "scam"},
    files=("metadata.jsonl",),
    source="huggingface.co/datasets/BLISS-e-V/SCAM, images.zip",
)
