"""A torch module whose weights and settings decide what it gives: what all adapters of torch's models share."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rococo_jax.data.pictures import as_rgb
from rococo_jax.encoders.adapters.contents import contents_of, hash_weights, library_versions, state_of_weights
from rococo_jax.encoders.foreign_object import as_numpy
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json


@dataclasses.dataclass(frozen=True)
class TorchOptions:
    """How a model of torch is loaded and run.

    Attributes:
        device, dtype: where and in what it computes.
        batch_size: number of items in one call of the module.
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
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise InputError("model argument", "batch_size", repr(self.batch_size), "a whole number, at least 1")

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

    Its identity is that of its contents: weights, attributes and configuration of all modules, processors, tokenizers,
    and whatever else `settings` names. Paths, devices and batch sizes are no part of it.

    Args:
        module: the object whose parameters and buffers decide its numbers.
        options: how it runs.
        settings: everything else that decides them, objects of any type: processors, prompts, adapter options.
        methods: by name, of one batch of each of their lists.
    """

    name = ""
    # A picture as the module's processor takes it: RGB, or as stored where the library makes RGB of it by its own rule.
    picture_for_library = staticmethod(as_rgb)

    def __init__(self, module: Any, options: TorchOptions, settings: Mapping[str, Any], **methods: Callable[..., Any]):
        self.module, self.batch_size = module.eval(), options.batch_size
        # Read before the first call: libraries keep caches and the padding of the last call in the same objects.
        self.settings = {name: contents_of(value) for name, value in settings.items()}
        self.settings |= {"module": contents_of(module), "dtype": options.dtype, "versions": library_versions()}
        self._hashed_state: list[tuple[int, int]] | None = None
        for name, function in methods.items():
            setattr(self, name, functools.partial(self._in_batches, function))

    def _in_batches(self, function: Callable[..., Any], *inputs: list) -> np.ndarray:
        import torch

        batches = [slice(at, at + self.batch_size) for at in range(0, len(inputs[0]), self.batch_size)]
        with torch.inference_mode():
            return np.concatenate([as_numpy(function(*(list(each[some]) for each in inputs))) for some in batches])

    def fingerprint(self) -> str:
        """Return a hash of the weights as they are now and of the settings as they were when the module was loaded."""
        state = state_of_weights(self.module)
        if state != self._hashed_state:
            self.__dict__.pop("_weights", None)
            self._hashed_state = state
        return hash_json({**self.settings, "weights": self._weights})

    @functools.cached_property
    def _weights(self) -> str:
        return hash_weights(self.module)


def taking_prompts(make: Callable[..., TorchModule], prompts: Mapping[str, str]) -> TorchModule:
    """A model of sentence-transformers, which is told a prompt by the name of one of its own, or as it is."""

    def under(prompt: str, role: str) -> TorchModule:
        return make({"prompt_name": prompt} if prompt in prompts else {"prompt": prompt})

    model = make({})
    model.with_prompt = under
    return model
