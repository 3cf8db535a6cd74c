"""A torch module whose weights and settings decide what it gives: what all adapters of torch's models share."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rococo_jax.data.pictures import as_rgb
from rococo_jax.encoders.foreign_object import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TorchOptions:
    """How a model of torch is loaded and run.

    Attributes:
        device, dtype: where and in what it computes.
        batch_size: given to the module at once.
        revision, trust_remote_code: of models of the Hugging Face hub.

    Raises:
        InputError: a value is out of its range.
    """

    device: str = "cpu"
    dtype: str = "float32"
    batch_size: int = 32
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self):
        if self.dtype not in (dtypes := ("float32", "float16", "bfloat16")):
            raise InputError("model argument", "dtype", repr(self.dtype), "{}, {} or {}".format(*dtypes))
        if self.batch_size < 1:
            raise InputError("model argument", "batch_size", self.batch_size, "at least 1")

    @property
    def torch_dtype(self) -> Any:
        """The dtype as torch has it."""
        import torch

        return getattr(torch, self.dtype)

    @property
    def hub(self) -> dict[str, Any]:
        """Arguments of every `from_pretrained`."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}


class TorchModule:
    """A module in evaluation.

    Args:
        module: whose parameters and buffers decide its numbers.
        options: how it runs.
        settings: what else decides them, as JSON: preprocessing, tokenizer, versions.
        methods: by name, of one batch of each of their lists.
    """

    name = ""
    # A picture as the module's processor takes it: RGB, or as stored where the library makes RGB of it by its own rule.
    picture_for_library = staticmethod(as_rgb)

    def __init__(self, module: Any, options: TorchOptions, settings: Mapping[str, Any], **methods: Callable[..., Any]):
        self.module, self.batch_size = module.eval(), options.batch_size
        self.settings = {**settings, "dtype": options.dtype}
        for name, function in methods.items():
            setattr(self, name, functools.partial(self._in_batches, function))

    def _in_batches(self, function: Callable[..., Any], *inputs: list) -> np.ndarray:
        import torch

        batches = [slice(at, at + self.batch_size) for at in range(0, len(inputs[0]), self.batch_size)]
        with torch.inference_mode():
            return np.concatenate([as_numpy(function(*(list(each[some]) for each in inputs))) for some in batches])

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


def taking_prompts(make: Callable[..., TorchModule], prompts: Mapping[str, str]) -> TorchModule:
    """A model of sentence-transformers, which is told a prompt by the name of one of its own, or as it is."""

    def under(prompt: str, role: str) -> TorchModule:
        return make({"prompt_name": prompt} if prompt in prompts else {"prompt": prompt})

    model = make({})
    model.with_prompt = under
    return model


def plain(value: Any) -> Any:
    """The value with whatever JSON does not know as text; paths, which differ between machines, left out."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items() if "path" not in str(key)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
