"""Folders and tokenizers of checkpoints, on the disk or from the hub."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rococo_jax.errors import InputError

if TYPE_CHECKING:
    from rococo_jax.data.tokenizers import Tokenizer

WANTED = "a model directory, a checkpoint's folder or file, or a hub name such as openai/clip-vit-base-patch32"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)
_HUB_NAME = re.compile(r"(?:hf-hub:)?([\w.-]+/[\w.-]+)")
_NO_TOKENIZER = "none"


def find_folder(source: str | Path, files: Sequence[str], field: str = "model", wanted: str = WANTED) -> Path:
    """The folder itself, or the hub's snapshot of it with `files` (patterns) alone.

    Raises:
        InputError: it is neither, or the hub cannot be reached; the line has `field` and `wanted`.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(source, field, "a file", wanted)
    name = _HUB_NAME.fullmatch(str(source))
    if name is None:
        raise InputError(source, field, "nothing there", wanted)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name[1], allow_patterns=list(files)))
    except Exception as error:  # no network, no such name, no right to read it
        found = f"no such folder, and the hub answers: {(str(error).splitlines() or [type(error).__name__])[0]}"
        raise InputError(source, field, found, wanted) from None


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def choose_tokenizer(
    source: object, asked: str | None, folder: Path | None, default: str, read: Callable[[str | Path], "Tokenizer"]
) -> tuple["Tokenizer | None", str]:
    """The tokenizer of a checkpoint, and where it was read from.

    Args:
        source: the checkpoint, for the error line.
        asked: a folder, a hub name, `none`, or None for the default.
        folder: where the checkpoint may have tokenizer files of its own.
        default: the hub name that the family's checkpoints share.
        read: reads the family's tokenizer from a folder or hub name.

    Raises:
        InputError: it cannot be read; where the default cannot, the line tells how to give one.
    """
    if asked == _NO_TOKENIZER:
        return None, "none, as asked"
    if asked is not None:
        return read(asked), asked
    if folder is not None and has_tokenizer(folder):
        return read(folder), "the checkpoint's folder"
    try:
        return read(default), default
    except InputError as error:
        found = f"none in the checkpoint, and {default} cannot be read ({error.found})"
        wanted = "the argument tokenizer, a folder or hub name that has its files (or none)"
        raise InputError(source, "tokenizer", found, wanted) from None
