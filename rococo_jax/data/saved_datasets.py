"""Image-caption data sets of the Hugging Face `datasets` library: from the hub or its cache, or saved in a folder.

    hf:nlphuji/flickr30k?split=test
    hf:NAME:CONFIG?split=test&image=photo&caption=texts
    a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote, also as hf:FOLDER?split=test

Options: `split` (`test` by default, or the only one), and the columns of the image, the captions and the image's name.
"""

import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rococo_jax.data.caption_tables import USUAL, CaptionsFile, Columns
from rococo_jax.data.table_images import read_image_tables, with_paths
from rococo_jax.errors import InputError, first_line

PREFIX = "hf:"
_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((path / name).is_file() for name in _SAVED)


def open_dataset(name: str, columns: Columns) -> CaptionsFile:
    """The captioned images of a data set; see the module's text.

    Raises:
        InputError: `datasets` is not installed or finds no such data set or split, an option is unknown, or a column
            or a row cannot be used.
    """
    path, _, query = name.removeprefix(PREFIX).partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    if unknown := set(options) - {"split", *USUAL}:
        raise InputError(name, "option", min(unknown), f"one of {', '.join(('split', *USUAL))}")
    split = options.pop("split", None)
    dataset = _load(name, path, split)
    if isinstance(dataset, dict):
        chosen = split or ("test" if "test" in dataset else next(iter(dataset)) if len(dataset) == 1 else None)
        if chosen not in dataset:
            raise InputError(name, "split", repr(split) if split else "none named", f"one of {', '.join(dataset)}")
        dataset = dataset[chosen]
    return read_image_tables(name, [DatasetTable(dataset, name)], {**columns, **options})


def _load(name: str, path: str, split: str | None) -> Any:
    try:
        import datasets
    except ImportError:
        raise InputError(name, "datasets", "not installed", "pip install 'rococo-jax[datasets]'") from None
    try:
        if Path(path).is_dir() and is_saved_dataset(Path(path)):
            return datasets.load_from_disk(path)
        dataset, _, config = path.partition(":")
        return datasets.load_dataset(dataset, config or None, split=split)
    except Exception as error:  # what the library raises differs from one builder and file system to the next
        wanted = "a data set of the hub, its cache, or a folder by save_to_disk, and a split of it"
        raise InputError(name, "data set", first_line(error)[:200], wanted) from None


class DatasetTable:
    """A data set as an `ImageTable`. It pickles by the files that it maps."""

    def __init__(self, dataset: Any, name: str):
        self.dataset, self.name = dataset.with_format("arrow"), name

    def schema(self) -> pa.Schema:
        """See `ImageTable`."""
        return self.dataset.features.arrow_schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """See `ImageTable`."""
        return with_paths(self.dataset.select_columns(list(columns))[:], columns)

    def image(self, row: int, column: str) -> bytes | None:
        """See `ImageTable`."""
        value = self.dataset[row][column][0].as_py()
        if isinstance(value, dict):
            value = value["bytes"] or (value["path"] and Path(value["path"]).read_bytes())
        return value

    def __str__(self) -> str:
        return self.name
