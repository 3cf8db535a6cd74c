"""SVO-Probes (arXiv 2106.09141): which of two images shows a sentence's subject, verb and object?

`svo_probes.csv`: `sentence, pos_image_id, neg_image_id, subj_neg, verb_neg, obj_neg, ...`; images `ID.jpg`. A part is
what is wrong in the other image. Links of the published list die; items without both images are left out with
`allow_missing_images`.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_image
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

_PARTS = {"subj_neg": "subject", "verb_neg": "verb", "obj_neg": "object"}


def items(record: Record) -> Iterator[Item]:
    """A sentence, its image, and one with another subject, verb or object."""
    wrong = [name for field, name in _PARTS.items() if record.word(field).lower() in ("true", "1")]
    if len(wrong) != 1:
        raise record.refuse(", ".join(_PARTS), f"{len(wrong)} that are true", "one of them true")
    right, other = (record.image(f"{side}_image_id", "{}.jpg") for side in ("pos", "neg"))
    yield choose_image(record.id, record.text("sentence"), right, [other], wrong[0])


INFO = choice_benchmark(
    ChoiceReader(items),
    name="svo_probes",
    question="Which of two images shows a sentence's subject, verb and object?",
    paper="Probing Image-Language Transformers for Verb Understanding, arXiv 2106.09141",
    licence="annotations CC BY 4.0; images under their owners' licences",
    size="36,841 items in 3 parts, as far as the links live",
    folders={"images": "svo_probes/images", "annotations": "svo_probes"},
    files=("svo_probes.csv",),
    source="annotations: the benchmark's public repository; images: the links in it, saved as ID.jpg",
)
