"""Benchmarks with several images for each text: SVO-Probes and ImageCoDe.

SVO-Probes (arXiv 2106.09141): which of two images shows a sentence's subject, verb and object?

`svo_probes.csv`: `sentence, pos_image_id, neg_image_id, subj_neg, verb_neg, obj_neg, ...`; images `ID.jpg`. The part is
the word that the other image does not show. Some links of the published list no longer work; with
`allow_missing_images`, items without both images are left out.

ImageCoDe (arXiv 2203.15867): which of ten similar images does the description match?

`test_data.json`, `valid_data.json`: `{set: {place: description}}`; images `SET/img0.jpg` to `img9.jpg`, the published
form. As in the paper, sets of photographs (`open-images-...`) and sets of video frames are two parts.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, Picture, choose_image
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

_PARTS = {"subj_neg": "subject", "verb_neg": "verb", "obj_neg": "object"}
_IMAGES = 10


def svo_items(record: Record) -> Iterator[Item]:
    """Yield a sentence, its image, and an image with another subject, verb or object."""
    wrong = [name for field, name in _PARTS.items() if record.label(field).lower() in ("true", "1")]
    if len(wrong) != 1:
        raise record.error(", ".join(_PARTS), f"{len(wrong)} that are true", "one of them true")
    right, other = (record.image(f"{side}_image_id", "{}.jpg") for side in ("pos", "neg"))
    yield choose_image(record.id, record.text("sentence"), right, [other], wrong[0])


def imagecode_items(record: Record) -> Iterator[Item]:
    """Yield the descriptions of one set of images."""
    folder = Record(record.source, record.id, {"set": record.id}).image("set")
    images = [Picture(f"{folder.file}/img{place}.jpg") for place in range(_IMAGES)]
    kind = "static" if "open-images" in record.id else "video"
    for place in record.value if isinstance(record.value, dict) else [None]:
        right = Record(record.source, record.id, {"place": place}).number("place")
        if not 0 <= right < _IMAGES:
            raise record.error("place", right, f"0 to {_IMAGES - 1}")
        wrong = [image for image in images if image != images[right]]
        yield choose_image(f"{record.id}/{right}", record.text(place), images[right], wrong, kind)


choice_benchmark(
    ChoiceReader(
        svo_items,
        headline=Headline("image_score", "items", "overall accuracy of the paper (arXiv 2106.09141)"),
        parts=tuple(_PARTS.values()),
    ),
    name="svo_probes",
    question="Which of two images shows a sentence's subject, verb and object?",
    paper="Probing Image-Language Transformers for Verb Understanding, arXiv 2106.09141",
    licence="annotations CC BY 4.0; images under their owners' licences",
    size="36,841 items in 3 parts, as far as the links live",
    folders={"images": "svo_probes/images", "annotations": "svo_probes"},
    files=("svo_probes.csv",),
    source="annotations: the benchmark's public repository; images: the links in it, saved as ID.jpg",
)
choice_benchmark(
    ChoiceReader(
        imagecode_items,
        headline=Headline(
            "image_score", "items", "OVERALL ACC of github.com/McGill-NLP/imagecode, baselines/clip/zero_shot.py"
        ),
        parts=("static", "video"),
    ),
    name="imagecode",
    question="Which of ten similar images does the description match?",
    paper="Image Retrieval from Contextual Descriptions, arXiv 2203.15867",
    licence="annotations MIT; images under the licences of their data sets",
    size="2,302 descriptions in each of validation and test, with ten images each",
    folders={"images": "imagecode/image-sets", "annotations": "imagecode"},
    files=("valid_data.json",),
    source="the links in the benchmark's public repository; the test split has no public answers",
)
