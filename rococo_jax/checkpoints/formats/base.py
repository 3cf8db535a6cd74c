"""`Format`: how a checkpoint format is recognised and read."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rococo_jax.checkpoints.parameters import Checkpoint, ConversionOptions


class Format(NamedTuple):
    """A checkpoint format: single files with certain suffixes, or folders and hub names with a description file.

    Attributes:
        name: value of `source_format`.
        read: reads a source of this format.
        suffixes: suffixes of its files; empty for folders.
        descriptions: files of a folder that describe the model; empty for files.
        is_folder: whether a folder that has description files is of this format. Its second argument is False if the
            folder holds the description files of a hub repository alone, without the weights.
        options: names of the conversion options that apply to this format and not to all formats.
    """

    name: str
    read: Callable[[str | Path, ConversionOptions], Checkpoint]
    suffixes: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()
    is_folder: Callable[[Path, bool], bool] = lambda folder, has_weights: False
    options: frozenset[str] = frozenset()
