"""Identify the values of torch tensors of every dtype and layout: by a hash, and by a sum that is quick to compute."""

import functools
import hashlib
from typing import Any

import numpy as np

# Words of a tensor that are summed at once: they and their products stay in the processor's cache.
_SUMMED_ON_CPU, _SUMMED_ON_DEVICES = 2**16, 2**22
_PRIME, _BASE = 2**61 - 1, 0x9E3779B97F4A7C15


def state_of_weights(module: Any) -> list[tuple[str, str, int, list[int]]]:
    """Return a value that changes when a tensor of a torch module's state dict is replaced or modified.

    It is computed at the speed of memory, where the tensors are. Torch counts modifications of a tensor, but not of its
    `data`; those change the weighted sum of its bits.
    """
    import torch

    tensors = [item for item in module.state_dict(keep_vars=True).items() if isinstance(item[1], torch.Tensor)]
    return [
        (name, str(_about_tensor(tensor)), 0 if tensor.is_inference() else tensor._version, _sums_of(tensor))
        for name, tensor in tensors
    ]


def _sums_of(tensor: Any) -> list[int]:
    return [_sum_bits(part) for part in _dense_parts(tensor)]


def _sum_bits(tensor: Any) -> int:
    """Return a sum of the words of a dense tensor, each with a weight that depends on its position.

    Weights are random numbers of 64 bits, so that other bits at one place, and bits that change places, give another
    sum. The sums of many words are the coefficients of a polynomial modulo a prime.
    """
    import torch

    values = tensor.contiguous().reshape(-1)
    start, size = (count * values.element_size() for count in (values.storage_offset(), values.numel()))
    dtypes = (torch.int32, torch.int16, torch.uint8)
    words = values.view(next(each for each in dtypes if start % each.itemsize == size % each.itemsize == 0))
    weights = _word_weights(words.device)
    sums = [(part.to(torch.int64) * weights[: len(part)]).sum() for part in words.split(len(weights))]
    return functools.reduce(lambda total, each: (total * _BASE + each) % _PRIME, torch.stack(sums).tolist(), size)


@functools.cache
def _word_weights(device: Any) -> Any:
    import torch

    count = _SUMMED_ON_CPU if device.type == "cpu" else _SUMMED_ON_DEVICES
    weights = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, count, np.int64)
    return torch.from_numpy(weights).to(device)


def read_tensor(tensor: Any) -> list[Any]:
    """Return dtype, shape and layout of a tensor, and the SHA-256 of its values."""
    import torch

    parts = [part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for part in _dense_parts(tensor)]
    return [_about_tensor(tensor), [hashlib.sha256(part).hexdigest() for part in parts]]


def _about_tensor(tensor: Any) -> list[Any]:
    """Return dtype, shape and layout of a tensor, and how the values of a quantised one are scaled."""
    about = [str(tensor.dtype), list(tensor.shape), str(tensor.layout)]
    if tensor.is_quantized:
        about.append(str(tensor.qscheme()))
        about += (
            [tensor.q_scale(), tensor.q_zero_point()] if "per_tensor" in about[-1] else [tensor.q_per_channel_axis()]
        )
    if hasattr(tensor, "__tensor_flatten__"):
        about.append(str(tensor.__tensor_flatten__()[1]))
    return about


# Methods that return the dense tensors of a sparse one, by its layout.
_SPARSE_PARTS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _dense_parts(tensor: Any) -> list[Any]:
    """Return the dense tensors that hold the values of a tensor: itself, or those of a sparse or a quantised one."""
    tensor = tensor.detach()
    layout = str(tensor.layout).removeprefix("torch.")
    if hasattr(tensor, "__tensor_flatten__"):  # a class that computes with tensors in its attributes
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    elif layout in _SPARSE_PARTS:
        parts = [getattr(tensor, name)() for name in _SPARSE_PARTS[layout]]
    elif tensor.is_quantized:
        is_per_tensor = "per_tensor" in str(tensor.qscheme())
        scales = [] if is_per_tensor else [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]
        parts = [tensor.int_repr(), *scales]
    elif layout != "strided":
        parts = [tensor.to_dense()]
    else:
        return [] if tensor.is_meta or not tensor.numel() else [tensor.resolve_conj().resolve_neg()]
    return [dense for part in parts for dense in _dense_parts(part)]
