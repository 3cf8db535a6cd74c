"""The models that the package contains, by name."""

import os
from pathlib import Path

from rococo_jax.errors import unknown_name

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
