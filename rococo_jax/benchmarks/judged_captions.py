"""COCO's test captions as people judged them: retrieval with further positives, and ratings of similarity.

ECCV Caption (arXiv 2204.03359): retrieval over the test split with the positives that people judged, in
`eccv_image_to_caption.json` and `eccv_caption_to_image.json` of the package `eccv-caption`.

Crisscrossed Captions (arXiv 2004.15020): are similarities ordered as people rate them? `sits_test.csv[.gz]`: caption
id, image, rating 0 to 5; `sis_test.csv[.gz]`: two images, rating.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, register
from rococo_jax.benchmarks.coco import caption_ids, coco_number, is_numbers, package_file
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks.judged import CorrelationTask, JudgedTask
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file, hash_json, read_json
from rococo_jax.texts import open_table

NAME = "eccv_caption"
FILES = ("eccv_image_to_caption.json", "eccv_caption_to_image.json")


def _open(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    judgements = [package_file(name, folders["judgements"]) for name in FILES]
    ids = caption_ids(folders["judgements"], folders["captions"])
    images, lost, data = open_images(folders["images"], [image for image, _ in ids.values()], settings)
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
    decides = {"judgements": [hash_file(path) for path in judgements], "captions": hash_json([*texts])}
    decides["images"] = hash_json(dict(zip(images.names, images.hashes, strict=True)))
    tasks = tuple(tasks) if settings.wants(NAME) else ()
    return Benchmark(NAME, images.names, tuple(texts), {ORIGINALS: images}, tasks, (), data, decides, lost=lost)


register(BenchmarkInfo(
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


CXC = "cxc"
RATINGS = {"image_text": "sits_test.csv", "image_image": "sis_test.csv"}
RATING_FILES = tuple(name + ending for name in RATINGS.values() for ending in ("", ".gz"))
_COLUMNS = {"image_text": ("caption", "image"), "image_image": ("image1", "image2")}


def _rows(path: Path, columns: tuple[str, str]) -> Iterator[tuple[str, str, float]]:
    """Both sides and the rating of each line."""
    for number, row in open_table(path, "a table of ratings").rows:
        try:
            one, other, rating = (row[name] for name in (*columns, "agg_score"))
            if not 0 <= float(rating) <= 5 or not (one and other):
                raise ValueError
            # A caption is named COCO_val2014:sentid:NUMBER.
            yield str(int(one.rpartition(":")[2])) if columns[0] == "caption" else one, other, float(rating)
        except (KeyError, TypeError, ValueError):
            wanted = f"{', '.join(columns)}, and agg_score from 0 to 5"
            raise InputError(path, f"line {number + 1}", str(row)[:80], wanted) from None


def _open_cxc(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    folder = folders["annotations"]
    there = {part: path for part, name in RATINGS.items() for ending in (".gz", "")
             if (path := folder / f"{name}{ending}").is_file()}  # fmt: skip
    ids = caption_ids(folder, folders["captions"])
    names = [image for image, _ in ids.values()]
    images, lost, data = open_images(folders["images"], names, settings, "pairs without their images are left out")
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
            tasks.append(CorrelationTask(CXC, part, *rows, rating, one, image))
    decides = {"ratings": {part: hash_file(path) for part, path in there.items()}, "captions": hash_json([*texts])}
    decides["images"] = hash_json(dict(zip(images.names, images.hashes, strict=True)))
    tasks = tuple(tasks) if settings.wants(CXC) else ()
    sets = {ORIGINALS: images}
    return Benchmark(CXC, images.names, tuple(texts), sets, tasks, (), data, decides, lost=lost)


register(BenchmarkInfo(
    name=CXC,
    question="Are similarities of images and captions ordered as people rate them?",
    paper="Crisscrossed Captions: Extended Intramodal and Intermodal Semantic Similarity Judgments for MS-COCO, "
    "arXiv 2004.15020",
    licence="ratings free for any purpose; COCO captions CC BY 4.0; images under their Flickr licences",
    size="44,833 pairs of a caption and an image, 46,719 of two images",
    folders={"images": "coco/images", "annotations": "cxc", "captions": "rococo/annotations"},
    files=RATING_FILES,
    source="ratings: the public repository; ids of captions: the package eccv-caption; images: COCO val2014",
    tasks=(CXC,),
    open=_open_cxc,
))  # fmt: skip
