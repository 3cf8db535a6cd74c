"""NegBench (arXiv 2501.09425), multiple choice: which of four captions, some of them negated, is true of the image?

`{COCO_val,VOC2007,synthetic}_mcq_llama3.1_rephrased.csv`: `image_path, correct_answer, caption_0 ... caption_3,
correct_answer_template`. Images are looked for by the last part of their path. A part is file and template (positive,
negative, hybrid).
"""

from collections.abc import Iterator

from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record

_SOURCES = ("COCO_val", "VOC2007", "synthetic")


def items(record: Record) -> Iterator[Item]:
    """An image, its true caption and three others."""
    texts, right = [record.text(f"caption_{place}") for place in range(4)], record.number("correct_answer")
    if not 0 <= right < len(texts):
        raise record.refuse("correct_answer", right, f"0 to {len(texts) - 1}")
    wrong = [text for place, text in enumerate(texts) if place != right]
    part = f"{record.source.stem.partition('_mcq')[0]}_{record.word('correct_answer_template')}".lower()
    yield choose_text(record.id, record.link("image_path"), [texts[right]], wrong, part)


INFO = choice_benchmark(
    ChoiceReader(items),
    name="negbench",
    question="Which of four captions, some of them negated, is true of the image?",
    paper="Vision-Language Models Do Not Understand Negation, arXiv 2501.09425",
    licence="MIT; images under the licences of their data sets",
    size="multiple choice: 5,914 COCO, 5,032 VOC and 10,000 synthetic items",
    folders={"images": "negbench/images", "annotations": "negbench"},
    files=tuple(f"{source}_mcq_llama3.1_rephrased.csv" for source in _SOURCES),
    source="annotations: the links in the benchmark's public repository; images: COCO val2017, VOC2007, and theirs",
)
