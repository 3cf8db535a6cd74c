"""NegBench (arXiv 2501.09425), retrieval: does a caption with a negation added still find its image?

`COCO_val_retrieval.csv` and `COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv`: `filepath, captions`, the
captions as a list literal of Python. Images are looked for by the last part of their path. Variant `clean` asks with
the original captions, `negated` with the others, among the same images; the published figure is R@5 of text-to-image.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, partial_note, register
from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

VARIANTS = {
    "clean": "COCO_val_retrieval.csv",
    "negated": "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv",
}
TASKS = ("negbench_text_to_image", "negbench_image_to_text")


def _open(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    captions, hashes = {}, {}
    for variant, file in VARIANTS.items():
        hashes[variant], records = read_records(folders["annotations"] / file)
        captions[variant] = of_images = {}
        for record in records:
            image = record.link("filepath").file
            if image in of_images:
                raise record.refuse("filepath", f"{image} twice", "one line an image")
            of_images[image] = record.texts("captions")
    clean, negated = captions.values()
    if clean.keys() != negated.keys():
        one = sorted(clean.keys() ^ negated.keys())[0]
        source = folders["annotations"] / VARIANTS["clean" if one in negated else "negated"]
        raise InputError(source, "images", f"no line of {one}", "the same images in both files")
    originals, missing, data = open_images(folders["images"], list(clean), settings)
    texts: dict[str, int] = {}
    every, tasks = np.arange(len(originals)), []
    for variant, of_images in captions.items():
        kept = [(row, text) for row, image in enumerate(originals.names) for text in of_images[image]]
        group = np.array([row for row, _ in kept])
        rows = Rows.of(TEXTS, np.array([texts.setdefault(text, len(texts)) for _, text in kept]))
        images, ties = Rows.of(ORIGINALS, every), "pessimistic" if settings.protocol == "strict" else "published"
        for task, sides in zip(TASKS, ((rows, images, group, every), (images, rows, every, group)), strict=True):
            if settings.wants(task):
                none = np.zeros(len(sides[1]), bool)
                tasks.append(RankTask(task, variant, *sides, none, ties))
    notes = [partial_note(len(originals), len(clean))] if missing else []
    data |= {"annotations": str(folders["annotations"].resolve()), "caption_count": len(texts)}
    decides = {"captions": hashes, "images": hash_json(dict(zip(originals.names, originals.hashes, strict=True)))}
    decides["tasks"] = [task for task in TASKS if settings.wants(task)]
    sets = {ORIGINALS: originals}
    return Benchmark(INFO.name, originals.names, tuple(texts), sets, tuple(tasks), tuple(notes), data, decides)


INFO = register(BenchmarkInfo(
    name="negbench_retrieval",
    question="Does a caption that also says what is absent find its image, and the image it?",
    paper="Vision-Language Models Do Not Understand Negation, arXiv 2501.09425",
    licence="MIT; COCO captions CC BY 4.0; images under their Flickr licences",
    size="5,000 images of COCO val2017, about five captions each, plain and with a negation",
    folders={"images": "negbench/images", "annotations": "negbench"},
    files=tuple(VARIANTS.values()),
    source="annotations: the links in the benchmark's public repository; images: COCO val2017",
    tasks=TASKS,
    open=_open,
))  # fmt: skip
