"""Models of any framework as encoders: their vectors are checked, brought to unit length, and never trusted unseen.

    class MyModel:
        name = "my model"
        def encode_image(self, images): ...  # list of PIL images in RGB -> (n, d)
        def encode_text(self, texts): ...    # list of str -> (m, d)

On the command line `file.py:make_my_model` or `package.module:make_my_model` names a function that returns such an
object, or the object itself.
"""

import functools
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.encoders.device_steps import BatchFeatures
from rococo_jax.encoders.foreign_object import ENCODES, ForeignObject, run_user_code
from rococo_jax.encoders.pair_scoring import ForeignPairScorer
from rococo_jax.encoders.programs import separate_images
from rococo_jax.encoders.protocol import FeatureEncoder, ImageTextEncoder, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_file

_TEXTS_AT_ONCE = 256


class ForeignEncoder(ForeignObject, FeatureEncoder):
    """An object with `encode_image` and `encode_text` as evaluation uses encoders."""

    methods, prompt_roles = ENCODES, ("query", "document")

    @functools.cached_property
    def pair_scorer(self) -> "ForeignPairScorer | None":
        """Scorer of pairs by the object's `score_pairs`; None where it has none."""
        return ForeignPairScorer(self.model, self.name) if ForeignPairScorer.fits(self.model) else None

    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """Places among the images, PIL images or arrays of pixels, and unit vectors, batch by batch."""
        return self._encode("encode_image", map(self.prepare, separate_images(images)), self._images_at_once)

    def text_batches(self, texts: Sequence[str]) -> Iterator[BatchFeatures]:
        """Places among the texts and unit vectors, batch by batch."""
        return self._encode("encode_text", texts, _TEXTS_AT_ONCE)

    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """The texts as they are, by the number of their characters."""
        return texts, list(map(len, texts))

    def project_image_features(self, features: Float[np.ndarray, "images dim"]) -> Float[np.ndarray, "images dim"]:
        """The same vectors: there is no head."""
        return features

    project_text_features = project_image_features

    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """Return the object's identity, which is of both towers; None where it has no fingerprint."""
        identity = self.identity()
        return None if identity["fingerprint"] is None else {"foreign": identity, "side": side}

    def _encode(self, method: str, items: Iterable, at_once: int) -> Iterator[BatchFeatures]:
        items, done, width = iter(items), 0, None
        while batch := list(itertools.islice(items, at_once)):
            made = self._vectors(method, batch)
            self.compare_once(method, made, lambda batch=batch: self._vectors(method, batch[:1]))
            if width not in (None, made.shape[1]):
                raise InputError(self.name, method, f"vectors of {width} and {made.shape[1]}", "one width")
            width = made.shape[1]
            yield np.arange(done, done + len(batch)), made
            done += len(batch)

    def _vectors(self, method: str, batch: list) -> Float[np.ndarray, "items dim"]:
        """One call, checked, as unit vectors in float32."""
        wanted = f"({len(batch)}, dim), one row an item"
        array = self.call(method, wanted, batch)
        if array.ndim != 2 or len(array) != len(batch) or array.shape[1] == 0:
            raise InputError(self.name, method, f"shape {array.shape}", wanted)
        if not np.issubdtype(array.dtype, np.floating):
            raise InputError(self.name, method, f"vectors of {array.dtype}", "floating-point numbers")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(array).all(axis=1))[0]
            raise InputError(self.name, method, f"NaN or infinite values in row {row}", "finite numbers")
        norms = np.linalg.norm(array, axis=1, keepdims=True)
        if not norms.all():
            row = np.flatnonzero(norms == 0)[0]
            raise InputError(self.name, method, f"a vector of zeros in row {row}", "vectors with a direction")
        return (array / norms).astype(np.float32)


def is_factory(source: str) -> bool:
    """Whether a source has the form `file.py:attribute` or `package.module:attribute`.

    >>> is_factory("my_models.py:make_clip"), is_factory("a.b:C"), is_factory("demo:plain"), is_factory("C:/models/x")
    (True, True, False, False)
    """
    module, colon, attribute = source.rpartition(":")
    if not colon or not attribute.isidentifier() or Path(source).exists():
        return False
    return module.endswith(".py") or (all(part.isidentifier() for part in module.split(".")) and module != "demo")


def load_factory(source: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """What the attribute gives when called with the keyword arguments, or the attribute where it is an encoder itself.

    Raises InputError: there is no such file, module or attribute, or the code raises.
    """
    place, _, name = source.rpartition(":")
    module = _load_file(source, Path(place)) if place.endswith(".py") else _load_module(source, place)
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        found = f"no attribute {name!r}; it has {', '.join(public[:8]) or 'none'}"
        raise InputError(place, "attribute", found, "a function that returns an encoder")
    made = getattr(module, name)
    if isinstance(made, type) or not isinstance(made, ImageTextEncoder | ScoresPairs):
        if not callable(made):
            raise InputError(source, "attribute", f"a {type(made).__name__}", "a function that returns an encoder")
        return run_user_code(source, lambda: made(**(arguments or {})))
    if arguments:
        raise InputError(source, "arguments", ", ".join(arguments), "none: it is no function but an encoder")
    return made


def _load_file(source: str, path: Path) -> Any:
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", "a Python file of a model")
    # The name of the module is part of the identity of its objects. So another file has another one, wherever it lies.
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
