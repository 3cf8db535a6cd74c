"""Models of any framework as encoders: their vectors are checked, brought to unit length, and never trusted unseen.

    class MyModel:
        name = "my model"
        def encode_image(self, images): ...  # list of PIL images in RGB -> (n, d)
        def encode_text(self, texts): ...    # list of str -> (m, d)

On the command line `file.py:make_my_model` or `package.module:make_my_model` names a function that returns such an
object, or the object itself.
"""

import hashlib
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from PIL import Image

from rococo_jax.data.pictures import RULE_VERSION, as_rgb
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.device_steps import BatchFeatures
from rococo_jax.encoders.programs import separate_images
from rococo_jax.encoders.protocol import FeatureEncoder, ImageTextEncoder
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh

_IMAGES_AT_ONCE, _TEXTS_AT_ONCE = 64, 256
# Two calls on the same input may differ by this much in a unit vector before the user is warned.
_SAME = 1e-4


class ForeignEncoder(FeatureEncoder):
    """An object with `encode_image` and `encode_text` as evaluation uses encoders.

    Args:
        name: what tables call it; its own name, or its class's, by default.
        mesh: the devices that similarities are computed on.
        images_at_once: given to one call of `encode_image`; 64 by default.

    Raises:
        InputError: the object lacks a method.
    """

    def __init__(
        self,
        encoder: Any,
        name: str | None = None,
        mesh: jax.sharding.Mesh | None = None,
        images_at_once: int | None = None,
    ):
        self.encoder, own = encoder, getattr(encoder, "name", None)
        self.name = name or (own if isinstance(own, str) and own else type(encoder).__name__)
        for method in ("encode_image", "encode_text"):
            if not callable(getattr(encoder, method, None)):
                wanted = "an object with encode_image(list of PIL images) and encode_text(list of str)"
                raise InputError(self.name, "encoder", f"a {type(encoder).__name__} without {method}", wanted)
        self.mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._images_at_once = images_at_once or _IMAGES_AT_ONCE
        self._checked: set[str] = set()

    @property
    def logit_scale(self) -> float | None:
        """The object's factor on cosines; None where it has none."""
        scale = getattr(self.encoder, "logit_scale", None)
        if scale is None or callable(scale):
            return None
        scale = float(np.asarray(as_numpy(scale), np.float64).reshape(-1)[0])
        if not 0 < scale < np.inf:
            raise InputError(self.name, "logit_scale", scale, "a factor on cosines, above 0")
        return scale

    def prepare(self, image: Any) -> Image.Image:
        """The picture in RGB, white behind, or as the object's `picture_for_library` hands it to its own library."""
        return getattr(self.encoder, "picture_for_library", as_rgb)(image)

    def image_batches(self, images: Any) -> Iterator[BatchFeatures]:
        """Places among the images, PIL images or arrays of pixels, and unit vectors, batch by batch."""
        return self._encode("encode_image", map(self.prepare, separate_images(images)), self._images_at_once)

    def text_batches(self, texts: Sequence[str]) -> Iterator[BatchFeatures]:
        """Places among the texts and unit vectors, batch by batch."""
        return self._encode("encode_text", texts, _TEXTS_AT_ONCE)

    def prepare_texts(self, texts: Sequence[str]) -> tuple[Sequence[str], list[int]]:
        """The texts as they are, by the number of their characters."""
        return texts, list(map(len, texts))

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """What the object's own method of this name says; None where it has none. InputError: not of every text."""
        own, wanted = getattr(self.encoder, "token_rows", None), "ids of each text, and whether it was cut"
        if own is None:
            return None
        rows, cut = run_user_code(self.name, lambda: tuple(map(list, own(list(texts)))), "token_rows", wanted)
        if {len(rows), len(cut)} != {len(texts)}:
            raise InputError(self.name, "token_rows", f"{len(rows)} and {len(cut)} for {len(texts)} texts", wanted)
        return rows, cut

    def project_image_features(self, features: Float[np.ndarray, "images dim"]) -> Float[np.ndarray, "images dim"]:
        """The same vectors: there is no head."""
        return features

    project_text_features = project_image_features

    def describe(self) -> dict[str, Any]:
        """Name, class and fingerprint."""
        kind = type(self.encoder)
        return {"name": self.name, "class": f"{kind.__module__}.{kind.__qualname__}", "fingerprint": self.fingerprint()}

    def fingerprint(self) -> str | None:
        """The object's own fingerprint, or None: then nothing is cached and no result is kept.

        Raises InputError: it is no string.
        """
        if not hasattr(self.encoder, "fingerprint"):
            return None
        found = run_user_code(self.name, self.encoder.fingerprint, "fingerprint", "a non-empty string")
        if not isinstance(found, str) or not found:
            raise InputError(self.name, "fingerprint()", repr(found)[:80], "a non-empty string")
        return found

    def describe_tower(self, side: str) -> dict[str, Any] | None:
        """The fingerprint, which is of both towers, and how images became the pictures that the object is given."""
        found, rule = self.fingerprint(), {"pictures": RULE_VERSION} if side == "vision" else {}
        return None if found is None else {"foreign": found, "side": side, **rule}

    def facts(self) -> dict[str, Any]:
        """The class that encodes."""
        return {"provenance": {"encoder": self.describe()["class"]}}

    def _encode(self, method: str, items: Iterable, at_once: int) -> Iterator[BatchFeatures]:
        items, done, width = iter(items), 0, None
        while batch := list(itertools.islice(items, at_once)):
            made = self._vectors(method, batch)
            if method not in self._checked:
                self._checked.add(method)
                self._compare(method, made[0], self._vectors(method, batch[:1])[0])
            if width not in (None, made.shape[1]):
                raise InputError(self.name, method, f"vectors of {width} and {made.shape[1]}", "one width")
            width = made.shape[1]
            yield np.arange(done, done + len(batch)), made
            done += len(batch)

    def _vectors(self, method: str, batch: list) -> Float[np.ndarray, "items dim"]:
        """One call, checked, as unit vectors in float32."""
        encode = getattr(self.encoder, method)
        made = run_user_code(self.name, lambda: encode(batch), method, "an array of vectors")
        array = run_user_code(self.name, lambda: as_numpy(made), method, "an array of vectors")
        wanted = f"({len(batch)}, dim), one row an item"
        if array.dtype == object:
            raise InputError(self.name, method, _in_words(made), f"an array {wanted}: return the attribute with it")
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

    def _compare(self, method: str, first: np.ndarray, second: np.ndarray) -> None:
        if (difference := float(np.abs(first - second).max())) > _SAME:
            print(
                f"rococo: warning: {self.name}: {method} gave other vectors for the same input in two calls (by "
                f"{difference:.2g}): dropout, sampling, or a result that depends on the batch; figures will vary",
                file=sys.stderr,
            )


def _in_words(value: Any) -> str:
    """Class and attributes of what is no array."""
    names = value if isinstance(value, Mapping) else getattr(value, "__dict__", ())
    return f"a {type(value).__name__} with {', '.join(map(str, names)) or 'no attributes'}"[:200]


def as_numpy(value: Any) -> np.ndarray:
    """Any framework's array: torch tensors are detached and copied to the CPU, bfloat16 becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


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
    if isinstance(made, type) or not isinstance(made, ImageTextEncoder):
        if not callable(made):
            raise InputError(source, "attribute", f"a {type(made).__name__}", "a function that returns an encoder")
        return run_user_code(source, lambda: made(**(arguments or {})))
    if arguments:
        raise InputError(source, "arguments", ", ".join(arguments), "none: it is no function but an encoder")
    return made


def _load_file(source: str, path: Path) -> Any:
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", "a Python file of a model")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"rococo_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    run_user_code(source, lambda: spec.loader.exec_module(module))
    return module


def _load_module(source: str, name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return run_user_code(source, lambda: importlib.import_module(name))


def run_user_code(
    source: str, make: Callable[[], Any], field: str = "encoder", wanted: str = "a model that loads"
) -> Any:
    """What a user's own code, or another library, gives. Raises InputError for whatever it raises."""
    try:
        return make()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own code raises
        raise InputError(source, field, f"an error, {type(error).__name__}: {error}", wanted) from error
