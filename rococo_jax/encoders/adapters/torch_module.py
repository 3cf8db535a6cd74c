"""Torch modules in evaluation mode, identified by their weights and settings: the common part of all adapters."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rococo_jax.data.pictures import as_rgb
from rococo_jax.encoders.adapters.contents import CurrentWeights, contents_and_modules, contents_of, library_versions
from rococo_jax.encoders.foreign import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TorchOptions:
    """Options of loading and running a torch model.

    Attributes:
        device, dtype: device and dtype of the computation.
        batch_size: number of items in one call of the module.
        revision, trust_remote_code: options of `from_pretrained` for models of the Hugging Face hub.

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
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise InputError("model argument", "batch_size", repr(self.batch_size), "a whole number, at least 1")

    @property
    def torch_dtype(self) -> Any:
        """The torch dtype."""
        import torch

        return getattr(torch, self.dtype)

    @property
    def hub(self) -> dict[str, Any]:
        """The arguments of every `from_pretrained`."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}


class TorchModule:
    """A torch module in evaluation mode, with methods that run in batches.

    Its identity comes from its contents: weights, attributes and configuration of all modules, processors, tokenizers,
    and everything else in `settings`. Paths, devices and batch sizes are not part of it.

    Args:
        module: the object whose parameters and buffers decide the results.
        options: how it runs.
        settings: everything else that decides the results, objects of any type: processors, prompts, adapter options.
        methods: functions of one batch; they become methods that take lists of any length.
    """

    name = ""
    # Converts a picture for the module's processor: to RGB, or not at all if the library has its own conversion.
    picture_for_library = staticmethod(as_rgb)

    def __init__(self, module: Any, options: TorchOptions, settings: Mapping[str, Any], **methods: Callable[..., Any]):
        self.module, self.batch_size = module.eval(), options.batch_size
        # Read before the first call, because libraries store caches and the last padding in the same objects.
        self.settings = {name: contents_of(value) for name, value in settings.items()}
        contents, modules = contents_and_modules(module)
        self.settings |= {"module": contents, "dtype": options.dtype, "versions": library_versions()}
        self._weights = CurrentWeights(modules)
        for name, function in methods.items():
            setattr(self, name, functools.partial(self._in_batches, function))

    def _in_batches(self, function: Callable[..., Any], *inputs: list) -> np.ndarray:
        import torch

        batches = [slice(start, start + self.batch_size) for start in range(0, len(inputs[0]), self.batch_size)]
        with torch.inference_mode():
            outputs = [function(*(list(items[batch]) for items in inputs)) for batch in batches]
            return np.concatenate([as_numpy(output) for output in outputs])

    def fingerprint(self) -> str:
        """Return a hash of the current weights and of the settings at the time of loading."""
        return hash_json({**self.settings, "weights": self._weights.hashes()})


def with_prompt_support(load: Callable[..., TorchModule], prompts: Mapping[str, str]) -> TorchModule:
    """Load a model of sentence-transformers that takes a prompt: the name of one of its own, or a literal text."""

    def with_prompt(prompt: str, role: str) -> TorchModule:
        return load({"prompt_name": prompt} if prompt in prompts else {"prompt": prompt})

    model = load({})
    model.with_prompt = with_prompt
    return model
