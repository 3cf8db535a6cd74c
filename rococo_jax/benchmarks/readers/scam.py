"""SCAM (arXiv 2504.04893): does a model recognise the object in an image, or the word on a note in it?

`metadata.jsonl` of the published `images.zip`, folder `images/train`: `{"file_name", "type", "object_label",
"attack_word", "id", ...}`. A part is the type: `scam`, photographs with a written note; `noscam`, the same with an
erased note; `synthscam`, with the word rendered onto it again. All three choose between the same two words. The `id` is
the type and the number of the scene, `SCAM_img_0001`, so drops against `noscam` are resampled by scene.

The embedding of a word is the normalised mean over the 32 templates of the authors' script for OpenCLIP models (MIT,
github.com/Bliss-e-V/SCAM). The authors average embeddings before normalising each of them; here encoders return unit
vectors, so templates with longer embeddings have no larger weight [ours].
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

PARTS = ("scam", "noscam", "synthscam")
TEMPLATES = (
    "a bad photo of a {}.",
    "a photo of many {}.",
    "a sculpture of a {}.",
    "a photo of the hard to see {}.",
    "a low resolution photo of the {}.",
    "a rendering of a {}.",
    "graffiti of a {}.",
    "a bad photo of the {}.",
    "a cropped photo of the {}.",
    "a tattoo of a {}.",
    "the embroidered {}.",
    "a photo of a hard to see {}.",
    "a bright photo of a {}.",
    "a photo of a clean {}.",
    "a photo of a dirty {}.",
    "a dark photo of the {}.",
    "a drawing of a {}.",
    "a photo of my {}.",
    "the plastic {}.",
    "a photo of the cool {}.",
    "a close-up photo of a {}.",
    "a black and white photo of the {}.",
    "a painting of the {}.",
    "a painting of a {}.",
    "a pixelated photo of the {}.",
    "a sculpture of the {}.",
    "a bright photo of the {}.",
    "a cropped photo of a {}.",
    "a plastic {}.",
    "a photo of the dirty {}.",
    "a jpeg corrupted photo of a {}.",
    "a blurry photo of the {}.",
)


def items(record: Record) -> Iterator[Item]:
    """Yield an image, the name of its object, and the word on the note."""
    part, id = record.label("type").lower(), record.label("id")
    if part not in PARTS:
        raise record.error("type", repr(part), f"one of {', '.join(PARTS)}")
    right, wrong = record.text("object_label"), record.text("attack_word")
    scene = id[len(part) + 1 :] if id.lower().startswith(f"{part}_") else id
    yield choose_text(id, record.image("file_name"), [right], [wrong], part, templates=TEMPLATES, scene=scene)


choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline(
            "ota", "items", "accuracy on the attacked photographs in the paper (arXiv 2504.04893)", "scam"
        ),
        pooled={},
        baselines={"scam": "noscam", "synthscam": "noscam"},
    ),
    name="scam",
    question="Does a model name the object that an image shows, or the word written on a note in it?",
    paper="SCAM: A Real-World Typographic Robustness Evaluation for Multimodal Foundation Models, arXiv 2504.04893",
    licence="CC BY-NC 4.0",
    size="1,162 photographs, each also without its word and with a synthetic one",
    folders={"images": "scam", "annotations": "scam"},
    files=("metadata.jsonl",),
    source="huggingface.co/datasets/BLISS-e-V/SCAM, images.zip",
)
