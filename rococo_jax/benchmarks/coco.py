"""MS-COCO: where its images and the Karpathy split are got, and the ids of its captions.

Hashes of the archives are as TensorFlow Datasets keeps them. Benchmarks that judge captions of the Karpathy test split
name them by id; the ids of an image are in `original_image_to_caption.json` of the package `eccv-caption`, beside the
annotations or where the package is installed. In ascending order they are its captions in the order of the split.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.data.captions import captions_from_json
from rococo_jax.data.downloads import Download
from rococo_jax.errors import InputError, is_whole, object_of
from rococo_jax.storage import read_json

_ZIPS = "http://images.cocodataset.org/zips"
_KARPATHY = "https://storage.googleapis.com/sfr-vision-language-research/datasets"


def images_of(split: str, sha256: str, size: int) -> Download:
    """The images of a split, as `coco/images/SPLIT`."""
    return Download(f"{_ZIPS}/{split}.zip", f"coco/images/{split}", "images", sha256, size, unpack=split)


VAL2014 = images_of("val2014", "fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0", 6_645_013_297)
VAL2017 = images_of("val2017", "4f7e2ccb2866ec5041993c9cf2a952bbed69647b115d0f74da7ce8f4bef82f05", 815_585_330)


def karpathy_test(to: str) -> Download:
    """Captions of the Karpathy test split."""
    name = "coco_karpathy_test.json"
    digest = "5b202a235ee2a4e13f82b984ef9293b8e2d34f9b1f92147bf8340580f20faf15"
    return Download(f"{_KARPATHY}/{name}", f"{to}/{name}", "annotations", digest, 1_735_468)


def part_files(source: str, folder: str, hashes: Mapping[str, str], size: int) -> tuple[Download, ...]:
    """Annotation files `NAME.json` of a public repository, by the hash of each; about `size` bytes each."""
    files = ((f"{name}.json", digest) for name, digest in hashes.items())
    return tuple(
        Download(f"{source}/{file}", f"{folder}/{file}", "annotations", digest, size) for file, digest in files
    )


IDS = "original_image_to_caption.json"
CAPTIONS = "coco_karpathy_test.json"


def package_file(name: str, folder: Path) -> Path:
    """A file of the package's judgements: in the folder, or in the installed package.

    Raises InputError: it is in neither.
    """
    if (folder / name).is_file():
        return folder / name
    package = importlib.util.find_spec("eccv_caption")
    path = None if package is None or package.origin is None else Path(package.origin).parent / "data" / name
    if path is None or not path.is_file():
        raise InputError(
            folder / name, "file", "nothing there", "the file, or `pip install eccv-caption`, which has it"
        )
    return path


def caption_ids(folder: Path, captions: Path) -> dict[int, tuple[str, str]]:
    """Caption id -> the image's name and the caption. Raises InputError: a file is missing or of another form."""
    path = package_file(IDS, folder)
    by_image = read_json(path, "caption ids by image id")
    caption_of, source = {}, captions / CAPTIONS
    for item in captions_from_json(read_json(source, "a captions file"), source):
        ids = object_of(by_image).get(str(coco_number(item.image)))
        if ids is None:
            raise InputError(path, "image", f"nothing of {item.image}", "the ids of its captions")
        if not is_numbers(ids) or not 0 < len(ids) <= len(item.captions):
            wanted = f"whole numbers, at most {len(item.captions)}, one a caption"
            raise InputError(path, f"ids of {item.image}", f"{ids}"[:80], wanted)
        for number, text in zip(sorted(ids), item.captions, strict=False):
            caption_of[int(number)] = item.image, text
    return caption_of


def is_numbers(value: Any) -> bool:
    """Whether a JSON value is a list of whole numbers.

    >>> is_numbers([1, 2]), is_numbers([1, "2"]), is_numbers(3)
    (True, False, False)
    """
    return isinstance(value, list) and all(map(is_whole, value))


def coco_number(image: str) -> int:
    """Read the number of a COCO image from its file name. Raises InputError for any other name.

    >>> coco_number("val2014/COCO_val2014_000000391895.jpg")
    391895
    """
    digits = Path(image).stem.rpartition("_")[2]
    if not digits.isdecimal():
        raise InputError("annotations", "image", image, "a name of COCO, which ends in its number")
    return int(digits)
