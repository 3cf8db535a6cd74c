"""Use a model of any framework as an encoder: its embeddings are checked and normalised to unit length.

    class MyModel:
        name = "my model"
        def encode_image(self, images): ...  # list of PIL images in RGB -> (n, d)
        def encode_text(self, texts): ...    # list of str -> (m, d)

On the command line, `file.py:make_my_model` or `package.module:make_my_model` names a function that returns such an
object, or the object itself.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.data.images import chunks
from rococo_jax.encoders.device_steps import BatchFeatures
from rococo_jax.encoders.foreign_model import ENCODER_METHODS, ForeignModel, run_user_code
from rococo_jax.encoders.pair_scoring import ForeignPairScorer
from rococo_jax.encoders.programs import separate_images
from rococo_jax.encoders.protocol import ImageTextEncoder, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file

_TEXTS_AT_ONCE = 256


class ForeignEncoder(ForeignModel):
    """An object with `encode_image` and `encode_text`."""

    methods, prompt_roles, embeds = ENCODER_METHODS, ("query", "document"), True

    @functools.cached_property
    def pair_scorer(self) -> "ForeignPairScorer | None":
        """The object's `score_pairs` as a model; None if it has no such method."""
        return ForeignPairScorer(self.model, self.name) if ForeignPairScorer.fits(self.model) else None

    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """Yield indices into the images (PIL images or arrays of pixels) and unit embeddings, batch by batch."""
        return self._encode("encode_image", self.batches(map(self.prepare, separate_images(images))))

    def text_batches(self, texts: Sequence[str]) -> Iterator[BatchFeatures]:
        """Yield indices into the texts and unit embeddings, batch by batch."""
        return self._encode("encode_text", chunks(texts, _TEXTS_AT_ONCE))

    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """Return the texts unchanged, and their numbers of characters."""
        return texts, list(map(len, texts))

    def project_image_features(self, features: Float[np.ndarray, "images dim"]) -> Float[np.ndarray, "images dim"]:
        """Return the features unchanged: there is no head."""
        return features

    project_text_features = project_image_features

    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """Return the object's identity, which covers both towers; None if it has no fingerprint."""
        identity = self.identity()
        return None if identity["fingerprint"] is None else {"foreign": identity, "side": side}

    def _encode(self, method: str, batches: Iterable[list]) -> Iterator[BatchFeatures]:
        start, width = 0, None
        for batch in batches:
            embeddings = self._embed(method, batch)
            self.compare_once(method, embeddings, lambda batch=batch: self._embed(method, batch[:1]))
            if width not in (None, embeddings.shape[1]):
                problem = f"embeddings of {width} and of {embeddings.shape[1]} dimensions"
                raise InputError(self.name, method, problem, "one number of dimensions")
            width = embeddings.shape[1]
            yield np.arange(start, start + len(batch)), embeddings
            start += len(batch)

    def _embed(self, method: str, batch: list) -> Float[np.ndarray, "items dim"]:
        """Return the checked output of one call as unit vectors in float32."""
        expected = f"({len(batch)}, dim), one row for each item"
        array = self.call(method, expected, batch)
        if array.ndim != 2 or len(array) != len(batch) or array.shape[1] == 0:
            raise InputError(self.name, method, f"shape {array.shape}", expected)
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(self.name, method, f"embeddings of {array.dtype}", "floating-point numbers")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(axis=1))[0]
            raise InputError(self.name, method, f"NaN or infinite values in row {row}", "finite numbers")
        norms = np.linalg.norm(array, axis=1, keepdims=True)
        if not norms.all():
            row = np.flatnonzero(norms == 0)[0]
            raise InputError(self.name, method, f"only zeros in row {row}", "embeddings with a direction")
        return (array / norms).astype(np.float32)


def is_factory(source: str) -> bool:
    """Return whether a source has the form `file.py:attribute` or `package.module:attribute`.

    >>> is_factory("my_models.py:make_clip"), is_factory("a.b:C"), is_factory("demo:plain"), is_factory("C:/models/x")
    (True, True, False, False)
    """
    module, colon, attribute = source.rpartition(":")
    if not colon or not attribute.isidentifier() or Path(source).exists():
        return False
    return module.endswith(".py") or (all(part.isidentifier() for part in module.split(".")) and module != "demo")


def load_factory(source: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Call the attribute with the keyword arguments and return the result; return the attribute if it is an encoder.

    Raises InputError if there is no such file, module or attribute, or the code raises an error.
    """
    module_name, _, name = source.rpartition(":")
    is_file = module_name.endswith(".py")
    module = _load_file(source, Path(module_name)) if is_file else _load_module(source, module_name)
    expected = "a function that returns an encoder"
    if not hasattr(module, name):
        public_names = [each for each in vars(module) if not each.startswith("_")]
        problem = f"no attribute {name!r}; it has {', '.join(public_names[:8]) or 'none'}"
        raise InputError(module_name, "attribute", problem, expected)
    attribute = getattr(module, name)
    is_model = isinstance(attribute, ImageTextEncoder | ScoresPairs) and not isinstance(attribute, type)
    if is_model and arguments:
        raise InputError(source, "arguments", ", ".join(arguments), "none: it is an encoder, not a function")
    if is_model:
        return attribute
    if not callable(attribute):
        raise InputError(source, "attribute", f"a {type(attribute).__name__}", expected)
    return run_user_code(source, lambda: attribute(**(arguments or {})))


def _load_file(source: str, path: Path) -> Any:
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", "a Python file of a model")
    # The module's name is part of the identity of its objects, so it depends on the file's contents, not on its path.
    name = f"rococo_user_{path.stem}_{hash_file(path)[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    run_user_code(source, lambda: spec.loader.exec_module(module))
    return module


def _load_module(source: str, name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return run_user_code(source, lambda: importlib.import_module(name))
