"""The What'sUp benchmark (arXiv 2310.19785): which preposition describes the image?

`controlled_images_dataset.json` and `controlled_clevr_dataset.json`: `[{"image_path", "caption_options": [right, three
wrong]}]`. `coco_qa_{one,two}_obj.json` and `vg_qa_{one,two}_obj.json`: `[[image id, right, wrong]]`, images
`val2017/ID.jpg` and `vg_images/ID.jpg`. These are the forms that the published code reads.

Controlled images are named FIRST_PREPOSITION_..._SECOND.jpeg. Four images of the same two objects are a set; left and
right are a pair, and so are the other two. As published, a pair or a set is correct if all its images are.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from rococo_jax.benchmarks.choices.items import Item, ItemGroup, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record
from rococo_jax.benchmarks.pooling import Headline

_PARTS = {"controlled_images_dataset": "controlled_a", "controlled_clevr_dataset": "controlled_b"}
_FROM = {"coco": "val2017/{:0>12}.jpg", "vg": "vg_images/{}.jpg"}
FILES = (*_PARTS, *(f"{source}_qa_{count}_obj" for source in _FROM for count in ("one", "two")))


def items(record: Record) -> Iterator[Item]:
    """Yield an image, its caption, and captions with other prepositions."""
    stem, groups = record.source.stem, []
    if stem in _PARTS:
        image, (right, *wrong) = record.image("image_path"), record.texts("caption_options")
        groups = _groups(image.file)
    else:
        image = record.image(0, _FROM[stem.partition("_")[0]])
        right, wrong = record.text(1), [record.text(2)]
    yield choose_text(record.id, image, [right], wrong, _PARTS.get(stem, stem), groups)


def _groups(file: str) -> list[ItemGroup]:
    """Return the pair and the set of a controlled image; none if its name is not of the published form."""
    first, *words = PurePosixPath(file).stem.split("_")
    if len(words) < 2:
        return []
    objects = f"{first} {words[-1]}"
    pair = "beside" if words[0] in ("left", "right") else "other"
    return [ItemGroup("pair", f"{objects} {pair}", 2), ItemGroup("set", objects, 4)]


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "parts", "[ours]: the paper has a number for each part (arXiv 2310.19785)"),
        parts=tuple(_PARTS.get(file, file) for file in FILES),
    ),
    name="whatsup",
    question="Which of two or four captions has the preposition that fits the image?",
    paper='What\'s "up" with vision-language models? Investigating their struggle with spatial reasoning, '
    "arXiv 2310.19785",
    licence="MIT; images of COCO and Visual Genome under theirs",
    size="820 controlled images with four captions; 2,687 COCO and 1,451 Visual Genome items with two",
    folders={"images": "whatsup", "annotations": "whatsup"},
    files=tuple(f"{name}.json" for name in FILES),
    source="the links in the benchmark's public repository",
)
