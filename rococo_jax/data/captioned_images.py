"""Images with captions in every form that people have them: the one reader of all commands and of training.

captions.json                 Karpathy form, BLIP's, COCO's own, Karpathy's own dataset_coco.json (`caption_json`)
captions.jsonl, .csv, .tsv    a row for each caption or image (`caption_tables`); Flickr's captions.txt, NAME.token.txt
                              and results.csv as well
captions.parquet, .arrow      the same, also .feather; images may be inside (`table_images`)
mine.csv?image=a&caption=b    columns of other than the usual names; dataset_coco.json?split=test, train+restval or all
a folder                      with metadata.csv, .jsonl or .parquet; with Parquet files; or NAME.txt beside NAME.jpg
photos?text_files=whole       NAME.txt is one caption, of several lines or paragraphs, in place of a caption a line
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
from typing import Any, get_args

from rococo_jax.data.caption_json import is_one_value, open_json
from rococo_jax.data.caption_tables import (
    CaptionsFile,
    Columns,
    check_split_choice,
    collect_rows,
    parse_columns,
    table_rows,
)
from rococo_jax.data.captions import CaptionedImage, TextFiles, caption_lines, check_no_image_twice
from rococo_jax.data.image_files import find_images, image_names, is_hidden, list_images
from rococo_jax.data.pair_source import CaptionedImages, ImageOfSource, JoinedPairs, PairSource, open_tfds
from rococo_jax.data.table_splits import USUAL_SPLITS, SplitChoice
from rococo_jax.data.tar_pairs import is_tars, open_tars, split_names
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.storage import refuse_url
from rococo_jax.texts import JSON_LINES, TABLES, file_suffix, find_file, read_text

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "metadata.tsv")
_TABLES = (*TABLES, *JSON_LINES, ".txt", ".token")
_ARROW = (".arrow", ".feather")
_FOLDER = "metadata.csv, .jsonl or .parquet, Parquet files, or NAME.txt beside NAME.jpg"


def read_captions(
    source: str | os.PathLike,
    columns: Columns | None = None,
    split: str = "",
    roots: Iterable[Path] = (),
    text_files: TextFiles = "lines",
) -> CaptionsFile:
    """The captions of one source, in the form that its name or its contents tell, whether or not the images are there;
    says what was understood.

    Args:
        columns: those that the user names.
        split: those of a file's splits that are read, as `caption_tables.check_split_choice` has them.
        roots: folders of images, to which absolute names may belong.
        text_files: whether NAME.txt beside NAME.jpg has a caption in each line, or is one.

    Raises:
        InputError: it names the source, and the item, column or line with its field.
    """
    file = _open_captions(str(source), columns or {}, roots, SplitChoice(option=split), text_files)
    say(file.summary())
    return file


def _open_captions(
    source: str, columns: Columns, roots: Iterable[Path], split: SplitChoice, text_files: TextFiles = "lines"
) -> CaptionsFile:
    if source.startswith("hf:"):
        from rococo_jax.data.table_images import open_dataset

        return open_dataset(source, columns, split)
    if "?" in source and not Path(source).exists():
        source, _, query = source.partition("?")
        named = dict(part.partition("=")[::2] for part in query.replace("&", ",").split(","))
        split = SplitChoice(named.pop("split", split.source), split.option)
        text_files = named.pop("text_files", text_files)
        if text_files not in get_args(TextFiles):
            raise InputError(source, "text_files", repr(text_files), " or ".join(get_args(TextFiles)))
        columns = {**columns, **parse_columns(",".join(map("=".join, named.items())))}
    path = Path(source)
    if path.is_dir():
        return _open_folder(path, columns, roots, split, text_files)
    if file_suffix(path) == ".parquet":
        return _open_parquet(source, [path], columns, roots, split)
    if file_suffix(path) in _ARROW:
        from rococo_jax.data.arrow_table import ArrowTable
        from rococo_jax.data.table_images import read_image_tables
        from rococo_jax.data.table_splits import choose_tables

        tables = choose_tables(source, {"": [ArrowTable(path)]}, columns, split)
        return read_image_tables(source, tables, columns, roots)
    if file_suffix(path) in _TABLES and not is_one_value(source):
        return collect_rows(source, table_rows(source, columns), columns, roots, split.either)
    return open_json(source, columns, roots, split.either)


def _open_parquet(
    source: str, files: Sequence[Path], columns: Columns, roots: Iterable[Path], split: SplitChoice
) -> CaptionsFile:
    from rococo_jax.data.downloaded_images import lists_files, read_downloads
    from rococo_jax.data.table_images import open_parquet

    if lists_files(files):
        check_split_choice(source, split.either, {})
        return read_downloads(source, files, columns)
    return open_parquet(source, files, columns, roots, split)


def _open_folder(
    folder: Path, columns: Columns, roots: Iterable[Path], split: SplitChoice, text_files: TextFiles
) -> CaptionsFile:
    from rococo_jax.data.table_images import is_saved_dataset, open_dataset

    if is_saved_dataset(folder):
        return open_dataset(str(folder), columns, split)
    metadata = find_file(folder, _METADATA)
    if metadata is not None:
        return dataclasses.replace(_open_captions(str(metadata), columns, [folder], split), folder=folder)
    if tables := _parquet_files(folder):
        return _open_parquet(str(folder), tables, columns, roots, split)
    names = list_images(folder)
    texts = {name: _text_beside(folder / name) for name in names}
    missing = [name for name, path in texts.items() if path is None]
    if missing:
        found = f"{len(missing)} of {len(names)} images without a text; the first is {missing[0]!r}"
        found = f"no captions file and no texts beside its {len(names)} images" if len(missing) == len(names) else found
        raise InputError(folder, "captions", found, _FOLDER)
    check_split_choice(folder, split.either, {})
    items = tuple(CaptionedImage(name, _captions_of(path, text_files)) for name, path in texts.items() if path)
    alone = len({path for path in folder.rglob("*") if file_suffix(path) == ".txt"} - {*texts.values()})
    also = ", each NAME.txt a caption" if text_files == "whole" else ", a caption a line of NAME.txt"
    also += f", {alone:,} texts without an image left out" if alone else ""
    return CaptionsFile(str(folder), items, folder=folder, also=also)


def _parquet_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, or, where it has neither any nor images, those below it.

    A snapshot of a data set of the hub has them in `data/`, in a folder for each configuration, or in one for each
    split.

    Raises InputError: they lie in several folders, and not by split.
    """
    files = sorted(path for path in folder.iterdir() if file_suffix(path) == ".parquet" and not is_hidden(path.name))
    if files or image_names(folder):
        return files
    below = sorted(path for path in folder.rglob("*") if file_suffix(path) == ".parquet" and path.is_file())
    below = [path for path in below if not is_hidden(path.relative_to(folder).as_posix())]
    folders = list(dict.fromkeys(path.parent.relative_to(folder).as_posix() for path in below))
    are_splits = len({path.parent.parent for path in below}) == 1 and {*map(_base_name, folders)} <= {*USUAL_SPLITS}
    if len(folders) > 1 and not are_splits:
        found = f"Parquet files in {len(folders)} folders: {', '.join(folders[:6])}{', ...' * (len(folders) > 6)}"
        raise InputError(folder, "captions", found, f"one of them, as {folder / folders[0]}")
    return below


def _base_name(folder: str) -> str:
    return PurePosixPath(folder).name


def _text_beside(image: Path) -> Path | None:
    return next((path for suffix in (".txt", ".TXT") if (path := image.with_suffix(suffix)).is_file()), None)


def _captions_of(path: Path, text_files: TextFiles) -> tuple[str, ...]:
    captions = caption_lines(read_text(path, "captions"), text_files)
    if not captions:
        raise InputError(path, "captions", "none", "at least one, a line each")
    return captions


def _read_folders(
    folders: list[str],
    captions: str,
    allow_missing: bool,
    columns: Columns | None,
    split: str,
    text_files: TextFiles,
) -> CaptionedImages:
    """Reads sources of captions and finds their images in folders, or inside the sources; see `open_pairs`.

    Captions of an image that several sources name are merged, each text once. Images of one name in several folders are
    called by those folders, too. A source's images may be in any folder; where there are as many folders as sources, a
    source's own folder is searched first, and the folder of a file with rows last.
    """
    sources = split_names(captions)
    if not sources:
        folders, sources = [part for part in folders if Path(part).is_dir()], folders
    if not sources:
        raise InputError("captions", "files", repr(captions), "at least one captions file")
    merged: dict[Any, CaptionedImage] = {}
    missing: list[str] = []
    for number, source in enumerate(sources):
        own = [folders[number]] if 1 < len(folders) == len(sources) else []
        file = read_captions(source, columns, split, [Path(folder) for folder in folders], text_files)
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
    return CaptionedImages(_named_apart(merged), merged, missing)


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
    images: str,
    captions: str = "",
    *,
    allow_missing: bool = False,
    columns: Columns | None = None,
    split: str = "",
    text_files: TextFiles = "lines",
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
        text_files: as `read_captions` has it, of folders.

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
    if sources and text_files == "whole":
        wanted = "folders; a text of several lines in a tar belongs into NAME.json"
        raise InputError("pairs", "text_files", f"{text_files!r} with {images}", wanted)
    if folders or captions.strip():
        sources.insert(0, _read_folders(folders, captions, allow_missing, columns, split, text_files))
    if not sources:
        wanted = ", ".join(("folders of images", "tars", *(f"{prefix}NAME" for prefix in _REGISTERED)))
        raise InputError("training data", "images", repr(images), wanted)
    return sources[0] if len(sources) == 1 else JoinedPairs(sources)


def read_captioned_images(
    images: str,
    captions: str = "",
    *,
    allow_missing: bool = False,
    columns: Columns | None = None,
    split: str = "",
    text_files: TextFiles = "lines",
) -> CaptionedImages:
    """As `open_pairs`, with all captions read, and the images by their names: for commands that meet every image.

    Raises InputError: as `open_pairs`, or two images cannot be told apart by name.
    """
    parts = split_names(images)
    if not any(is_tars(part) or part.startswith(tuple(_REGISTERED)) for part in parts):
        return _read_folders(parts, captions, allow_missing, columns, split, text_files)
    choices: dict[str, Any] = {"columns": columns, "split": split, "text_files": text_files}
    source = open_pairs(images, captions, allow_missing=allow_missing, **choices)
    captioned = list(map(source.captioned, range(len(source))))
    names = _short_names([item.image for item in captioned])
    items = [CaptionedImage(name, item.captions) for name, item in zip(names, captioned, strict=True)]
    check_no_image_twice([item.image for item in items], images)
    return CaptionedImages(items, [ImageOfSource(source, number) for number in range(len(items))])


def _short_names(names: Sequence[str]) -> list[str]:
    """Names of images in tars, which begin with where the tars are, without what they need not be told apart.

    >>> _short_names(["/data/x/0.tar/a.jpg", "/data/y/0.tar/a.jpg"]), _short_names(["/data/x/0.tar/a.jpg"])
    (['x/0.tar/a.jpg', 'y/0.tar/a.jpg'], ['0.tar/a.jpg'])
    """
    parts = [PurePosixPath(name).parts for name in names]
    for count in range(2, max(map(len, parts), default=2) + 1):
        short = ["/".join(each[-count:]).lstrip("/") for each in parts]
        if len({*short}) == len(short):
            return short
    return ["/".join(each[-2:]) for each in parts]
