"""`Tensors`: the named tensors of a checkpoint, read one at a time; and safetensors files."""

import contextlib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  NumPy learns the name "bfloat16" by this import
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rococo_jax.errors import InputError, require_file
from rococo_jax.storage import why_unreadable

# Prefixes that wrappers of torch put before the names of all tensors, and parts that they put into them.
_WRAPPERS = ("module", "model", "base_model", "net", "network", "clip", "clip_model")
_WRAPPERS_ANYWHERE = r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
# The counter of averaged models, which has no wrapper's prefix.
_AVERAGE_COUNTER = "n_averaged"


class Tensors:
    """Named tensors of a checkpoint, read one at a time. A context manager that closes the files.

    Args:
        path: for error messages.
        info: shape and type of each tensor; types are spelled as safetensors or NumPy spell them.
        read: reads the values of a tensor.
        close: closes the files.
        origin: for provenance: the part of a file, and the prefix that was removed from its names.
    """

    def __init__(
        self,
        path: Path,
        info: Mapping[str, tuple[tuple[int, ...], str]],
        read: Callable[[str], np.ndarray],
        close: Callable[[], None] = lambda: None,
        origin: str = "",
    ):
        self.path, self.origin = path, origin or path.name
        self._info, self._read, self._close = dict(info), read, close

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._close()

    @property
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._info)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it. Raises InputError if it is missing."""
        self.require([name], "the tensors that determine the sizes of the model")
        return self._info[name][0]

    def info(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and type of a tensor; the type as safetensors or NumPy spell it: F32, BF16, int64..."""
        return self._info[name]

    def read(self, name: str) -> np.ndarray:
        """Read the values of a tensor as float32."""
        return self._read(name).astype(np.float32)

    def read_raw(self, name: str) -> np.ndarray:
        """Read the values of a tensor in their stored type."""
        return self._read(name)

    def require(self, names: Iterable[str], expected: str) -> None:
        """Raise InputError if a tensor is missing."""
        missing = [name for name in names if name not in self._info]
        if not missing:
            return
        if prefixes := common_prefixes(missing, self._info):
            problem, requirement = describe_prefixes(prefixes, len(missing))
            raise InputError(
                self.path, "tensors", problem, f"{requirement}, as model.state_dict() gives them: {expected}"
            )
        raise InputError(self.path, "tensors", f"no {', '.join(missing)}", expected)

    def count(self, pattern: str) -> int:
        """Return how many different values the group of a pattern has at the start of the names, such as layers."""
        return len({match[1] for name in self._info if (match := re.match(pattern, name))})

    def renamed(self, aliases: Iterable[tuple[str, str]]) -> "Tensors":
        """Return the same tensors with (pattern, replacement) applied to their names."""
        stored_names = {
            functools.reduce(lambda new, alias: re.sub(*alias, new), aliases, name): name for name in self._info
        }
        info = {new: self._info[name] for new, name in stored_names.items()}
        return Tensors(self.path, info, lambda new: self._read(stored_names[new]), self._close, self.origin)

    def extended(self, name: str, array: np.ndarray) -> "Tensors":
        """Return the same tensors and one more."""
        info = {**self._info, name: (array.shape, array.dtype.name)}
        read = self._read
        return Tensors(self.path, info, lambda each: array if each == name else read(each), self._close, self.origin)

    def unwrapped(self) -> "Tensors":
        """Return the same tensors without the prefixes of wrappers of torch."""
        plain, prefix = self.renamed([(_WRAPPERS_ANYWHERE, "")]), ""
        while wrapper := _outer_wrapper(plain.names):
            prefix += f"{wrapper}."
            plain = plain.renamed([(f"^{wrapper}\\.", "")])
        if prefix or plain.names != self.names:
            plain.origin += f" without {prefix}" if prefix else " without wrappers"
            plain._info.pop(_AVERAGE_COUNTER, None)
        return plain


def _outer_wrapper(names: Collection[str]) -> str | None:
    """Return the first part of all names if they share it and it is a known wrapper, else None."""
    first_parts = {name.partition(".")[0] for name in names if name != _AVERAGE_COUNTER}
    has_bare_name = any("." not in name for name in names if name != _AVERAGE_COUNTER)
    if has_bare_name or len(first_parts) != 1:
        return None
    (first_part,) = first_parts
    return first_part if first_part in _WRAPPERS else None


def open_safetensors(path: Path) -> Tensors:
    """Open a safetensors file. Raises InputError if it is missing, truncated or otherwise unreadable."""
    require_file(path, "a safetensors file")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(safe_open(path, framework="np"))
        except SafetensorError as error:
            why = why_unreadable(path, error)
            raise InputError(path, "safetensors file", why, "a complete safetensors file") from None
        slices = {tensor: file.get_slice(tensor) for tensor in file.keys()}  # noqa: SIM118  no mapping
        info = {tensor: (tuple(part.get_shape()), part.get_dtype()) for tensor, part in slices.items()}
        return Tensors(path, info, file.get_tensor, stack.pop_all().close)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file."""
    # In C order: safetensors would store a transposed view in the order of its memory.
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    save_file(contiguous, path, metadata={"format": "pt"})


def common_prefixes(missing: Iterable[str], stored: Iterable[str]) -> list[str]:
    """Return the prefixes of which each explains all missing names; several if a file holds several models.

    >>> common_prefixes(["a.b", "c"], ["model.a.b", "model.c", "ema.a.b", "ema.c", "model.d"])
    ['ema.', 'model.']
    """
    missing, stored = list(missing), set(stored)
    if not missing:
        return []
    prefixes = sorted(name.removesuffix(missing[0]) for name in stored if name.endswith(f".{missing[0]}"))
    return [prefix for prefix in prefixes if all(prefix + name in stored for name in missing)]


def describe_prefixes(prefixes: Sequence[str], count: int) -> tuple[str, str]:
    """Return the phrases for prefixes of `count` names each: what was found, and what is wanted."""
    if len(prefixes) == 1:
        return f"the prefix {prefixes[0]!r} before {count} names", "names without it"
    models = f"{len(prefixes)} models, with the prefixes {', '.join(map(repr, prefixes))} before {count} names each"
    return models, "one model, names without its prefix"


def list_differences(**groups: Collection[str]) -> str:
    """Return one line such as "2 missing (a, b); 1 unknown (c)", empty if all groups are empty."""

    def shortened(names: Collection[str]) -> str:
        return ", ".join(sorted(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    return "; ".join(f"{len(names)} {kind} ({shortened(names)})" for kind, names in groups.items() if names)
