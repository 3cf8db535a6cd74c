"""Robustness of image-text models under altered captions and mixed images, in JAX.

>>> import rococo_jax
>>> model = rococo_jax.load_model("path/to/model")           # doctest: +SKIP
>>> model.encode_text(["a dog on the beach"]).shape           # doctest: +SKIP
"""

import importlib

from rococo_jax.version import __version__

# Public names and the rooms they live in; loaded on first use, so that importing the package imports no JAX.
_PUBLIC = {
    "load_model": "rococo_jax.checkpoints",
    "InputError": "rococo_jax.errors",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'rococo_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
