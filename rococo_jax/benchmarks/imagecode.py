"""ImageCoDe (arXiv 2203.15867): which of ten similar images does the description mean?

`test_data.json`, `valid_data.json`: `{set: {place: description}}`; images `SET/img0.jpg` to `img9.jpg`, the published
form. Sets of photographs (`open-images-...`) are a part beside those of video frames, as in the paper.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, Picture, choose_image
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

_IMAGES = 10


def items(record: Record) -> Iterator[Item]:
    """The descriptions of one set of images."""
    folder = Record(record.source, record.id, {"set": record.id}).image("set")
    images = [Picture(f"{folder.file}/img{place}.jpg") for place in range(_IMAGES)]
    kind = "static" if "open-images" in record.id else "video"
    for place in record.value if isinstance(record.value, dict) else [None]:
        right = Record(record.source, record.id, {"place": place}).number("place")
        if not 0 <= right < _IMAGES:
            raise record.refuse("place", right, f"0 to {_IMAGES - 1}")
        others = [image for image in images if image != images[right]]
        yield choose_image(f"{record.id}/{right}", record.text(place), images[right], others, kind)


INFO = choice_benchmark(
    ChoiceReader(items),
    name="imagecode",
    question="Which of ten similar images does the description mean?",
    paper="Image Retrieval from Contextual Descriptions, arXiv 2203.15867",
    licence="annotations MIT; images under the licences of their data sets",
    size="2,302 descriptions in each of validation and test, with ten images each",
    folders={"images": "imagecode/image-sets", "annotations": "imagecode"},
    files=("valid_data.json",),
    source="the links in the benchmark's public repository; the test split has no public answers",
)
