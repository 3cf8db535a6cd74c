"""NegBench (arXiv 2501.09425): multiple choice among captions, some of them negated; retrieval with a negation added.

Multiple choice: `{COCO_val,VOC2007,synthetic}_mcq_llama3.1_rephrased.csv`: `image_path, correct_answer, caption_0 ...
caption_3, correct_answer_template`. A part is a file and a template (positive, negative, hybrid); `coco_val`, `voc2007`
and `synthetic` are the published accuracies over all items of a file, and `all` is the accuracy over all files.

Retrieval: `COCO_val_retrieval.csv` and `COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv`: `filepath,
captions`, the captions as a Python list literal. The queries of variant `clean` are the original captions, those of
`negated` the captions with a negation; the images are the same. The published number is R@5 of text-to-image.

Images are named by the last part of their path.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, register
from rococo_jax.benchmarks.choices.items import Item, choose_text
from rococo_jax.benchmarks.choices.reader import ChoiceReader, choice_benchmark
from rococo_jax.benchmarks.choices.records import Record, read_records
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.rococo.benchmark import image_to_text, text_to_image, without_altered
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

_SOURCES, _TEMPLATES = ("COCO_val", "VOC2007", "synthetic"), ("positive", "negative", "hybrid")


def items(record: Record) -> Iterator[Item]:
    """Yield an image, its true caption and three others."""
    texts, right = [record.text(f"caption_{place}") for place in range(4)], record.number("correct_answer")
    if not 0 <= right < len(texts):
        raise record.error("correct_answer", right, f"0 to {len(texts) - 1}")
    wrong = [text for place, text in enumerate(texts) if place != right]
    part = f"{record.source.stem.partition('_mcq')[0]}_{record.label('correct_answer_template')}".lower()
    yield choose_text(record.id, record.link("image_path"), [texts[right]], wrong, part)


INFO = choice_benchmark(
    ChoiceReader(
        items,
        headline=Headline("ota", "items", "total_accuracy of a file in the authors' evaluation/mcq.py: right / all"),
        parts=tuple(f"{source}_{template}".lower() for source in _SOURCES for template in _TEMPLATES),
        file_of=lambda part: part.rpartition("_")[0],
    ),
    name="negbench",
    question="Which of four captions, some of them negated, is true of the image?",
    paper="Vision-Language Models Do Not Understand Negation, arXiv 2501.09425",
    licence="MIT; images under the licences of their data sets",
    size="multiple choice: 5,914 COCO, 5,032 VOC and 10,000 synthetic items",
    folders={"images": "negbench/images", "annotations": "negbench"},
    files=tuple(f"{source}_mcq_llama3.1_rephrased.csv" for source in _SOURCES),
    source="annotations: the links in the benchmark's public repository; images: COCO val2017, VOC2007, and theirs",
)

_RETRIEVAL_HEADLINE = Headline(
    "r5", "items", "text-to-image R@5 with negated captions in the paper (arXiv 2501.09425)", "negated"
)
VARIANTS = {
    "clean": "COCO_val_retrieval.csv",
    "negated": "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv",
}
RETRIEVAL = "negbench_retrieval"
TASKS = ("negbench_text_to_image", "negbench_image_to_text")


def _image_names(annotations: Path) -> Iterator[str]:
    return (record.link("filepath").file for record in read_records(annotations / VARIANTS["clean"])[1])


def _open(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    captions, hashes = {}, {}
    for variant, file in VARIANTS.items():
        hashes[variant], records = read_records(folders["annotations"] / file)
        captions[variant] = of_images = {}
        for record in records:
            image = record.link("filepath").file
            if image in of_images:
                raise record.error("filepath", f"{image} twice", "one line for each image")
            of_images[image] = record.texts("captions")
    clean, negated = captions.values()
    if clean.keys() != negated.keys():
        one = sorted(clean.keys() ^ negated.keys())[0]
        source = folders["annotations"] / VARIANTS["clean" if one in negated else "negated"]
        raise InputError(source, "images", f"no line of {one}", "the same images in both files")
    originals, excluded, data = open_images(folders["images"], list(clean), settings)
    texts: dict[str, int] = {}
    image_row = {image: row for row, image in enumerate(originals.names)}
    tasks = []
    for variant, of_images in captions.items():
        items = without_altered(CaptionedImage(image, of_images[image]) for image in originals.names)
        to_text = image_to_text(
            variant, items, image_row, lambda text: texts.setdefault(text, len(texts)), settings.protocol == "strict"
        )
        for name, task in zip(TASKS, (text_to_image(to_text), to_text), strict=True):
            if settings.wants(name):
                tasks.append(dataclasses.replace(task, name=name))
    data |= {"annotations": str(folders["annotations"].resolve()), "caption_count": len(texts)}
    conditions = {"captions": hashes, "images": hash_json(dict(zip(originals.names, originals.hashes, strict=True)))}
    return Benchmark(
        RETRIEVAL,
        originals.names,
        tuple(texts),
        {ORIGINALS: originals},
        tuple(tasks),
        (),
        data,
        conditions,
        excluded=excluded,
        headline=_RETRIEVAL_HEADLINE,
    )


register(BenchmarkInfo(
    name=RETRIEVAL,
    question="Does a caption that also names an absent object retrieve its image, and the image the caption?",
    paper="Vision-Language Models Do Not Understand Negation, arXiv 2501.09425",
    licence="MIT; COCO captions CC BY 4.0; images under their Flickr licences",
    size="5,000 images of COCO val2017, about five captions each, plain and with a negation",
    folders={"images": "negbench/images", "annotations": "negbench"},
    files=tuple(VARIANTS.values()),
    source="annotations: the links in the benchmark's public repository; images: COCO val2017",
    tasks=TASKS,
    open=_open,
    image_names=_image_names,
    headline=_RETRIEVAL_HEADLINE,
))  # fmt: skip
