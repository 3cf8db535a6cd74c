"""`Format`: how a checkpoint format is recognised and read; and the choice of a checkpoint's tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rococo_jax.checkpoints.parameters import Checkpoint, ConversionOptions, missing_choice
from rococo_jax.data.tokenizer_files import TOKENIZER_FILES
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError

_NO_TOKENIZER = "none"


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


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def choose_tokenizer(
    source: object, requested: str | None, folder: Path | None, default: str, read: Callable[[str | Path], Tokenizer]
) -> tuple[Tokenizer | None, str]:
    """Return the tokenizer of a checkpoint, and where it was read from.

    Args:
        source: the checkpoint, for errors.
        requested: a folder, a hub name, `none`, or None for the default.
        folder: a folder that may have the checkpoint's own tokenizer files.
        default: the hub name of the tokenizer that the family's checkpoints share.
        read: reads the family's tokenizer from a folder or hub name.

    Raises InputError if the tokenizer cannot be read; for the default, the message says how to give another one.
    """
    if requested == _NO_TOKENIZER:
        return None, "none (requested)"
    if requested is not None:
        return read(requested), requested
    if folder is not None and has_tokenizer(folder):
        return read(folder), "the checkpoint's folder"
    try:
        return read(default), default
    except InputError as error:
        problem = f"none in the checkpoint, and {default} cannot be read ({error.found})"
        raise missing_choice(
            source, "tokenizer", problem, "a folder or hub name that has its files (or none)"
        ) from None
