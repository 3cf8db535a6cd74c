"""Find tokenizers and shipped models: on the disk, on the hub, or in the package."""

import os
from collections.abc import Callable
from pathlib import Path

from rococo_jax.checkpoints.parameters import missing_choice
from rococo_jax.data.tokenizer_files import TOKENIZER_FILES
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError, unknown_name

_NO_TOKENIZER = "none"


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


ASSETS = Path(__file__).parent / "shipped"
PREFIX = "demo:"
_DESCRIPTION = "model.json"


def shipped_models() -> dict[str, Path]:
    """Return the model directories of the package by name; `plain`, the one without a defence, is first."""
    folders = sorted((path.parent for path in ASSETS.glob(f"*/{_DESCRIPTION}")), key=lambda path: path.name != "plain")
    return {path.name: path for path in folders}


def demo_folder(source: str | os.PathLike) -> Path | None:
    """Return the model directory of `demo:NAME`; None for other sources, InputError for an unknown NAME.

    >>> demo_folder("demo:plain").name
    'plain'
    """
    if not str(source).startswith(PREFIX):
        return None
    models = shipped_models()
    name = str(source).removeprefix(PREFIX)
    if name not in models:
        raise unknown_name(source, "model", f"{PREFIX}{name}", [f"{PREFIX}{model}" for model in models])
    return models[name]
