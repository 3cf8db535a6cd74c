"""Wrap models of users or of other libraries, and report errors of their code in one line."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh
from PIL import Image

from rococo_jax.data.images import batches_by_size
from rococo_jax.data.pictures import as_rgb
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh

# Largest difference between two calls with the same input, in a unit vector or relative to the largest score, that
# gives no warning.
_REPEAT_TOLERANCE = 1e-4
_IMAGES_AT_ONCE = 64
ENCODER_METHODS = {"encode_image": "(list of PIL images)", "encode_text": "(list of str)"}


class ForeignModel(LoadedModel):
    """Base of models that wrap an object of a user or of another library.

    Args:
        model: the object.
        name: what tables call it; by default the object's own name, or that of its class.
        mesh: the devices that similarities are computed on.
        images_at_once: number of images in one call of `encode_image`; by default 64, or fewer that take 256 MB.

    Attributes:
        methods: names of the methods that the object must have, with their arguments for messages.
        object_name: the object's own name, whatever tables call it; empty if it has none.
        prompts: the instructions that `with_prompt` has set, by role.

    Raises:
        InputError: the object lacks a method.
    """

    methods: ClassVar[Mapping[str, str]]

    def __init__(
        self, model: Any, name: str | None = None, mesh: Mesh | None = None, images_at_once: int | None = None
    ):
        self.model, object_name = model, getattr(model, "name", None)
        self.object_name = object_name if isinstance(object_name, str) else ""
        self.prompts: dict[str, str] = {}
        self.name = name or self.object_name or type(model).__name__
        self.mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._images_at_once = images_at_once
        self._compared_methods: set[str] = set()
        for method in self.methods:
            if not callable(getattr(model, method, None)):
                signatures = [f"{name}{arguments}" for name, arguments in self.methods.items()]
                expected = f"an object with {' and '.join(signatures)}"
                raise InputError(self.name, "encoder", f"a {type(model).__name__} without {method}", expected)

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Return whether an object has the methods of this kind."""
        return all(callable(getattr(model, method, None)) for method in cls.methods)

    def with_prompt(self, prompt: str, role: str) -> LoadedModel:
        """See `LoadedModel`."""
        if role not in self.prompt_roles or not callable(getattr(self.model, "with_prompt", None)):
            return super().with_prompt(prompt, role)
        prompted = run_user_code(self.name, lambda: self.model.with_prompt(prompt, role))
        loaded = type(self)(prompted, self.name, self.mesh, self._images_at_once)
        loaded.prompts = {**self.prompts, role: prompt}
        return loaded

    def batches(self, images: Iterable[Any], at_once: int = _IMAGES_AT_ONCE) -> Iterator[list[Any]]:
        """Yield images for one call each: as many as were requested, or `at_once` if they do not take much memory.

        Photographs are as large as their files, since the object itself resizes them.
        """
        if self._images_at_once is None:
            return batches_by_size(images, at_once)
        return batches_by_size(images, self._images_at_once, sys.maxsize)

    @property
    def logit_scale(self) -> float | None:
        """The object's factor on cosines, or on scores of pairs; None if it has none."""
        scale = getattr(self.model, "logit_scale", None)
        if scale is None or callable(scale):
            return None
        scale = float(np.asarray(as_numpy(scale), np.float64).reshape(-1)[0])
        if not 0 < scale < np.inf:
            raise InputError(self.name, "logit_scale", scale, "a factor on cosines, above 0")
        return scale

    def prepare(self, image: Any) -> Image.Image:
        """Return the picture in RGB on white, or as the object's `picture_for_library` passes it to its library."""
        return getattr(self.model, "picture_for_library", as_rgb)(image)

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """Return the output of the object's `token_rows`; None if it has no such method.

        Raises InputError if the output does not cover every text.
        """
        method, expected = getattr(self.model, "token_rows", None), "ids of each text, and whether it was truncated"
        if method is None:
            return None
        rows, truncated = run_user_code(
            self.name, lambda: tuple(map(list, method(list(texts)))), "token_rows", expected
        )
        if {len(rows), len(truncated)} != {len(texts)}:
            problem = f"{len(rows)} and {len(truncated)} for {len(texts)} texts"
            raise InputError(self.name, "token_rows", problem, expected)
        return rows, truncated

    def describe(self) -> dict[str, Any]:
        """Return name, identity, and the scale that turns the results into probabilities."""
        return {"name": self.name, **self.identity(), "logit_scale": self.logit_scale}

    def identity(self) -> dict[str, Any]:
        """Return class, own name, prompts and fingerprint: everything that identifies what the object computes."""
        kind = type(self.model)
        return {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "own_name": self.object_name,
            "given_prompts": self.prompts,
            "fingerprint": self.fingerprint(),
        }

    def fingerprint(self) -> str | None:
        """Return the object's own fingerprint, or None: then nothing is cached and no result is reused.

        Raises InputError if it is not a string.
        """
        if not hasattr(self.model, "fingerprint"):
            return None
        fingerprint = run_user_code(self.name, self.model.fingerprint, "fingerprint", "a non-empty string")
        if not isinstance(fingerprint, str) or not fingerprint:
            raise InputError(self.name, "fingerprint()", repr(fingerprint)[:80], "a non-empty string")
        return fingerprint

    def facts(self) -> dict[str, Any]:
        """Return the object's class."""
        return {"provenance": {"encoder": self.describe()["class"]}}

    def call(self, method: str, expected: str, *inputs: list) -> np.ndarray:
        """Call a method of the object and return its array. Raises InputError if it fails or returns something else."""
        output = run_user_code(self.name, lambda: getattr(self.model, method)(*inputs), method, expected)
        array = run_user_code(self.name, lambda: as_numpy(output), method, expected)
        if array.dtype == object:
            attributes = output if isinstance(output, Mapping) else getattr(output, "__dict__", ())
            problem = f"a {type(output).__name__} with {', '.join(map(str, attributes)) or 'no attributes'}"[:200]
            raise InputError(self.name, method, problem, f"an array {expected}: return the attribute with it")
        return array

    def compare_once(self, method: str, output: np.ndarray, repeat: Callable[[], np.ndarray]) -> None:
        """Warn, after the first call of a method, if repeating it with the first items alone changes the output."""
        if method in self._compared_methods:
            return
        self._compared_methods.add(method)
        repeated = repeat()
        difference = float(np.abs(output[: len(repeated)] - repeated).max())
        if difference > _REPEAT_TOLERANCE * max(1.0, float(np.abs(output).max())):
            outputs = "embeddings" if output.ndim > 1 else "scores"
            print(
                f"rococo: warning: {self.name}: {method} returned other {outputs} for the same input in two calls (by "
                f"{difference:.2g}): dropout, sampling, or a result that depends on the batch; results will vary",
                file=sys.stderr,
            )


def as_numpy(value: Any) -> np.ndarray:
    """Return any framework's array in NumPy: torch tensors are copied to the CPU, bfloat16 becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def run_user_code(
    source: str, function: Callable[[], Any], field: str = "encoder", expected: str = "a model that loads"
) -> Any:
    """Call code of a user or of another library; whatever it raises becomes an InputError."""
    try:
        return function()
    except (InputError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # includes exits, and panics of Rust, which are no Exception
        raise InputError(source, field, f"an error, {type(error).__name__}: {error}", expected) from error
