"""Opens image-caption pairs by name: all that `captioned_images` reads, tars, shards, TFDS, and what is registered.

open_pairs("coco/images", "captions_train.json")        folders and captions files, in any form
open_pairs("coco/images,flickr8k/images", "captions_train.json,flickr8k/captions.json")
open_pairs("shards")                                    ArrayRecord shards, as `rococo pack` writes them
open_pairs("cc12m-{00000..01242}.tar")                  tars in WebDataset's form; or a folder of them
open_pairs("hf:nlphuji/flickr30k?split=test")            data sets of the `datasets` library, Parquet with images inside
open_pairs("tfds:coco_captions/2014?split=train")       TensorFlow Datasets, without TensorFlow
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rococo_jax.data.caption_tables import Columns
from rococo_jax.data.captioned_images import CaptionedImages, read_captioned_images
from rococo_jax.data.captions import CaptionedImage, check_no_image_twice
from rococo_jax.data.pair_source import FolderPairs, JoinedPairs, PairSource, open_tfds
from rococo_jax.data.tar_pairs import is_tars, open_tars, split_names
from rococo_jax.errors import InputError
from rococo_jax.storage import refuse_url

_REGISTERED: dict[str, Callable[[str], PairSource]] = {}


def register_source(prefix: str, open_source: Callable[[str], PairSource]) -> None:
    """Makes `open_pairs` open names that start with `prefix`, such as `scenes:`, by `open_source(name)`."""
    _REGISTERED[prefix] = open_source


register_source("tfds:", open_tfds)


def open_pairs(
    images: str, captions: str = "", *, allow_missing: bool = False, columns: Columns | None = None
) -> PairSource:
    """Opens the pairs that two settings name, each one entry or several separated by commas.

    Args:
        images: folders of images, what `captioned_images` opens with its images, folders or files of shards
            (`.array_record`) and of tars (`.tar`, with ranges in braces), names with a registered prefix
            (`tfds:NAME?split=...`).
        captions: of the folders; each applies to whichever folders hold its images. Without them, the folders have
            their own, as shards, tars and registered sources always have.
        allow_missing: leave out images that no folder holds, and samples of tars without an image or a caption, as
            long as there are others.
        columns: of tables, by role.

    Raises:
        InputError: a file or folder is missing or unusable, no folder holds an image, or nothing is named.
    """
    sources: list[PairSource] = []
    folders = []
    for part in split_names(images):
        prefix = next((prefix for prefix in _REGISTERED if part.startswith(prefix)), None)
        if prefix is not None:
            sources.append(_REGISTERED[prefix](part))
        elif _holds_shards(Path(part)):
            from rococo_jax.data.array_record import RecordPairs

            sources.append(RecordPairs(part))
        elif is_tars(part):
            sources.append(open_tars(part, allow_missing=allow_missing))
        else:
            refuse_url(part, "images")
            folders.append(part)
    for part in captions.split(","):
        refuse_url(part.strip(), "captions")
    if folders or captions.strip():
        read = read_captioned_images(",".join(folders), captions, allow_missing, columns)
        sources.insert(0, FolderPairs(read.items, read.paths))
    if not sources:
        wanted = ", ".join(("folders of images", "shards", "tars", *(f"{prefix}NAME" for prefix in _REGISTERED)))
        raise InputError("training data", "images", repr(images), wanted)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def read_all_pairs(
    images: str, captions: str = "", *, allow_missing: bool = False, columns: Columns | None = None
) -> CaptionedImages:
    """As `open_pairs`, with all captions read, and the images by their names: for commands that meet every image."""
    parts = split_names(images)
    if not any(is_tars(part) or _holds_shards(Path(part)) or part.startswith(tuple(_REGISTERED)) for part in parts):
        return read_captioned_images(images, captions, allow_missing, columns)
    source = open_pairs(images, captions, allow_missing=allow_missing, columns=columns)
    samples = (source[number] for number in range(len(source)))
    # Names of tars begin with where the tars are.
    items = tuple(CaptionedImage("/".join(PurePosixPath(each.name).parts[-2:]), each.captions) for each in samples)
    check_no_image_twice([item.image for item in items], images)
    return CaptionedImages(items, tuple(PairImage(source, number) for number in range(len(items))))


class PairImage(NamedTuple):
    """The place of an image of a source, which can be read as a path can."""

    source: PairSource
    number: int

    def read_bytes(self) -> bytes:
        """The bytes of the image file."""
        image = self.source[self.number].image
        return image if isinstance(image, bytes) else image.read_bytes()

    def __str__(self) -> str:
        return self.source[self.number].name


def _holds_shards(path: Path) -> bool:
    return path.suffix == ".array_record" or (path.is_dir() and any(path.glob("*.array_record")))
