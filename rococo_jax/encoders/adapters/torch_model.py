"""A torch model as an encoder: batches, and a fingerprint of weights and settings."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.encoders.foreign import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

# Of one batch.
Encode = Callable[[list[Any]], Any]


def find_dtype(name: str) -> Any:
    """torch's dtype of that name. Raises InputError for others than the usual three."""
    import torch

    if name not in ("float32", "float16", "bfloat16"):
        raise InputError("model argument", "dtype", repr(name), "float32, float16 or bfloat16")
    return getattr(torch, name)


class TorchModel:
    """A torch module that encodes in batches.

    Args:
        module: whose parameters and buffers decide the vectors.
        encode_images, encode_texts: the vectors of one batch.
        settings: what else decides them, as JSON: preprocessing, tokenizer, dtype, versions.
        batch_size: given to the module at once.
    """

    name = ""

    def __init__(
        self, module: Any, encode_images: Encode, encode_texts: Encode, settings: Mapping[str, Any], batch_size: int
    ):
        if batch_size < 1:
            raise InputError("model argument", "batch_size", batch_size, "at least 1")
        self.module, self.settings, self.batch_size = module.eval(), dict(settings), batch_size
        self.encode_image = functools.partial(self._encoded, encode_images)
        self.encode_text = functools.partial(self._encoded, encode_texts)

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

    def _encoded(self, encode: Encode, items: Sequence[Any]) -> np.ndarray:
        import torch

        starts = range(0, len(items), self.batch_size)
        with torch.inference_mode():
            return np.concatenate([as_numpy(encode(list(items[at : at + self.batch_size]))) for at in starts])
