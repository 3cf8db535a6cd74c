"""What adapters of torch libraries share: batches, the device, and a fingerprint of weights and settings."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.encoders.foreign import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


def find_dtype(name: str) -> Any:
    """torch's dtype of that name. Raises InputError for others than the usual three."""
    import torch

    if name not in ("float32", "float16", "bfloat16"):
        raise InputError("model argument", "dtype", repr(name), "float32, float16 or bfloat16")
    return getattr(torch, name)


class TorchModel:
    """A torch module that encodes in batches; a subclass has `_image_vectors` and `_text_vectors` of one batch.

    Args:
        module: whose parameters and buffers decide the vectors.
        settings: what else decides them, as JSON: preprocessing, tokenizer, dtype, versions.
        batch_size: given to the module at once.
    """

    name = ""

    def __init__(self, module: Any, settings: Mapping[str, Any], batch_size: int = 32):
        if batch_size < 1:
            raise InputError("model argument", "batch_size", batch_size, "at least 1")
        self.module, self.settings, self.batch_size = module.eval(), dict(settings), batch_size

    def encode_image(self, images: list) -> np.ndarray:
        """One vector an image."""
        return self._encoded(self._image_vectors, images)

    def encode_text(self, texts: list[str]) -> np.ndarray:
        """One vector a text."""
        return self._encoded(self._text_vectors, texts)

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

    def _encoded(self, encode: Callable[[Sequence], Any], items: Sequence) -> np.ndarray:
        import torch

        with torch.inference_mode():
            return np.concatenate([as_numpy(encode(batch)) for batch in self._batches(items)])

    def _batches(self, items: Sequence) -> Iterator[Sequence]:
        return (items[start : start + self.batch_size] for start in range(0, len(items), self.batch_size))

    def _image_vectors(self, images: Sequence) -> Any:
        raise NotImplementedError

    def _text_vectors(self, texts: Sequence[str]) -> Any:
        raise NotImplementedError
