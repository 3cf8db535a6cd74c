"""Images with captions in every form that people have them: the one reader of all commands and of training.

captions.json                 Karpathy form, BLIP's, COCO's own, Karpathy's own dataset_coco.json (`caption_json`)
captions.jsonl, .csv, .tsv    a row for each caption or image (`caption_tables`); Flickr's captions.txt, NAME.token.txt
                              and results.csv as well
captions.parquet              the same; images may be inside (`table_images`)
mine.csv?image=a&caption=b    columns of other than the usual names; dataset_coco.json?split=test, train+restval or all
a folder                      with metadata.csv, .jsonl or .parquet; with Parquet files; or NAME.txt beside NAME.jpg
hf:NAME?split=test            a data set of the `datasets` library, or a folder of `save_to_disk` (`table_images`)

`open_pairs` opens these, and what else holds images with their captions, by name:

open_pairs("coco/images,flickr8k/images", "captions_train.json,flickr8k/captions.json")
open_pairs("cc12m-{00000..01242}.tar")          tars in WebDataset's form; or a folder of them, as of `rococo pack`
open_pairs("tfds:coco_captions/2014?split=train")       TensorFlow Datasets, without TensorFlow
"""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from rococo_jax.data.caption_json import open_json
from rococo_jax.data.caption_tables import (
    CaptionsFile,
    Columns,
    collect_rows,
    parse_columns,
    said_of_splits,
    table_rows,
)
from rococo_jax.data.captions import CaptionedImage, caption_lines, check_no_image_twice
from rococo_jax.data.image_files import find_images, list_images
from rococo_jax.data.pair_source import FolderPairs, JoinedPairs, PairSource, open_tfds
from rococo_jax.data.tar_pairs import is_tars, open_tars, split_names
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import refuse_url
from rococo_jax.texts import JSON_LINES, TABLES, find_file, form_of, read_text

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "metadata.tsv")
_TABLES = (*TABLES, *JSON_LINES, ".txt", ".token")
_FOLDER = "metadata.csv, .jsonl or .parquet, Parquet files, or NAME.txt beside NAME.jpg"


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Captioned images that are present: `items` in file order, the place of each, and the names of `missing` ones.

    A place is a path, or an image inside a table, which has `read_bytes()` as paths do.
    """

    items: tuple[CaptionedImage, ...]
    paths: tuple[Any, ...]
    missing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The images' names."""
        return tuple(item.image for item in self.items)

    @property
    def captions(self) -> tuple[str, ...]:
        """All captions, image by image."""
        return tuple(caption for item in self.items for caption in item.captions)

    @property
    def caption_image(self) -> Int[np.ndarray, " captions"]:
        """The row of the image that each caption describes."""
        return np.repeat(np.arange(len(self.items)), [len(item.captions) for item in self.items])


def read_captions(source: str | os.PathLike, columns: Columns | None = None, split: str = "") -> list[CaptionedImage]:
    """The captioned images of one source in any form, whether or not the images are there; says what was understood.

    Raises InputError: it names the source, and the item, column or line with its field.
    """
    file = open_captions(str(source), columns or {}, split=split)
    say(file.summary())
    return list(file.items)


def open_captions(source: str, columns: Columns, roots: Iterable[Path] = (), split: str = "") -> CaptionsFile:
    """Reads and checks one source of captions, in the form that its name or its contents tell.

    `columns` are those that the user names, `roots` folders of images, to which absolute names may belong, and `split`
    those of a file's splits that are read, as `caption_tables.said_of_splits` has them.
    """
    if source.startswith("hf:"):
        from rococo_jax.data.table_images import open_dataset

        return open_dataset(source, columns, split)
    if "?" in source and not Path(source).exists():
        source, _, query = source.partition("?")
        named = dict(part.partition("=")[::2] for part in query.replace("&", ",").split(","))
        split = named.pop("split", split)
        columns = {**columns, **parse_columns(",".join(map("=".join, named.items())))}
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, columns, roots, split)
    if form_of(path) == ".parquet":
        from rococo_jax.data.table_images import open_parquet

        return open_parquet(source, [path], columns, roots, split)
    if form_of(path) in _TABLES:
        return collect_rows(source, table_rows(source, columns), columns, roots, split)
    return open_json(source, columns, roots, split)


def _open_folder(folder: Path, columns: Columns, roots: Iterable[Path], split: str) -> CaptionsFile:
    from rococo_jax.data.table_images import is_saved_dataset, open_dataset, open_parquet

    if is_saved_dataset(folder):
        return open_dataset(str(folder), columns, split)
    metadata = find_file(folder, _METADATA)
    if metadata is not None:
        return dataclasses.replace(open_captions(str(metadata), columns, [folder], split), folder=folder)
    if tables := sorted(path for path in folder.iterdir() if form_of(path) == ".parquet"):
        return open_parquet(str(folder), tables, columns, roots, split)
    names = list_images(folder)
    texts = {name: _text_beside(folder / name) for name in names}
    missing = [name for name, path in texts.items() if path is None]
    if missing:
        found = f"{len(missing)} of {len(names)} images without a text; the first is {missing[0]!r}"
        found = f"no captions file and no texts beside its {len(names)} images" if len(missing) == len(names) else found
        raise InputError(folder, "captions", found, _FOLDER)
    said_of_splits(folder, split, {})
    items = tuple(CaptionedImage(name, _lines_of(path)) for name, path in texts.items() if path)
    alone = len({path for path in folder.rglob("*") if form_of(path) == ".txt"} - {*texts.values()})
    also = ", a caption a line of NAME.txt" + (f", {alone:,} texts without an image left out" if alone else "")
    return CaptionsFile(str(folder), items, folder=folder, also=also)


def _text_beside(image: Path) -> Path | None:
    return next((path for suffix in (".txt", ".TXT") if (path := image.with_suffix(suffix)).is_file()), None)


def _lines_of(path: Path) -> tuple[str, ...]:
    captions = caption_lines(read_text(path, "captions"))
    if not captions:
        raise InputError(path, "captions", "none", "at least one, a line each")
    return captions


def read_captioned_images(
    images: str | Sequence[str],
    captions: str = "",
    allow_missing: bool = False,
    columns: Columns | None = None,
    split: str = "",
) -> CaptionedImages:
    """Reads sources of captions and finds their images.

    Captions of an image that several sources name are merged, each text once. Images of one name in several folders are
    called by those folders, too. What was understood is said.

    Args:
        images: folders, separated by commas. A source's images may be in any of them; where there are as many folders
            as sources, a source's own folder is searched first.
        captions: sources of captions, separated by commas; by default those that `images` names, which then hold both.
            The folder of a file with rows is searched last.
        allow_missing: leave out images that no folder holds, as long as there is one.
        columns: of tables, by role.
        split: splits that are read of files that tell them, as `caption_tables.said_of_splits` has them.

    Raises:
        InputError: a file or folder is missing or unusable, nothing is named, a folder holds none of the images or,
            unless that is allowed, not all of them, or two images cannot be told apart by name.
    """
    folders = split_names(images) if isinstance(images, str) else list(images)
    sources = split_names(captions)
    if not sources:
        folders, sources = [part for part in folders if Path(part).is_dir()], folders
    if not sources:
        raise InputError("captions", "files", repr(captions), "at least one captions file")
    merged: dict[Any, CaptionedImage] = {}
    missing: list[str] = []
    for number, source in enumerate(sources):
        own = [folders[number]] if 1 < len(folders) == len(sources) else []
        file = open_captions(source, columns or {}, [Path(folder) for folder in folders], split)
        say(file.summary())
        beside = [str(file.folder or Path(source).parent)] if file.columns or file.folder else []
        places = file.places or _find_in_folders(file.items, (own, folders, beside), source, allow_missing)
        absent = [item.image for item in file.items if item.image not in places]
        if absent:
            say(f"{Path(source).name}: {len(absent):,} images without a file left out; the first is {absent[0]!r}")
        missing += absent
        for item in file.items:
            if item.image not in places:
                continue
            place = places[item.image]
            texts = item.captions
            if place in merged:
                texts = tuple(dict.fromkeys(merged[place].captions + texts))
            merged[place] = CaptionedImage(item.image, texts)
    return CaptionedImages(_named_apart(merged), tuple(merged), tuple(missing))


def _named_apart(images: Mapping[Any, CaptionedImage]) -> tuple[CaptionedImage, ...]:
    """The images by place, of which those that share a name are called by their folders as well."""
    count = Counter(item.image for item in images.values())
    shared = [place for place, item in images.items() if count[item.image] > 1]
    paths = [place.absolute() for place in shared if isinstance(place, Path)]
    base = Path(os.path.commonpath(paths)) if paths else Path()
    names = {place: place.absolute().relative_to(base).as_posix() for place in shared if isinstance(place, Path)}
    items = [CaptionedImage(names.get(place, item.image), item.captions) for place, item in images.items()]
    first: dict[str, Any] = {}
    for place, item in zip(images, items, strict=True):
        if first.setdefault(item.image, place) is not place:
            raise InputError(
                place, f"image {item.image!r}", f"the name of {first[item.image]}, too", "one name an image"
            )
    return tuple(items)


def _find_in_folders(
    items: Sequence[CaptionedImage], folders: Sequence[Sequence[str]], file: str, allow_missing: bool
) -> dict[str, Path]:
    """The items' files by name, each from the first group of folders that has it.

    Raises InputError: two folders of a group have different images of one name, or images are missing.
    """
    paths: dict[str, Path] = {}
    missing = [item.image for item in items]
    for group in folders:
        for folder in dict.fromkeys(group):
            for name, path in find_images(missing, folder)[0].items():
                other = paths.setdefault(name, path)
                if other != path and not path.samefile(other) and path.read_bytes() != other.read_bytes():
                    wanted = "as many folders as captions files, each beside its own"
                    raise InputError(file, f"image {name!r}", f"two of this name, {other} and {path}", wanted)
        missing = [name for name in missing if name not in paths]
    where = ", ".join(dict.fromkeys(itertools.chain.from_iterable(folders))) or "no folder"
    if not paths:
        raise InputError(file, "images", f"none of its {len(items)} images in {where}", "a folder that holds them")
    if missing and not allow_missing:
        state = f"{len(missing)} of {len(items)} images in none of {where}; the first is {missing[0]!r}"
        raise InputError(file, "images", state, "all of them, or allow_missing_images")
    return paths


_REGISTERED: dict[str, Callable[[str], PairSource]] = {}


def register_source(prefix: str, open_source: Callable[[str], PairSource]) -> None:
    """Makes `open_pairs` open names that start with `prefix`, such as `scenes:`, by `open_source(name)`."""
    _REGISTERED[prefix] = open_source


register_source("tfds:", open_tfds)


def open_pairs(
    images: str, captions: str = "", *, allow_missing: bool = False, columns: Columns | None = None, split: str = ""
) -> PairSource:
    """Opens the pairs that two settings name, each one entry or several separated by commas.

    Args:
        images: folders of images, what `captioned_images` opens with its images, tars (`.tar`, with ranges in
            braces) or folders of them, names with a registered prefix (`tfds:NAME?split=...`).
        captions: of the folders; each applies to whichever folders hold its images. Without them, the folders have
            their own, as tars and registered sources always have.
        allow_missing: leave out images that no folder holds, and samples of tars without an image or a caption, as
            long as there are others.
        columns: of tables, by role.
        split: of captions files that tell splits.

    Raises:
        InputError: a file or folder is missing or unusable, no folder holds an image, or nothing is named.
    """
    sources: list[PairSource] = []
    folders = []
    for part in split_names(images):
        prefix = next((prefix for prefix in _REGISTERED if part.startswith(prefix)), None)
        if prefix is not None:
            sources.append(_REGISTERED[prefix](part))
        elif is_tars(part):
            sources.append(open_tars(part, allow_missing=allow_missing))
        else:
            refuse_url(part, "images")
            folders.append(part)
    for part in split_names(captions):
        refuse_url(part, "captions")
    if sources and split:
        raise InputError("pairs", "split", repr(split), f"none with {images}: a captions file or a table has splits")
    if folders or captions.strip():
        read = read_captioned_images(folders, captions, allow_missing, columns, split)
        sources.insert(0, FolderPairs(read.items, read.paths))
    if not sources:
        wanted = ", ".join(("folders of images", "tars", *(f"{prefix}NAME" for prefix in _REGISTERED)))
        raise InputError("training data", "images", repr(images), wanted)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def read_all_pairs(
    images: str, captions: str = "", *, allow_missing: bool = False, columns: Columns | None = None, split: str = ""
) -> CaptionedImages:
    """As `open_pairs`, with all captions read, and the images by their names: for commands that meet every image."""
    parts = split_names(images)
    if not any(is_tars(part) or part.startswith(tuple(_REGISTERED)) for part in parts):
        return read_captioned_images(images, captions, allow_missing, columns, split)
    source = open_pairs(images, captions, allow_missing=allow_missing, columns=columns, split=split)
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
        return self.source[self.number].read_bytes()

    def __str__(self) -> str:
        return self.source[self.number].name
