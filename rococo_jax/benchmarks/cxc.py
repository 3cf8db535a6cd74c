"""Crisscrossed Captions (arXiv 2004.15020): are similarities ordered as people rate them?

sits_test.csv[.gz]   caption id, image, rating 0 to 5      sis_test.csv[.gz]   two images, rating
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, register
from rococo_jax.benchmarks.coco import caption_ids, coco_number
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks.judged import CorrelationTask
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json

NAME = "cxc"
PARTS = {"image_text": "sits_test.csv", "image_image": "sis_test.csv"}
FILES = tuple(name + ending for name in PARTS.values() for ending in ("", ".gz"))
_COLUMNS = {"image_text": ("caption", "image"), "image_image": ("image1", "image2")}


def _rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str, float]]:
    """Both sides and the rating of each line."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), 2):
                try:
                    one, other, rating = (row[name] for name in (*columns, "agg_score"))
                    if not 0 <= float(rating) <= 5 or not (one and other):
                        raise ValueError
                    # A caption is named COCO_val2014:sentid:NUMBER.
                    yield str(int(one.rpartition(":")[2])) if columns[0] == "caption" else one, other, float(rating)
                except (KeyError, TypeError, ValueError):
                    wanted = f"{', '.join(columns)}, and agg_score from 0 to 5"
                    raise InputError(path, f"line {number}", str(dict(row))[:80], wanted) from None
    except (csv.Error, OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(path, "table", error, "a whole table in UTF-8") from None


def _open(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    folder = folders["annotations"]
    there = {part: path for part, name in PARTS.items() for ending in (".gz", "")
             if (path := folder / f"{name}{ending}").is_file()}  # fmt: skip
    ids = caption_ids(folder, folders["captions"])
    images, missing, data = open_images(folders["images"], [image for image, _ in ids.values()], settings)
    number = {coco_number(image): row for row, image in enumerate(images.names)}
    texts: dict[str, int] = {}
    tasks = []
    for part, path in there.items():
        pairs = []
        for one, other, rating in _rows(path, _COLUMNS[part]):
            if part == "image_text":
                # The caption's own image need not be there.
                _, text = ids.get(int(one), ("", ""))
                right = number.get(coco_number(other))
                if text and right is not None:
                    pairs.append((texts.setdefault(text, len(texts)), right, rating, right))
            else:
                left, right = number.get(coco_number(one)), number.get(coco_number(other))
                if left is not None and right is not None:
                    pairs.append((left, right, rating, left))
        if len(pairs) > 1:
            one, other, rating, image = (np.array(column) for column in zip(*pairs, strict=True))
            table = TEXTS if part == "image_text" else ORIGINALS
            rows = Rows.of(table, one), Rows.of(ORIGINALS, other)
            tasks.append(CorrelationTask(NAME, part, *rows, rating, one, image))
    notes = [f"only {len(images)} of {len(images) + len(missing)} images were present: pairs without are left out"]
    decides = {"ratings": {part: hash_file(path) for part, path in there.items()}, "captions": hash_json([*texts])}
    decides["images"] = hash_json(dict(zip(images.names, images.hashes, strict=True)))
    tasks = tuple(tasks) if settings.wants(NAME) else ()
    sets = {ORIGINALS: images}
    return Benchmark(NAME, images.names, tuple(texts), sets, tasks, tuple(notes if missing else ()), data, decides)


INFO = register(BenchmarkInfo(
    name=NAME,
    question="Are similarities of images and captions ordered as people rate them?",
    paper="Crisscrossed Captions: Extended Intramodal and Intermodal Semantic Similarity Judgments for MS-COCO, "
    "arXiv 2004.15020",
    licence="ratings free for any purpose; COCO captions CC BY 4.0; images under their Flickr licences",
    size="44,833 pairs of a caption and an image, 46,719 of two images",
    folders={"images": "coco/images", "annotations": "cxc", "captions": "rococo/annotations"},
    files=FILES,
    source="ratings: the public repository; ids of captions: the package eccv-caption; images: COCO val2014",
    tasks=(NAME,),
    open=_open,
))  # fmt: skip
