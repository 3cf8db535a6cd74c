"""Call code of users and of other libraries, and load objects from it by name.

On the command line, `file.py:make_my_model` or `package.module:make_my_model` names a function that returns a model, or
the model itself; see `foreign_model` for the methods that it needs.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.encoders.protocol import ImageTextEncoder, ImageTextScorer
from rococo_jax.errors import InputError, require_file
from rococo_jax.storage import hash_file


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
    is_model = isinstance(attribute, ImageTextEncoder | ImageTextScorer) and not isinstance(attribute, type)
    if is_model and arguments:
        raise InputError(source, "arguments", ", ".join(arguments), "none: it is an encoder, not a function")
    if is_model:
        return attribute
    if not callable(attribute):
        raise InputError(source, "attribute", f"a {type(attribute).__name__}", expected)
    return run_user_code(source, lambda: attribute(**(arguments or {})))


def _load_file(source: str, path: Path) -> Any:
    require_file(path, "a Python file of a model")
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


# Largest difference between the results of an item alone and in a batch that gives no warning: in a unit vector, in the
# logarithm of a probability, or relative to the largest score.
_TOLERANCE = 1e-4


def compare_alone(
    name: str,
    method: str,
    outputs: str,
    in_batch: np.ndarray,
    alone: np.ndarray,
    tolerance: float | None,
    in_logs: bool = False,
    items: Sequence[str] = ("the first item in a batch",),
) -> None:
    """Compare results of items in a batch with those of each item alone, and warn if they differ.

    Args:
        name, method: the model and its method, for messages.
        outputs: what the results are, in the plural.
        tolerance: difference that is an error; None for a warning above 1e-4.
        in_logs: whether the results are probabilities, which are compared by their logarithms, so that small ones count
            as much as large ones.
        items: description of each item.

    Raises InputError: results differ by more than `tolerance`.
    """
    values = np.stack([in_batch, alone]).reshape(2, len(alone), -1)
    if in_logs:
        values = np.log(np.maximum(values, np.finfo(np.float32).tiny))
    scale = 1.0 if in_logs else np.maximum(1.0, np.abs(values).max(axis=(0, 2)))
    differences = np.abs(values[0] - values[1]).max(axis=1)
    row = int((differences / scale).argmax())
    if (differences <= (tolerance or _TOLERANCE) * scale).all():
        return
    if tolerance is not None:
        problem = f"{in_batch[row]:.6g} for {items[row]}, {alone[row]:.6g} alone"
        expected = "one score (the model argument batch_size=1 scores pairs one by one)"
        raise InputError(name, method, problem, expected)
    print(
        f"rococo: warning: {name}: {method} returned other {outputs} for the same input in two calls (by "
        f"{differences[row]:.2g}): dropout, sampling, or a result that depends on the batch; results will vary",
        file=sys.stderr,
    )
