"""Captioned images from one or several places: `--images A,B --captions F,G` gives each captions file its folder."""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Int

from rococo_jax.data.captions import find_images, read_captions
from rococo_jax.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images with files, and their captions, in file order.

    Attributes:
        names: as the captions files spell them.
        paths: where they are.
        captions: all captions, image by image.
        caption_image: the row of the image that each caption describes.
        missing: names of images that were left out because they have no file.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    caption_image: Int[np.ndarray, " captions"]
    missing: tuple[str, ...]


def read_captioned_images(images: str, captions: str, allow_missing: bool = False) -> CaptionedImages:
    """Reads comma-separated captions files and finds their images in the comma-separated folders.

    One folder serves all files; otherwise there is one for each.

    Raises:
        InputError: counts of folders and files differ, a file is unusable, an image is missing (and that is not
            allowed), or no image is left.
    """
    folders, files = images.split(","), captions.split(",")
    if len(folders) == 1:
        folders *= len(files)
    if len(folders) != len(files):
        found = f"{len(folders)} folders for {len(files)} captions files"
        raise InputError("--images", "folders", found, "one folder, or one for each captions file")
    names, paths, texts, owner, missing = [], [], [], [], []
    for folder, file in zip(folders, files, strict=True):
        items = read_captions(file)
        present, absent = find_images([item.image for item in items], folder)
        refuse_missing_images(folder, absent, len(items), allow_missing)
        missing += absent
        for item in items:
            if item.image in present:
                owner += [len(names)] * len(item.captions)
                names.append(item.image)
                paths.append(present[item.image])
                texts += item.captions
    return CaptionedImages(tuple(names), tuple(paths), tuple(texts), np.array(owner, np.int64), tuple(missing))


def refuse_missing_images(folder: object, missing: list[str], wanted: int, allow_missing: bool) -> None:
    """Raises InputError where images are missing and that was not allowed, or where none is there at all."""
    if missing and not allow_missing:
        found = f"{len(missing)} of {wanted} missing, the first is {missing[0]!r}"
        raise InputError(folder, "images", found, "all of them (or --allow-missing-images)")
    if len(missing) == wanted:
        raise InputError(folder, "images", "none of the images that the file names", "at least one")
