"""Load models of other libraries by `LIBRARY:MODEL`. Each library is installed with an extra of this package.

    open_clip:ViT-B-32/openai                      architecture/tag; also `open_clip:hf-hub:NAME`
    transformers:openai/clip-vit-base-patch32      a hub name or folder with image and text features
    sentence_transformers:clip-ViT-B-32            a model that encodes images and texts
    cross_encoder:NAME                             a reranker of sentence-transformers that reads images
    vqascore:NAME                                  a generating model of transformers, by its probability of "Yes"
    mteb:openai/clip-vit-base-patch32              a model of mteb's registry

Batches, devices and dtypes are handled by the libraries: `--model-arg device=cuda`, `batch_size=64`, `dtype=bfloat16`.
"""

import ast
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.encoders.foreign import run_user_code
from rococo_jax.errors import InputError, missing_library

# Prefix -> file, function, and library, which must be installed. The extra is the library's name with dashes.
ADAPTERS = {
    "open_clip": ("torch_model", "load_open_clip", "open_clip"),
    "transformers": ("torch_model", "load_transformers", "transformers"),
    "sentence_transformers": ("torch_model", "load_sentence_transformers", "sentence_transformers"),
    "cross_encoder": ("pair_models", "load_cross_encoder", "sentence_transformers"),
    "vqascore": ("pair_models", "load_vqascore", "transformers"),
    "mteb": ("of_mteb", "load", "mteb"),
}


def is_adapted(source: str) -> bool:
    """Return whether a source names a model of a library with an adapter.

    >>> is_adapted("open_clip:ViT-B-32/openai"), is_adapted("my_models:make"), is_adapted("openai/clip")
    (True, False, False)
    """
    prefix, colon, model = source.partition(":")
    return bool(colon and model) and prefix in ADAPTERS


def load_adapted(source: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Load the model that `LIBRARY:MODEL` names; `arguments` are keyword arguments of its adapter.

    Raises InputError if the library is not installed, the model cannot be loaded, or an argument is unknown.
    """
    prefix, _, model = source.partition(":")
    file, function, library = ADAPTERS[prefix]
    for module in ("torch", library):
        if importlib.util.find_spec(module) is None:
            raise missing_library(source, "library", module, library.replace("_", "-"))
    load = getattr(importlib.import_module(f"rococo_jax.encoders.adapters.{file}"), function)
    return run_user_code(source, lambda: load(model, **(arguments or {})))


def name_of(source: str) -> str:
    """Return what tables and results folders call a model: the name of its folder, or its own without slashes.

    >>> name_of("open_clip:ViT-B-32/openai"), name_of("open_clip:hf-hub:timm/vit_base")
    ('ViT-B-32-openai', 'timm-vit_base')
    """
    model = source.partition(":")[2].removeprefix("hf-hub:").removeprefix("local-dir:")
    return Path(model).resolve().name if Path(model).exists() else model.replace("/", "-")


def parse_arguments(entries: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` entries: numbers, true, false and none become Python values, everything else text.

    Raises:
        InputError: an entry has another form, or a key occurs twice.

    >>> parse_arguments(["batch_size=64", "device=cuda:0", "fast=true"])
    {'batch_size': 64, 'device': 'cuda:0', 'fast': True}
    """
    arguments: dict[str, Any] = {}
    literals = {"true": True, "false": False, "none": None}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not equals or not key.isidentifier() or key in arguments:
            raise InputError("model_arg", "argument", repr(entry), "key=value, each key once")
        try:
            arguments[key] = literals[text.lower()] if text.lower() in literals else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[key] = text
    return arguments
