"""What an object of a user or of another library has, and calls of it whose errors are one line."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh
from PIL import Image

from rococo_jax.data.pictures import as_rgb
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.runtime import make_mesh

# Two calls on the same input may differ by this much in a unit vector, or in a share of a score, before a warning.
_SAME = 1e-4
_IMAGES_AT_ONCE = 64
ENCODES = {"encode_image": "(list of PIL images)", "encode_text": "(list of str)"}


class ForeignObject(LoadedModel):
    """What a user's object, or another library's, has whatever it computes. Its kinds have one constructor.

    Args:
        model: the object.
        name: what tables call it; its own name, or its class's, by default.
        mesh: the devices that similarities are computed on.
        images_at_once: given to one call of `encode_image`; 64 by default.

    Attributes:
        methods: that an object of this kind must have, and what they take.
        own_name: the object's own name, whatever tables call it; empty where it has none.
        prompts: the instructions that the object was given by `with_prompt`, by role.

    Raises:
        InputError: the object lacks a method.
    """

    methods: ClassVar[Mapping[str, str]]

    def __init__(
        self, model: Any, name: str | None = None, mesh: Mesh | None = None, images_at_once: int | None = None
    ):
        self.model, own_name = model, getattr(model, "name", None)
        self.own_name = own_name if isinstance(own_name, str) else ""
        self.prompts: dict[str, str] = {}
        self.name = name or self.own_name or type(model).__name__
        self.mesh = make_mesh(jax.local_devices()) if mesh is None else mesh
        self._images_at_once, self._compared = images_at_once or _IMAGES_AT_ONCE, set()
        for method in self.methods:
            if not callable(getattr(model, method, None)):
                wanted = f"an object with {' and '.join(each + of for each, of in self.methods.items())}"
                raise InputError(self.name, "encoder", f"a {type(model).__name__} without {method}", wanted)

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Whether an object is of this kind."""
        return all(callable(getattr(model, method, None)) for method in cls.methods)

    def with_prompt(self, prompt: str, role: str) -> LoadedModel:
        """See `LoadedModel`."""
        if role not in self.prompt_roles or not callable(getattr(self.model, "with_prompt", None)):
            return super().with_prompt(prompt, role)
        prompted = run_user_code(self.name, lambda: self.model.with_prompt(prompt, role))
        loaded = type(self)(prompted, self.name, self.mesh, self._images_at_once)
        loaded.prompts = {**self.prompts, role: prompt}
        return loaded

    @property
    def logit_scale(self) -> float | None:
        """The object's factor on cosines, or on scores of pairs; None where it has none."""
        scale = getattr(self.model, "logit_scale", None)
        if scale is None or callable(scale):
            return None
        scale = float(np.asarray(as_numpy(scale), np.float64).reshape(-1)[0])
        if not 0 < scale < np.inf:
            raise InputError(self.name, "logit_scale", scale, "a factor on cosines, above 0")
        return scale

    def prepare(self, image: Any) -> Image.Image:
        """The picture in RGB, white behind, or as the object's `picture_for_library` hands it to its own library."""
        return getattr(self.model, "picture_for_library", as_rgb)(image)

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """What the object's own method of this name says; None where it has none. InputError: not of every text."""
        own, wanted = getattr(self.model, "token_rows", None), "ids of each text, and whether it was cut"
        if own is None:
            return None
        rows, cut = run_user_code(self.name, lambda: tuple(map(list, own(list(texts)))), "token_rows", wanted)
        if {len(rows), len(cut)} != {len(texts)}:
            raise InputError(self.name, "token_rows", f"{len(rows)} and {len(cut)} for {len(texts)} texts", wanted)
        return rows, cut

    def describe(self) -> dict[str, Any]:
        """Return what tables call it, its identity, and the scale that makes probabilities of its results."""
        return {"name": self.name, **self.identity(), "logit_scale": self.logit_scale}

    def identity(self) -> dict[str, Any]:
        """Return class, own name, prompts and fingerprint: everything that identifies what the object computes."""
        kind = type(self.model)
        return {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "own_name": self.own_name,
            "given_prompts": self.prompts,
            "fingerprint": self.fingerprint(),
        }

    def fingerprint(self) -> str | None:
        """The object's own fingerprint, or None: then nothing is cached and no result is kept.

        Raises InputError: it is no string.
        """
        if not hasattr(self.model, "fingerprint"):
            return None
        found = run_user_code(self.name, self.model.fingerprint, "fingerprint", "a non-empty string")
        if not isinstance(found, str) or not found:
            raise InputError(self.name, "fingerprint()", repr(found)[:80], "a non-empty string")
        return found

    def facts(self) -> dict[str, Any]:
        """The class that computes."""
        return {"provenance": {"encoder": self.describe()["class"]}}

    def call(self, method: str, wanted: str, *inputs: list) -> np.ndarray:
        """The array that a method of the object gives. Raises InputError: it raises, or gives something else."""
        made = run_user_code(self.name, lambda: getattr(self.model, method)(*inputs), method, wanted)
        array = run_user_code(self.name, lambda: as_numpy(made), method, wanted)
        if array.dtype == object:
            names = made if isinstance(made, Mapping) else getattr(made, "__dict__", ())
            found = f"a {type(made).__name__} with {', '.join(map(str, names)) or 'no attributes'}"[:200]
            raise InputError(self.name, method, found, f"an array {wanted}: return the attribute with it")
        return array

    def compare_once(self, method: str, made: np.ndarray, again: Callable[[], np.ndarray]) -> None:
        """Warn, after the first call of a method, where calls with the first of its items alone give something else."""
        if method in self._compared:
            return
        self._compared.add(method)
        alone = again()
        difference = float(np.abs(made[: len(alone)] - alone).max())
        if difference > _SAME * max(1.0, float(np.abs(made).max())):
            print(
                f"rococo: warning: {self.name}: {method} gave other {'vectors' if made.ndim > 1 else 'scores'} for the "
                f"same input in two calls (by {difference:.2g}): dropout, sampling, or a result that depends on the "
                "batch; figures will vary",
                file=sys.stderr,
            )


def as_numpy(value: Any) -> np.ndarray:
    """Any framework's array: torch tensors are detached and copied to the CPU, bfloat16 becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def run_user_code(
    source: str, make: Callable[[], Any], field: str = "encoder", wanted: str = "a model that loads"
) -> Any:
    """Return what a user's own code, or another library, gives. Raises InputError for whatever it raises."""
    try:
        return make()
    except (InputError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a user's own code raises; panics of Rust and exits are no Exception
        raise InputError(source, field, f"an error, {type(error).__name__}: {error}", wanted) from error
