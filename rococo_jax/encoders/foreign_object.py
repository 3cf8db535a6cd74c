"""What an object of a user or of another library has, and calls of it whose errors are one line."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from rococo_jax.data.pictures import as_rgb
from rococo_jax.data.tokenizers import TokenRows
from rococo_jax.errors import InputError

# Two calls on the same input may differ by this much in a unit vector, or in a share of a score, before a warning.
SAME = 1e-4


class ForeignObject:
    """What a user's object, or another library's, has whatever it computes.

    Args:
        model: the object.
        name: what tables call it; its own name, or its class's, by default.
        methods: that it must have.

    Raises:
        InputError: the object lacks a method.
    """

    def __init__(self, model: Any, name: str | None, methods: Mapping[str, str]):
        self.model, own = model, getattr(model, "name", None)
        self.name = name or (own if isinstance(own, str) and own else type(model).__name__)
        for method in methods:
            if not callable(getattr(model, method, None)):
                wanted = f"an object with {' and '.join(each + of for each, of in methods.items())}"
                raise InputError(self.name, "encoder", f"a {type(model).__name__} without {method}", wanted)

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
        """Name, class and fingerprint."""
        kind = type(self.model)
        return {"name": self.name, "class": f"{kind.__module__}.{kind.__qualname__}", "fingerprint": self.fingerprint()}

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


def warn_of_other_values(name: str, method: str, what: str, difference: float) -> None:
    """Say that two calls on the same input gave different values."""
    print(
        f"rococo: warning: {name}: {method} gave other {what} for the same input in two calls (by {difference:.2g}): "
        f"dropout, sampling, or a result that depends on the batch; figures will vary",
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
    """What a user's own code, or another library, gives. Raises InputError for whatever it raises."""
    try:
        return make()
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's own code raises
        raise InputError(source, field, f"an error, {type(error).__name__}: {error}", wanted) from error
