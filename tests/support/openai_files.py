"""Checkpoints as OpenAI and open_clip's trainer write them with torch."""

import numpy as np
import pytest

from tests.support.golden.weights import weights_for
from tests.support.open_clip_files import golden

torch = pytest.importorskip("torch")
NUMBERS = {"input_resolution": 32, "context_length": 12, "vocab_size": 60}


class Holder(torch.nn.Module):
    """A module of modules; only their parameters matter."""

    def forward(self, x):
        return x


def tensors_of(case):
    return {name: torch.from_numpy(np.array(array)) for name, array in weights_for(golden(case)["shapes"]).items()}


def module_of(tensors):
    """A tree of modules whose state dict is `tensors`."""
    root = Holder()
    for name, tensor in tensors.items():
        *parents, last = name.split(".")
        module = root
        for parent in parents:
            if parent not in module._modules:
                module.add_module(parent, Holder())
            module = module._modules[parent]
        if tensor.is_floating_point() and "running" not in last:
            module.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=False))
        else:
            module.register_buffer(last, tensor)
    return root


def openai_file(case, path, form, numbers=True):
    tensors = tensors_of(case)
    if numbers:
        tensors |= {name: torch.tensor(value) for name, value in NUMBERS.items()}
    module = module_of(tensors)
    if form == "torchscript":
        torch.jit.save(torch.jit.script(module), path)
    elif form == "checkpoint":
        state = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
        torch.save({"epoch": 3, "name": "run", "state_dict": state, "optimizer": {"lr": [0.1]}}, path)
    else:
        torch.save(module.state_dict(), path)
    return path
