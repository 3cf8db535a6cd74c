"""ECCV Caption (arXiv 2204.03359): retrieval over COCO's test split with the further positives that people judged.

Judgements are those of the package `eccv-caption`: `eccv_image_to_caption.json`, `eccv_caption_to_image.json`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, partial_note, register
from rococo_jax.benchmarks.coco import caption_ids, coco_number, is_numbers, package_file
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks.judged import JudgedTask
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json, read_json

NAME = "eccv_caption"
FILES = ("eccv_image_to_caption.json", "eccv_caption_to_image.json")


def _open(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    judgements = [package_file(name, folders["judgements"]) for name in FILES]
    ids = caption_ids(folders["judgements"], folders["captions"])
    images, missing, data = open_images(folders["images"], [image for image, _ in ids.values()], settings)
    row = {image: place for place, image in enumerate(images.names)}
    captions = {number: pair for number, pair in sorted(ids.items()) if pair[0] in row}
    place = {number: column for column, number in enumerate(captions)}
    by_number = {coco_number(image): at for image, at in row.items()}
    of_caption = np.array([row[image] for image, _ in captions.values()])
    texts: dict[str, int] = {}
    text_rows = np.array([texts.setdefault(text, len(texts)) for _, text in captions.values()])
    sides = (Rows.of(ORIGINALS, np.arange(len(images))), Rows.of(TEXTS, text_rows))
    tasks = []
    for variant, path, (own, others) in zip(("image_to_text", "text_to_image"), judgements,
                                            ((by_number, place), (place, by_number)), strict=True):  # fmt: skip
        positives = read_json(path, "positives by id")
        if not isinstance(positives, dict):
            raise InputError(path, "file", type(positives).__name__, "an object of positives by id")
        for one, several in positives.items():
            if not one.isdecimal() or not is_numbers(several):
                raise InputError(path, one, f"{several}"[:80], "a list of whole numbers, by a whole number")
        judged = {int(one): [others[int(each)] for each in several if int(each) in others]
                  for one, several in positives.items() if int(one) in own}  # fmt: skip
        queried = [(own[one], several) for one, several in judged.items() if several]
        if not queried:
            continue
        at = np.array([one for one, _ in queried])
        by_image = variant == "image_to_text"
        queries, gallery = sides if by_image else sides[::-1]
        every = np.arange(len(images))
        groups = (at, of_caption) if by_image else (of_caption[at], every)
        tasks.append(JudgedTask(NAME, variant, queries[at], gallery, [several for _, several in queried], *groups))
    notes = [partial_note(len(images), len(images) + len(missing))] if missing else []
    decides = {"judgements": [hash_file(path) for path in judgements], "captions": hash_json([*texts])}
    decides["images"] = hash_json(dict(zip(images.names, images.hashes, strict=True)))
    tasks = tuple(tasks) if settings.wants(NAME) else ()
    return Benchmark(NAME, images.names, tuple(texts), {ORIGINALS: images}, tasks, tuple(notes), data, decides)


INFO = register(BenchmarkInfo(
    name=NAME,
    question="Does retrieval find what people judge to be right, and not the query's own captions alone?",
    paper="ECCV Caption: Correcting False Negatives by Collecting Machine-and-Human-verified Image-Caption "
    "Associations for MS-COCO, arXiv 2204.03359",
    licence="judgements MIT; COCO captions CC BY 4.0; images under their Flickr licences",
    size="1,261 images and 1,332 captions with judged positives",
    folders={"images": "coco/images", "captions": "rococo/annotations", "judgements": "eccv_caption"},
    files=FILES,
    source="judgements: `pip install eccv-caption`, or its data files in this folder; images: COCO val2014",
    tasks=(NAME,),
    optional=("judgements",),
    open=_open,
))  # fmt: skip
