"""Find checkpoints and tokenizers: on the disk, on the hub, or with the package."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rococo_jax.checkpoints.parameters import missing_choice
from rococo_jax.data.tokenizer_files import TOKENIZER_FILES
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.errors import InputError
from rococo_jax.storage import hub_snapshot

WANTED = "a model directory, a checkpoint's folder or file, or a hub name such as openai/clip-vit-base-patch32"
# Old names of the hub, such as gpt2, have no owner; a name that ends like a file is none of the hub's.
_HUB_NAME = re.compile(
    r"(?:hf-hub:)?((?:[\w.-]+/)?[\w-][\w.-]*(?<!\.pt)(?<!\.pth)(?<!\.bin)(?<!\.npz))(?:@([0-9a-f]{40}))?"
)
_NO_TOKENIZER = "none"


def find_folder(source: str | Path, files: Sequence[str], field: str = "model", wanted: str = WANTED) -> Path:
    """The folder itself, or the hub's snapshot of it with `files` (patterns) alone, at `@REVISION`; else InputError."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(source, field, "a file", wanted)
    name = _HUB_NAME.fullmatch(str(source))
    if name is None:
        raise InputError(source, field, "nothing there", wanted)
    return hub_snapshot(source, name[1], files, field, wanted, name[2])


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def choose_tokenizer(
    source: object, requested: str | None, folder: Path | None, default: str, read: Callable[[str | Path], Tokenizer]
) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a checkpoint, and where it was read from.

    Args:
        requested: a folder, a hub name, `none`, or None for the default.
        folder: where the checkpoint may have tokenizer files of its own.
        default: the hub name that the family's checkpoints share.
        read: reads the family's tokenizer from a folder or hub name.

    Raises InputError where it cannot be read; where the default cannot, the line tells how to give one.
    """
    if requested == _NO_TOKENIZER:
        return None, "none, as asked"
    if requested is not None:
        return read(requested), requested
    if folder is not None and has_tokenizer(folder):
        return read(folder), "the checkpoint's folder"
    try:
        return read(default), default
    except InputError as error:
        found = f"none in the checkpoint, and {default} cannot be read ({error.found})"
        raise missing_choice(source, "tokenizer", found, "a folder or hub name that has its files (or none)") from None


ASSETS = Path(__file__).parent / "shipped"
PREFIX = "demo:"
_DESCRIPTION = "model.json"


def shipped_models() -> dict[str, Path]:
    """The model directories that come with the package, by name; `plain`, the undefended one, is first."""
    folders = sorted((path.parent for path in ASSETS.glob(f"*/{_DESCRIPTION}")), key=lambda path: path.name != "plain")
    return {path.name: path for path in folders}


def demo_folder(source: str | os.PathLike) -> Path | None:
    """The model directory that `demo:NAME` stands for; None for other sources, InputError for an unknown NAME.

    >>> demo_folder("demo:plain").name
    'plain'
    """
    if not str(source).startswith(PREFIX):
        return None
    models = shipped_models()
    name = str(source).removeprefix(PREFIX)
    if name not in models:
        raise InputError(source, "model", repr(name), " or ".join(f"{PREFIX}{known}" for known in models))
    return models[name]
