"""A torch module whose weights and settings decide what it gives: what all adapters of torch's models share."""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from rococo_jax.data.pictures import as_rgb
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


def find_dtype(name: str) -> Any:
    """torch's dtype of that name. Raises InputError for others than the usual three."""
    import torch

    if name not in ("float32", "float16", "bfloat16"):
        raise InputError("model argument", "dtype", repr(name), "float32, float16 or bfloat16")
    return getattr(torch, name)


class TorchModule:
    """A module in evaluation.

    Args:
        module: whose parameters and buffers decide its numbers.
        settings: what else decides them, as JSON: preprocessing, tokenizer, dtype, versions.
        batch_size: given to the module at once.
    """

    name = ""
    # A picture as the module's processor takes it: RGB, or as stored where the library makes RGB of it by its own rule.
    picture_for_library = staticmethod(as_rgb)

    def __init__(self, module: Any, settings: Mapping[str, Any], batch_size: int):
        if batch_size < 1:
            raise InputError("model argument", "batch_size", batch_size, "at least 1")
        self.module, self.settings, self.batch_size = module.eval(), dict(settings), batch_size

    def fingerprint(self) -> str:
        """A hash of weights and settings."""
        return hash_json({**self.settings, "weights": self._weights})

    @functools.cached_property
    def _weights(self) -> str:
        import torch

        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def plain(value: Any) -> Any:
    """The value with whatever JSON does not know as text; paths, which differ between machines, left out."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items() if "path" not in str(key)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
