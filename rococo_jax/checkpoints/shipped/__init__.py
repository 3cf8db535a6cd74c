"""The small models that come with the package, trained on drawn scenes (`configs/scenes_tiny.py`)."""

import os
from pathlib import Path

from rococo_jax.errors import InputError

ASSETS = Path(__file__).parent
PREFIX = "demo:"
_DESCRIPTION = "model.json"


def shipped_models() -> dict[str, Path]:
    """The model directories that come with the package, by name; `plain`, the undefended one, is first."""
    found = sorted((path.parent for path in ASSETS.glob(f"*/{_DESCRIPTION}")), key=lambda path: path.name != "plain")
    return {path.name: path for path in found}


def demo_folder(source: str | os.PathLike) -> Path | None:
    """The model directory that `demo:NAME` stands for; None for any other source.

    Raises:
        InputError: no model of that name comes with the package.

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
