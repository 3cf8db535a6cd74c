"""Open images with their captions: the one reader of all commands and of training.

open_pairs("coco/images,flickr8k/images", "captions_train.json,flickr8k/captions.json")
open_pairs("cc12m-{00000..01242}.tar")          tars in the WebDataset format, or a folder of them (`tar_pairs`)
open_pairs("cc12m.tar?caption=re_caption")              with the captions in this key of NAME.json
open_pairs("tfds:coco_captions/2014?split=train")       TensorFlow Datasets, without TensorFlow (`tfds_pairs`)
open_pairs("scenes:20000")                              drawn scenes (`demo.training_scenes`)

`caption_forms` lists the forms of captions, and `register_source` adds a kind of source.
"""

import dataclasses
import importlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.caption_tables import CaptionsFile, parse_columns, refuse_columns
from rococo_jax.data.captions import CaptionedImage, ReadOptions, check_no_image_twice
from rococo_jax.data.image_files import find_images
from rococo_jax.data.pair_source import CaptionedImages, ImageOfSource, JoinedPairs, PairSource
from rococo_jax.data.tar_pairs import is_tars, open_tars, split_names, split_options
from rococo_jax.data.tfds_pairs import open_tfds
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import refuse_url


class SourceKind(NamedTuple):
    """A kind of source that has images and captions together.

    Attributes:
        label: how messages call it.
        recognise: returns whether a name belongs to this kind.
        open: opens the source of a name.
    """

    label: str
    recognise: Callable[[str], bool]
    open: Callable[[str, ReadOptions], PairSource]


def _open_tars(name: str, options: ReadOptions) -> PairSource:
    tars, query = split_options(name)
    columns = {**options.requested_columns, **parse_columns(query.replace("&", ","))}
    refuse_columns(tars, columns, "caption=KEY alone: a key of NAME.json, or txt for NAME.txt", but=("caption",))
    return open_tars(tars, allow_missing=options.allow_missing, caption=columns.get("caption", ""))


# The first kind that recognises a name opens it; other names are folders, or files with images inside.
SOURCE_KINDS = [SourceKind("tars", is_tars, _open_tars)]


def register_source(prefix: str, open_source: Callable[[str], PairSource]) -> None:
    """Let `open_pairs` open names that start with `prefix`, such as `scenes:`, with `open_source(name)`."""

    def open_without_columns(name: str, options: ReadOptions) -> PairSource:
        expected = "none: features are named behind ?" if prefix == "tfds:" else "none"
        refuse_columns(name, options.requested_columns, expected)
        return open_source(name)

    kind = SourceKind(f"{prefix}NAME", lambda name: name.startswith(prefix), open_without_columns)
    SOURCE_KINDS[:] = [kind, *(other for other in SOURCE_KINDS if other.label != kind.label)]


def _open_scenes(name: str) -> PairSource:
    # Imported when it is needed: the demo is built on the other packages.
    return importlib.import_module("rococo_jax.demo.training_scenes").open_scenes(name)


register_source("tfds:", open_tfds)
register_source("scenes:", _open_scenes)


def _kind_of(name: str) -> SourceKind | None:
    return next((kind for kind in SOURCE_KINDS if kind.recognise(name)), None)


def open_pairs(images: str, captions: str = "", **options: Any) -> PairSource:
    """Open the pairs that two settings name; each is one entry, or several separated by commas.

    Args:
        images: folders of images; whatever `caption_forms` reads together with its images; tars (`.tar`, with ranges in
            braces) or folders of them; names with a registered prefix (`tfds:NAME?split=...`, `scenes:COUNT`).
        captions: of the folders; each applies to all folders that contain its images. Without it, the folders have
            their own captions, as tars and registered sources always do.
        options: the attributes of `ReadOptions`.

    Raises:
        InputError: a file or folder is missing or unusable, no folder contains an image, or nothing is named.
    """
    return _open_pairs(images, captions, ReadOptions(**options))


def _open_pairs(images: str, captions: str, options: ReadOptions) -> PairSource:
    sources: list[PairSource] = []
    folders: list[str] = []
    for name in split_names(images):
        kind = _kind_of(name)
        if kind is None:
            refuse_url(name, "images")
            folders.append(name)
        else:
            sources.append(kind.open(name, options))
    for name in split_names(captions):
        refuse_url(name, "captions")
    if sources and options.split:
        expected = f"none with {images}: a captions file or a table has splits"
        raise InputError("pairs", "split", repr(options.split), expected)
    if sources and options.text_files == "whole":
        expected = "folders; a caption of several lines in a tar belongs in NAME.json"
        raise InputError("pairs", "text_files", f"{options.text_files!r} with {images}", expected)
    if folders or captions.strip():
        sources.insert(0, _read_folders(folders, captions, options))
    if not sources:
        expected = ", ".join(["folders of images", *(kind.label for kind in reversed(SOURCE_KINDS))])
        raise InputError("training data", "images", repr(images), expected)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def read_captioned_images(images: str, captions: str = "", **options: Any) -> CaptionedImages:
    """Read images with their captions into memory, by name, for commands that use every image.

    Args:
        images, captions, options: as of `open_pairs`.

    Raises InputError: as `open_pairs`, or two images cannot be told apart by name.
    """
    names, read_options = split_names(images), ReadOptions(**options)
    if not any(map(_kind_of, names)):
        return _read_folders(names, captions, read_options)
    source = _open_pairs(images, captions, read_options)
    captioned = list(map(source.captioned, range(len(source))))
    short_names = _shorten([item.image for item in captioned])
    items = [CaptionedImage(name, item.captions) for name, item in zip(short_names, captioned, strict=True)]
    check_no_image_twice([item.image for item in items], images)
    return CaptionedImages(items, [ImageOfSource(source, number) for number in range(len(items))])


def _read_folders(folders: list[str], captions: str, options: ReadOptions) -> CaptionedImages:
    """Read captions and find their images in folders, or inside the sources of the captions; see `open_pairs`.

    If several sources name the same image, its captions are merged, each text once. Images of one name in several
    folders are named by their folders as well.
    """
    sources = split_names(captions)
    if not sources:
        folders, sources = [name for name in folders if Path(name).is_dir()], folders
    if not sources:
        raise InputError("captions", "files", repr(captions), "at least one captions file")
    options = dataclasses.replace(options, image_folders=tuple(map(Path, folders)))
    images: dict[Any, CaptionedImage] = {}  # by file
    missing: list[str] = []
    for number, source in enumerate(sources):
        file = read_captions(source, **vars(options))
        files = file.image_files or _find_images_of(file, number, sources, folders, options)
        names_without_file = [item.image for item in file.items if item.image not in files]
        if names_without_file:
            count, first = len(names_without_file), names_without_file[0]
            say(f"{Path(source).name}: {count:,} images without a file left out; the first is {first!r}")
        missing += names_without_file
        for item in file.items:
            if item.image in files:
                _merge(images, files[item.image], item)
    return CaptionedImages(_disambiguate_names(images), images, missing)


def _merge(images: dict[Any, CaptionedImage], file: Any, item: CaptionedImage) -> None:
    """Add the captions of an item to those of its image."""
    captions = item.captions
    if file in images:
        captions = tuple(dict.fromkeys(images[file].captions + captions))
    images[file] = CaptionedImage(item.image, captions)


def _find_images_of(
    file: CaptionsFile, number: int, sources: Sequence[str], folders: Sequence[str], options: ReadOptions
) -> dict[str, Path]:
    """Find the images of captions file `number`.

    They may lie in any of the folders. If there are as many folders as files, the folder with the same number is
    searched first. The folder of a table, or the one that a form names, is searched last.
    """
    own_folder = [folders[number]] if 1 < len(folders) == len(sources) else []
    fallback_folder = [str(file.folder or Path(file.source).parent)] if file.columns or file.folder else []
    search_order = (own_folder, folders, fallback_folder)
    return _find_in_folders(file.items, search_order, sources[number], options.allow_missing)


def _find_in_folders(
    items: Sequence[CaptionedImage], search_order: Sequence[Sequence[str]], source: str, allow_missing: bool
) -> dict[str, Path]:
    """Return the files of the items by name, each from the first group of folders that has it.

    Raises InputError: two folders of a group have different images of one name, or images are missing.
    """
    paths: dict[str, Path] = {}
    missing = [item.image for item in items]
    for group in search_order:
        for folder in dict.fromkeys(group):
            for name, path in find_images(missing, folder)[0].items():
                other = paths.setdefault(name, path)
                if other != path and not path.samefile(other) and path.read_bytes() != other.read_bytes():
                    expected = "one folder for each captions file, in the same order"
                    raise InputError(source, f"image {name!r}", f"two of this name, {other} and {path}", expected)
        missing = [name for name in missing if name not in paths]
    all_folders = ", ".join(dict.fromkeys(itertools.chain.from_iterable(search_order))) or "no folder"
    if not paths:
        problem = f"none of its {len(items)} images in {all_folders}"
        raise InputError(source, "images", problem, "a folder that holds them")
    if missing and not allow_missing:
        problem = f"{len(missing)} of {len(items)} images in none of {all_folders}; the first is {missing[0]!r}"
        raise InputError(source, "images", problem, "all of them, or `allow_missing_images`")
    return paths


def _disambiguate_names(images: Mapping[Any, CaptionedImage]) -> tuple[CaptionedImage, ...]:
    """Return the images, given by file, and add their folders to names that several of them share."""
    counts = Counter(item.image for item in images.values())
    shared = [file for file, item in images.items() if counts[item.image] > 1 and isinstance(file, Path)]
    base = Path(os.path.commonpath([file.absolute() for file in shared])) if shared else Path()
    names = {file: file.absolute().relative_to(base).as_posix() for file in shared}
    items = [CaptionedImage(names.get(file, item.image), item.captions) for file, item in images.items()]
    first_files: dict[str, Any] = {}
    for file, item in zip(images, items, strict=True):
        first_file = first_files.setdefault(item.image, file)
        if first_file is not file:
            problem = f"also the name of {first_file}"
            raise InputError(file, f"image {item.image!r}", problem, "a different name for each image")
    return tuple(items)


def _shorten(names: Sequence[str]) -> list[str]:
    """Return names of images in tars, which begin with the path of the tar, as short as they can be told apart.

    >>> _shorten(["/data/x/0.tar/a.jpg", "/data/y/0.tar/a.jpg"]), _shorten(["/data/x/0.tar/a.jpg"])
    (['x/0.tar/a.jpg', 'y/0.tar/a.jpg'], ['0.tar/a.jpg'])
    """
    parts = [PurePosixPath(name).parts for name in names]
    for count in range(2, max(map(len, parts), default=2) + 1):
        short_names = ["/".join(each[-count:]).lstrip("/") for each in parts]
        if len({*short_names}) == len(short_names):
            return short_names
    return ["/".join(each[-2:]) for each in parts]
