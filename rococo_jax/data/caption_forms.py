"""Read captions in any form: `open_captions` recognises them all.

captions.json                 Karpathy's form, BLIP's, COCO's own, Karpathy's own dataset_coco.json (`caption_rows`)
captions.jsonl, .csv, .tsv    a row for each caption or image (`caption_tables`); also Flickr's captions.txt,
                              NAME.token.txt and results.csv
captions.parquet, .arrow      the same; images may be inside (`table_images`)
mine.csv?image=a&caption=b    columns with unusual names; dataset_coco.json?split=test, train+restval or all
a folder                      with metadata.csv, .jsonl or .parquet, with Parquet files, or NAME.txt beside NAME.jpg
photos?text_files=whole       NAME.txt is one caption of several lines or paragraphs, instead of one caption per line
hf:NAME?split=test            a data set of the `datasets` library, or a folder of `save_to_disk` (`table_images`)
"""

import dataclasses
import importlib
import os
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from rococo_jax.data.caption_rows import is_one_value, open_json, open_text_table
from rococo_jax.data.caption_tables import (
    CaptionsFile,
    check_split_choice,
    parse_columns,
    refuse_columns,
)
from rococo_jax.data.captions import CaptionedImage, ReadOptions, TextFiles, caption_lines
from rococo_jax.data.image_files import image_names, is_saved_dataset, list_images, parquet_files
from rococo_jax.errors import InputError
from rococo_jax.progress import say
from rococo_jax.texts import JSON_LINES, TABLES, file_suffix, find_file, read_text

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "metadata.tsv")
_TEXT_TABLES = (*TABLES, *JSON_LINES, ".txt", ".token")


def read_captions(source: str | os.PathLike, **options: Any) -> CaptionsFile:
    """Read the captions of one source, whether or not the images exist, and report what was read.

    Args:
        options: the attributes of `ReadOptions`.

    Raises:
        InputError: names the source, and the item, column or line with its field.
    """
    file = open_captions(str(source), ReadOptions(**options))
    say(file.summary())
    return file


def open_captions(source: str, options: ReadOptions) -> CaptionsFile:
    """Read the captions of one source, as `read_captions`, without reporting."""
    if file_suffix(source) == ".tar":
        raise InputError(source, "captions", "a tar", "a captions file; a tar has its own captions, as one of `images`")
    folder, suffix = Path(source), file_suffix(source)
    if source.startswith("hf:") or is_saved_dataset(folder):
        return _open_with("open_dataset", source, options)
    if "?" in source and not folder.exists():
        return _open_with_options(source, options)
    if folder.is_dir() and find_file(folder, _METADATA) is not None:
        return _open_metadata(source, options)
    if folder.is_dir() and not parquet_files(folder):
        return _open_text_files(source, options)
    if folder.is_dir() or suffix == ".parquet":
        return _open_with("open_parquet", source, options)
    if suffix in (".arrow", ".feather"):
        return _open_with("open_arrow", source, options)
    if suffix in _TEXT_TABLES and not is_one_value(source):
        return open_text_table(source, options)
    return open_json(source, options)


def _open_with(name: str, source: str, options: ReadOptions) -> CaptionsFile:
    """Call a function of `table_images`, which takes as long to import as all other forms."""
    return getattr(importlib.import_module("rococo_jax.data.table_images"), name)(source, options)


def _open_with_options(source: str, options: ReadOptions) -> CaptionsFile:
    """Read `NAME?split=test&image=photo`, whose options win over those of the command."""
    name, _, query = source.partition("?")
    values = dict(part.partition("=")[::2] for part in query.replace("&", ",").split(","))
    split = values.pop("split", options.split)
    text_files = values.pop("text_files", options.text_files)
    if text_files not in get_args(TextFiles):
        raise InputError(name, "text_files", repr(text_files), " or ".join(get_args(TextFiles)))
    columns = {**options.requested_columns, **parse_columns(",".join(map("=".join, values.items())))}
    return open_captions(name, dataclasses.replace(options, columns=columns, split=split, text_files=text_files))


# Folders


def _open_metadata(source: str, options: ReadOptions) -> CaptionsFile:
    """Read a folder of images with a table of their captions."""
    folder = Path(source)
    metadata = find_file(folder, _METADATA)
    file = open_captions(str(metadata), dataclasses.replace(options, image_folders=(folder,)))
    remarks = file.remarks
    if others := [name for name in _METADATA if name != metadata.name and find_file(folder, [name])]:
        remarks += f", {' and '.join(others)} beside it not read"
    named = {PurePosixPath(item.image).as_posix() for item in file.items}
    unnamed = [] if options.split or file.image_files else [name for name in image_names(folder) if name not in named]
    if unnamed and len(unnamed) < len(image_names(folder)):
        remarks += (
            f", {len(unnamed):,} images of the folder that it does not name left out; the first is {unnamed[0]!r}"
        )
    return dataclasses.replace(file, folder=folder, remarks=remarks)


def _open_text_files(source: str, options: ReadOptions) -> CaptionsFile:
    """Read a folder of NAME.jpg, each with its captions in NAME.txt."""
    folder = Path(source)
    names = list_images(folder)
    texts = {name: _text_file_of(folder / name) for name in names}
    missing = [name for name, path in texts.items() if path is None]
    if missing:
        problem = f"{len(missing)} of {len(names)} images without a text; the first is {missing[0]!r}"
        if len(missing) == len(names):
            problem = f"no captions file and no texts beside its {len(names)} images"
        tables = sorted(path.name for path in folder.iterdir() if file_suffix(path) in (*TABLES, *JSON_LINES, ".json"))
        problem += f", but {', '.join(tables[:3])}" if tables else ""
        expected = (
            "metadata.csv, .jsonl or .parquet, Parquet files, or NAME.txt beside NAME.jpg; or its captions file named"
        )
        raise InputError(folder, "captions", problem, expected)
    check_split_choice(folder, options.split, {})
    refuse_columns(folder, options.requested_columns, "none: NAME.txt has no columns")
    items = tuple(CaptionedImage(name, _captions_of(path, options.text_files)) for name, path in texts.items() if path)
    unused = len({path for path in folder.rglob("*") if file_suffix(path) == ".txt"} - {*texts.values()})
    remarks = ", each NAME.txt a caption" if options.text_files == "whole" else ", one caption per line of NAME.txt"
    remarks += f", {unused:,} texts without an image left out" if unused else ""
    counts = Counter(texts.values())
    if shared := [name for name, path in texts.items() if counts[path] > 1]:
        remarks += f", {len(shared):,} images that share a text, such as {' and '.join(shared[:2])}"
    return CaptionsFile(source, items, folder=folder, remarks=remarks)


def _text_file_of(image: Path) -> Path | None:
    return next((path for suffix in (".txt", ".TXT") if (path := image.with_suffix(suffix)).is_file()), None)


def _captions_of(path: Path, text_files: TextFiles) -> tuple[str, ...]:
    captions = caption_lines(read_text(path, "captions"), text_files)
    if not captions:
        raise InputError(path, "captions", "none", "at least one, each on its own line")
    return captions
