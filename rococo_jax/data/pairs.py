"""Sources of training pairs: images with their captions, by number, from folders, JSON lines, shards and TFDS.

A source is a sequence: `len(source)` images, `source[i]` an image, not yet decoded, with its name and captions. The
number i is the image's id while training. Sources travel to worker processes, so they pickle, and hold no open file
when they do.

    open_pairs("coco/images", "captions_train.json")        folders and captions files (Karpathy form, or JSON lines)
    open_pairs("coco/images,flickr8k/images", "captions_train.json,flickr8k/captions.json")
    open_pairs("shards")                                    ArrayRecord shards, as `rococo pack` writes them
    open_pairs("tfds:coco_captions/2014?split=train")       TensorFlow Datasets, without TensorFlow
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from PIL import Image

from rococo_jax.data.captions import CaptionedImage, find_images, read_captions
from rococo_jax.data.images import decode_image, open_image
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class PairSample:
    """An image with its captions.

    Attributes:
        image: its file, or the file's bytes.
        name: what errors and manifests call it.
        captions: at least one.
    """

    image: Path | bytes
    name: str
    captions: tuple[str, ...]

    @property
    def source(self) -> Path | str:
        """What errors call its image: the file, or the name where there are only bytes."""
        return self.name if isinstance(self.image, bytes) else self.image

    def open(self) -> Image.Image:
        """The image, decoded whole.

        Raises:
            InputError: as `open_image`.
        """
        return decode_image(self.image, self.name) if isinstance(self.image, bytes) else open_image(self.image)


@runtime_checkable
class PairSource(Protocol):
    """What training reads."""

    def __len__(self) -> int:
        """How many images there are."""

    def __getitem__(self, index: int) -> PairSample:
        """Image number `index` with its captions."""

    def hash(self) -> str:
        """Of what decides which sample is which: a run does not go on with a source of another hash."""


class FolderPairs:
    """Images that are files, their captions in memory.

    Args:
        images: the captioned images.
        paths: their files.
    """

    def __init__(self, images: Sequence[CaptionedImage], paths: Sequence[Path]):
        self.names = tuple(image.image for image in images)
        self.captions = tuple(image.captions for image in images)
        # As strings, which take a fifth of the memory of paths, and travel to workers as much faster.
        self.paths = tuple(str(path) for path in paths)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> PairSample:
        return PairSample(Path(self.paths[index]), self.names[index], self.captions[index])

    def hash(self) -> str:
        """Of names and captions in their order; not of the folder, so that data may be moved."""
        return hash_json({"names": self.names, "captions": self.captions})


class JoinedPairs:
    """Several sources one after the other."""

    def __init__(self, sources: Sequence[PairSource]):
        self.sources = tuple(sources)
        self.ends = tuple(itertools.accumulate(len(source) for source in self.sources))

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        which = bisect.bisect_right(self.ends, index)
        return self.sources[which][index - (self.ends[which - 1] if which else 0)]

    def hash(self) -> str:
        """Of the sources' hashes in their order."""
        return hash_json([source.hash() for source in self.sources])


def open_pairs(images: str, captions: str = "", *, allow_missing: bool = False) -> PairSource:
    """The training data that two settings name, each one entry or several separated by commas.

    Args:
        images: folders of images, folders or files of shards (`.array_record`), `tfds:NAME?split=...`.
        captions: captions files, `.jsonl` or the Karpathy form. Each applies to whichever folders hold its images;
            a `.jsonl` file also to its own folder. Shards and TFDS bring their captions along.
        allow_missing: leave out images that no folder holds, as long as there is one.

    Raises:
        InputError: a file or folder is missing or unusable, no folder holds an image, or nothing is named.
    """
    parts = [part.strip() for part in images.split(",") if part.strip()]
    files = [part.strip() for part in captions.split(",") if part.strip()]
    sources: list[PairSource] = []
    folders = []
    for part in parts:
        if part.startswith("tfds:"):
            from rococo_jax.data.tfds import open_tfds

            sources.append(open_tfds(part))
        elif _holds_shards(Path(part)):
            from rococo_jax.data.array_record import RecordPairs

            sources.append(RecordPairs(part))
        else:
            folders.append(part)
    if folders and not files:
        raise InputError("training data", "captions", "no captions file", f"one for the images of {', '.join(folders)}")
    if files:
        sources.insert(0, read_folder_pairs(folders, files, allow_missing=allow_missing))
    if not sources:
        raise InputError("training data", "images", repr(images), "a folder of images, shards, or tfds:NAME")
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def read_folder_pairs(folders: Sequence[str], files: Sequence[str], *, allow_missing: bool = False) -> FolderPairs:
    """Captions files and the image files that they name; where two of them name the same file, its captions add up.

    Raises:
        InputError: as `open_pairs`.
    """
    captioned: dict[Path, CaptionedImage] = {}
    for file in files:
        items, beside = _read_captions_file(file)
        for item, path in _find_files(items, [*folders, *beside], file, allow_missing):
            earlier = captioned[path].captions if path in captioned else ()
            merged = tuple(dict.fromkeys(earlier + item.captions)) if earlier else item.captions
            captioned[path] = CaptionedImage(item.image, merged)
    return FolderPairs(list(captioned.values()), list(captioned))


def _read_captions_file(file: str) -> tuple[list[CaptionedImage], list[str]]:
    """The captioned images of a file, and the folders that it names by being where it is."""
    if file.endswith((".jsonl", ".ndjson")):
        from rococo_jax.data.jsonl import read_jsonl_captions

        return read_jsonl_captions(file), [str(Path(file).parent)]
    return read_captions(file), []


def _find_files(
    items: Sequence[CaptionedImage], folders: Sequence[str], file: str, allow_missing: bool
) -> list[tuple[CaptionedImage, Path]]:
    """Every item with its file, from the first folder that has it, in the items' order."""
    found: dict[str, Path] = {}
    missing = [item.image for item in items]
    for folder in folders:
        present, missing = find_images(missing, folder)
        found |= present
    where = ", ".join(folders) or "no folder"
    if not found:
        raise InputError(file, "images", f"none of its {len(items)} images in {where}", "a folder that holds them")
    if missing and not allow_missing:
        state = f"{len(missing)} of {len(items)} images in none of {where}; the first is {missing[0]!r}"
        raise InputError(file, "images", state, "all of them")
    return [(item, found[item.image]) for item in items if item.image in found]


def _holds_shards(path: Path) -> bool:
    return path.suffix == ".array_record" or (path.is_dir() and any(path.glob("*.array_record")))
