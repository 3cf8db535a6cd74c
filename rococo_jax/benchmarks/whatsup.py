"""What'sUp (arXiv 2310.19785): which preposition fits the image?

`controlled_images_dataset.json` and `controlled_clevr_dataset.json`: `[{"image_path", "caption_options": [right, three
wrong]}]`. `coco_qa_{one,two}_obj.json` and `vg_qa_{one,two}_obj.json`: `[[image id, right, wrong]]`, images
`val2017/ID.jpg` and `vg_images/ID.jpg`. The forms that the published code reads; its pair and set accuracies are not
made here.
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

_PARTS = {"controlled_images_dataset": "controlled_a", "controlled_clevr_dataset": "controlled_b"}
_FROM = {"coco": "val2017/{:0>12}.jpg", "vg": "vg_images/{}.jpg"}
FILES = (*_PARTS, *(f"{source}_qa_{count}_obj" for source in _FROM for count in ("one", "two")))


def items(record: Record) -> Iterator[Item]:
    """An image, its caption, and others with another preposition."""
    stem = record.source.stem
    if stem in _PARTS:
        image, (right, *wrong) = record.image("image_path"), record.texts("caption_options")
    else:
        image = record.image(0, _FROM[stem.partition("_")[0]])
        right, wrong = record.text(1), [record.text(2)]
    yield choose_text(record.id, image, [right], wrong, _PARTS.get(stem, stem))


INFO = choice_benchmark(
    ChoiceReader(items),
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
