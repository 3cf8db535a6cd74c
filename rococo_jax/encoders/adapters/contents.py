"""Read the contents of another library's objects as JSON: all attributes that decide its results.

Models, processors, tokenizers, image transforms and prompts are read attribute by attribute, so that two objects that
compute the same have equal contents, whatever their paths and devices. Weights are left to `hash_weights`, which hashes
gigabytes once; buffers outside of the state dict are read here.

    tokenizers of Rust         their serialised form: vocabulary in its order, merges, added tokens, normaliser
    sentencepiece models       their serialised form
    arrays and tensors         dtype, shape and bytes
    functions                  qualified name, defaults, values in their closures, and the code of nameless ones
    other objects              class, and the contents of all attributes but those in `_NOT_DECISIVE`
"""

import enum
import functools
import hashlib
import importlib.metadata
import json
import logging
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import tokenizers

from rococo_jax.storage import hash_bytes, hash_json

# Attributes of objects of other libraries that decide no result.
_NOT_DECISIVE = frozenset({
    # source of the object, and release that wrote the file
    "name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "vocab_file", "merges_file",
    "tokenizer_file", "tokenizer_config_file", "special_tokens_map_file", "added_tokens_file", "chat_template_file",
    "files_loaded", "cache_dir", "is_local", "local_files_only", "revision", "trust_remote_code", "_from_auto",
    # name and description
    "model_card_data", "_model_card_vars", "_model_card_text", "mteb_model_meta", "verbose",
    # device and batch size
    "device", "_device", "_target_device", "device_map", "_device_map", "hf_device_map", "_accelerate_placement_hook",
    "_modules_placed", "batch_size",
    # records of past calls, and Python hashes, which differ between processes
    "warnings_issued", "deprecation_warnings", "_original_object_hash",
})  # fmt: skip
# Libraries whose release may change the results of a torch model.
_LIBRARIES = ("torch", "torchvision", "transformers", "tokenizers", "sentencepiece", "sentence-transformers",
              "open_clip_torch", "timm", "mteb", "ftfy", "pillow")  # fmt: skip
# `transformers` puts code of a model's folder into a package named after the folder.
_CODE_OF_MODELS = "transformers_modules"


def contents_of(value: Any) -> Any:
    """Return the contents of an object as JSON, with hashes of nested objects and without weights."""
    return _Reader().read(value)


def hash_with_weights(value: Any) -> str:
    """Return the SHA-256 of an object's contents and of the weights of all nested torch modules."""
    reader = _Reader()
    return hash_json({"contents": reader.read(value), "weights": [hash_weights(each) for each in reader.modules]})


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the installed releases of the libraries that run torch models."""
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def hash_weights(module: Any) -> str:
    """Return the SHA-256 of a torch module's state dict: parameters, buffers and its other entries by name."""
    return hash_json({name: contents_of(value) for name, value in module.state_dict(keep_vars=True).items()})


def state_of_weights(module: Any) -> list[tuple[int, int, int]]:
    """Return a value that changes when a tensor of a torch module's state dict is replaced or modified.

    It is computed at the speed of memory, much faster than `hash_weights`. Torch counts modifications of a tensor, but
    not of its `data`; those change the sum of its bits.
    """
    import torch

    def state(tensor: Any) -> tuple[int, int, int]:
        integer_dtypes = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
        integer_dtype = integer_dtypes.get(tensor.element_size(), torch.int64)
        bits = tensor.detach().contiguous().reshape(-1).view(integer_dtype)
        version = 0 if tensor.is_inference() else tensor._version
        return tensor.data_ptr(), version, int(bits.sum(dtype=torch.int64))

    return [state(value) for value in module.state_dict(keep_vars=True).values() if isinstance(value, torch.Tensor)]


class _Reader:
    """Read the contents of objects that may refer to each other, each object once.

    Attributes:
        modules: the outermost torch modules that were read.
    """

    def __init__(self):
        import torch

        self.modules: list[Any] = []
        # Readers of types whose attributes do not contain all of their contents.
        self._readers: dict[Any, Callable[[Any], Any]] = {
            bytes | bytearray: lambda value: {"bytes": hashlib.sha256(value).hexdigest()},
            np.ndarray | np.generic: _read_array,
            torch.Tensor: _read_tensor,
            torch.dtype | np.dtype: str,
            torch.device | PurePath | logging.Logger: lambda value: {},
            torch.nn.Module: self._read_outermost_module,
            tokenizers.Tokenizer: lambda value: {"tokenizer": json.loads(value.to_str())},
            type: class_contents,
            types.ModuleType: lambda value: {"module": value.__name__},
            functools.partial: lambda value: {"partial": self.read([value.func, value.args, value.keywords])},
            types.MethodType: lambda value: {"method": value.__name__, "of": self.read(value.__self__)},
            types.FunctionType: self._read_function,
        }
        self._hashes: dict[int, str] = {}
        # References, so that no other object gets the `id` of an object that was read.
        self._objects: list[Any] = []

    def read(self, value: Any) -> Any:
        """Return the contents of one value."""
        if isinstance(value, enum.Enum):
            return self.read(value.value)
        if isinstance(value, str):
            return value.encode(errors="backslashreplace").decode()
        if isinstance(value, int | float | bool | None):
            return value
        if id(value) not in self._hashes:
            self._objects.append(value)
            self._hashes[id(value)] = "an object that refers to itself"
            self._hashes[id(value)] = hash_json(self._read_object(value))
        return self._hashes[id(value)]

    def _read_object(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"mapping": sorted(([self.read(k), self.read(v)] for k, v in value.items()), key=_sorting_key)}
        if isinstance(value, list | tuple):
            return [self.read(each) for each in value]
        if isinstance(value, set | frozenset):
            return {"set": sorted(map(self.read, value), key=_sorting_key)}
        for kinds, read in self._readers.items():
            if isinstance(value, kinds):
                return read(value)
        return self._read_attributes(value)

    def _read_outermost_module(self, module: Any) -> Any:
        self.modules.append(module)
        return self._read_module(module)

    def _read_module(self, module: Any) -> Any:
        """Return class, attributes and nested modules of a torch module, without weights and torch's own records."""
        submodules = {name: each for name, each in module._modules.items() if each is not None}
        return {
            **self._read_attributes(module, _attributes_of_modules()),
            "buffers": {name: self.read(module._buffers[name]) for name in module._non_persistent_buffers_set},
            "modules": {name: hash_json(self._read_module(each)) for name, each in submodules.items()},
        }

    def _read_function(self, function: Any) -> Any:
        closed_over = [_cell_contents(cell) for cell in function.__closure__ or ()]
        values = [function.__defaults__, function.__kwdefaults__, *closed_over]
        # Nested functions have the same qualified name.
        code = self._read_code(function.__code__) if "<" in function.__qualname__ else None
        return {"function": f"{function.__module__}.{function.__qualname__}", "values": self.read(values), "code": code}

    def _read_code(self, code: types.CodeType) -> Any:
        nested = [self._read_code(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
        return [code.co_code.hex(), list(code.co_names), self.read(constants), nested]

    def _read_attributes(self, value: Any, without: frozenset[str] = frozenset()) -> Any:
        if hasattr(value, "serialized_model_proto"):
            return {"sentencepiece": hashlib.sha256(value.serialized_model_proto()).hexdigest()}
        declared = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
        slots = [name for names in declared for name in ([names] if isinstance(names, str) else names)]
        attributes = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
        attributes |= getattr(value, "__dict__", {})
        if not attributes:
            return {"class": class_contents(type(value)), "pickled": _pickled(value)}
        decisive = {k: v for k, v in attributes.items() if k not in _NOT_DECISIVE and k not in without}
        if isinstance(arguments := decisive.get("init_kwargs"), dict):  # arguments of a tokenizer's constructor
            decisive["init_kwargs"] = {k: v for k, v in arguments.items() if k not in _NOT_DECISIVE}
        return {
            "class": class_contents(type(value)),
            "attributes": {str(name): self.read(each) for name, each in sorted(decisive.items())},
        }


def class_contents(kind: type) -> Any:
    """Return module and name of a class; for a class in a model's folder, its name and source code."""
    package, _, _ = kind.__module__.rpartition(".")
    if not package.startswith(_CODE_OF_MODELS):
        return f"{kind.__module__}.{kind.__qualname__}"
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(f"{package}.")]
    files = [Path(module.__file__) for module in modules if getattr(module, "__file__", None)]
    return {"class": kind.__qualname__, "code": {file.name: hash_bytes(file.read_bytes()) for file in files}}


@functools.cache
def _attributes_of_modules() -> frozenset[str]:
    """Return the names of the attributes that every torch module has: parameters, hooks and the like."""
    import torch

    return frozenset(vars(torch.nn.Module()))


def _read_tensor(tensor: Any) -> dict[str, Any]:
    import torch

    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return {"tensor": str(tensor.dtype), "shape": list(tensor.shape), "values": hashlib.sha256(values).hexdigest()}


def _read_array(array: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    values = array.tolist() if array.dtype == object else hashlib.sha256(array.reshape(-1).view(np.uint8)).hexdigest()
    return {"array": array.dtype.str, "shape": list(array.shape), "values": str(values)}


def _cell_contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name without a value
        return None


def _pickled(value: Any) -> str:
    """Return the hash of the pickle of an object of a compiled type; empty for locks and the like."""
    try:
        return hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()
    except Exception:  # types without contents raise exceptions of any class
        return ""


def _sorting_key(contents: Any) -> str:
    return json.dumps(contents, sort_keys=True)
