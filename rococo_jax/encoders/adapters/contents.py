"""Read the contents of another library's objects as JSON: all attributes that decide its results.

Models, processors, tokenizers, image transforms and prompts are read attribute by attribute, so that two objects that
compute the same have equal contents, whatever their paths and devices.

    tokenizers of Rust         their serialised form: vocabulary in its order, merges, added tokens, normaliser
    sentencepiece models       their serialised form
    arrays and tensors         dtype, shape and bytes
    functions                  their code, defaults, and the values in their closures and the global ones that they use
    classes                    their members, as far as they are functions or values, and their bases
    torch modules              class, attributes, hooks, submodules in order, and the hash of the state dict
    other objects              class, and the contents of all attributes but those in `_NOT_DECISIVE`

Functions and classes of an installed release are identified by their names and the release instead of their code. What
a user assigned to a class of a release is read as well.
"""

import enum
import functools
import hashlib
import importlib.metadata
import json
import logging
import pickle
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import tokenizers

from rococo_jax.encoders.adapters.tensor_contents import read_tensor, state_of_weights
from rococo_jax.storage import hash_json

# Attributes that decide no result, of objects of libraries that wrap models.
_WRAPPERS = frozenset({"transformers", "sentence_transformers", "mteb", "open_clip", "timm"})
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
              "open_clip_torch", "timm", "mteb", "ftfy", "pillow", "numpy")  # fmt: skip
# Members of classes that decide nothing.
_CLASS_RECORDS = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "__slotnames__",
    "_abc_impl",
})  # fmt: skip


def contents_of(value: Any) -> Any:
    """Return the contents of an object as JSON, with hashes of nested objects and of the weights of torch modules."""
    reader = _Reader()
    contents = reader.read(value)
    return [contents, [hash_weights(each) for each in reader.modules]] if reader.modules else contents


def contents_and_modules(value: Any) -> tuple[Any, list[Any]]:
    """Return the contents of an object without weights, and the torch modules in it that have them."""
    reader = _Reader()
    return reader.read(value), reader.modules


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


@functools.cache
def release_of(module: str) -> str | None:
    """Return the installed release that a module belongs to; None for other code, such as a user's or a checkout's.

    >>> release_of("json.decoder"), release_of("__main__"), release_of("tokenizers").partition(" ")[0]
    ('Python', None, 'tokenizers')
    """
    package = module.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    if package in sys.stdlib_module_names and file.startswith(("", sysconfig.get_path("stdlib"))[bool(file)]):
        return "Python"
    for distribution in _distributions_of(package):
        is_from_index = distribution.read_text("direct_url.json") is None
        if is_from_index and file.startswith(str(distribution.locate_file("")) if file else ""):
            return f"{distribution.name} {distribution.version}"
    return None


def _distributions_of(package: str) -> list[importlib.metadata.Distribution]:
    try:
        return [importlib.metadata.distribution(package)]  # most have the name of their package
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return [importlib.metadata.distribution(name) for name in _names_by_package().get(package, ())]


@functools.cache
def _names_by_package() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


class CurrentWeights:
    """The hashes of the weights that torch modules have at the moment, computed again only after a change."""

    def __init__(self, modules: Sequence[Any]):
        self._modules = modules
        self._state: list[Any] | None = None
        self._hashes: list[str] = []

    def hashes(self) -> list[str]:
        """Return the `hash_weights` of each module."""
        state = [state_of_weights(module) for module in self._modules]
        if state != self._state:
            self._hashes, self._state = [hash_weights(module) for module in self._modules], state
        return self._hashes


def hash_weights(module: Any) -> str:
    """Return the SHA-256 of a torch module's state dict: parameters, buffers and its other entries by name."""
    return hash_json({name: contents_of(value) for name, value in module.state_dict(keep_vars=True).items()})


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
            Mapping: self._read_mapping,
            list | tuple: lambda value: [self._read_subclass(value), list(map(self.read, value))],
            set | frozenset: lambda value: {"set": sorted(map(self.read, value), key=_sorting_key)},
            bytes | bytearray | memoryview: lambda value: {"bytes": hashlib.sha256(value).hexdigest()},
            np.ma.MaskedArray: lambda value: {"masked": self.read([value.data, np.ma.getmaskarray(value)])},
            np.ndarray | np.generic: self._read_array,
            torch.Tensor: read_tensor,
            torch.dtype | np.dtype: str,
            torch.device | PurePath | logging.Logger: lambda value: {},
            torch.nn.Module: self._read_outermost_module,
            tokenizers.Tokenizer: lambda value: {"tokenizer": json.loads(value.to_str())},
            type: self._read_class,
            types.ModuleType: lambda value: {"module": value.__name__, "release": release_of(value.__name__)},
            functools.partial: lambda value: {"partial": self.read([value.func, value.args, value.keywords])},
            types.MethodType: lambda value: {"method": self.read(value.__func__), "of": self.read(value.__self__)},
            types.FunctionType: self._read_function,
            types.CodeType: self._read_code,
            property: lambda value: {"property": self.read([value.fget, value.fset])},
            staticmethod | classmethod: lambda value: {type(value).__name__: self.read(value.__func__)},
        }
        self._hashes: dict[int, str] = {}
        # References, so that no other object gets the `id` of an object that was read.
        self._objects: list[Any] = []

    def read(self, value: Any) -> Any:
        """Return the contents of one value."""
        if type(value) is str:
            return value.encode(errors="backslashreplace").decode()
        if type(value) in (int, float, bool, type(None)):
            return value
        if isinstance(value, enum.Enum):
            return self.read(value.value)
        if id(value) not in self._hashes:
            self._objects.append(value)
            self._hashes[id(value)] = "an object that refers to itself"
            self._hashes[id(value)] = hash_json(self._read_object(value))
        return self._hashes[id(value)]

    def _read_object(self, value: Any) -> Any:
        for kind in (str, int, float):
            if isinstance(value, kind):
                return [self._read_subclass(value), self.read(kind(value))]
        for kinds, read in self._readers.items():
            if isinstance(value, kinds):
                return read(value)
        return self._read_attributes(value)

    def _read_subclass(self, value: Any) -> Any:
        """Return class and attributes of a number, text or container of a user's class; None if it is of another."""
        if release_of(type(value).__module__) is not None:
            return None
        return [self.read(type(value)), self.read(getattr(value, "__dict__", None))]

    def _read_mapping(self, value: Mapping) -> Any:
        items = sorted(([self.read(key), self.read(each)] for key, each in value.items()), key=_sorting_key)
        return {"mapping": items, "class": self._read_subclass(value)}

    def _read_outermost_module(self, module: Any) -> Any:
        self.modules.append(module)
        return self._read_module(module)

    def _read_module(self, module: Any) -> Any:
        """Return class, attributes, hooks and nested modules of a torch module, without weights."""
        hooks = (module._forward_pre_hooks, module._forward_hooks)
        return {
            **self._read_attributes(module, _attributes_of_modules()),
            "buffers": {name: self.read(module._buffers[name]) for name in module._non_persistent_buffers_set},
            "hooks": [self.read(list(each.values())) for each in hooks],
            "modules": [
                [name, hash_json(self._read_module(each))] for name, each in module._modules.items() if each is not None
            ],
        }

    def _read_function(self, function: Any) -> Any:
        module, code = function.__globals__.get("__name__") or "", function.__code__
        release = release_of(module)
        closed_over = dict(zip(code.co_freevars, map(_cell_contents, function.__closure__ or ()), strict=True))
        contents = {
            # Not `__module__` and `__qualname__`: a wrapper has those of the wrapped function.
            "function": code.co_qualname if release is None else f"{module}.{code.co_qualname}",
            "release": release,
            "values": self.read([function.__defaults__, function.__kwdefaults__, closed_over]),
        }
        # Functions of a release with one qualified name, such as lambdas, differ in their code.
        if release is None or "<" in code.co_qualname:
            contents["code"] = self.read(code)
        if release is None:
            contents["attributes"] = self.read({k: v for k, v in vars(function).items() if k != "__wrapped__"})
            contents["used"] = self._read_used(code, function.__globals__, closed_over)
        return contents

    def _read_used(self, code: types.CodeType, scope: Mapping[str, Any], closed_over: Mapping[str, Any]) -> Any:
        """Return the contents of the global values that code uses, and of what it uses of a user's modules."""
        names = {name for each in _nested_codes(code) for name in each.co_names}
        values = {name: scope[name] for name in names & scope.keys()}
        modules = [value for value in [*values.values(), *closed_over.values()] if isinstance(value, types.ModuleType)]
        members = [
            {name: getattr(module, name) for name in names if hasattr(module, name)}
            for module in modules
            if release_of(module.__name__) is None
        ]
        return self.read([values, sorted(map(self.read, members))])

    def _read_code(self, code: types.CodeType) -> Any:
        return [code.co_code.hex(), code.co_exceptiontable.hex(), list(code.co_names), self.read(code.co_consts)]

    def _read_class(self, kind: type) -> Any:
        """Return name and release of a class, with what a user assigned to it; for other classes, their members."""
        release = release_of(kind.__module__)
        members = {name: each for name, each in vars(kind).items() if name not in _CLASS_RECORDS}
        if release is None:
            name = kind.__qualname__
        else:
            name = f"{kind.__module__}.{kind.__qualname__}"
            members = {name: each for name, each in members.items() if _is_function_of_user(each)}
        slots = types.MemberDescriptorType | types.GetSetDescriptorType
        contents = {name: self.read(each) for name, each in sorted(members.items()) if not isinstance(each, slots)}
        return {"class": name, "release": release, "members": contents, "bases": list(map(self.read, kind.__bases__))}

    def _read_array(self, array: Any) -> Any:
        shape, kind, array = list(np.shape(array)), np.asarray(array).dtype, np.ascontiguousarray(array)
        if kind.hasobject:
            return {"array": str(kind), "shape": shape, "values": self.read(array.tolist())}
        return {"array": str(kind), "shape": shape, "values": hashlib.sha256(array.tobytes()).hexdigest()}

    def _read_attributes(self, value: Any, without: frozenset[str] = frozenset()) -> Any:
        if hasattr(value, "serialized_model_proto"):
            return {"sentencepiece": hashlib.sha256(value.serialized_model_proto()).hexdigest()}
        kinds = type(value).__mro__
        declared = [getattr(kind, "__slots__", ()) for kind in kinds]
        slots = [name for names in declared for name in ([names] if isinstance(names, str) else names)]
        attributes = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
        attributes |= getattr(value, "__dict__", {})
        if not attributes:
            return {"class": self.read(type(value)), "pickled": _pickled(value)}
        if any(kind.__module__.partition(".")[0] in _WRAPPERS for kind in kinds):
            without |= _NOT_DECISIVE
        decisive = {name: each for name, each in attributes.items() if name not in without}
        if isinstance(arguments := decisive.get("init_kwargs"), dict):  # arguments of a tokenizer's constructor
            decisive["init_kwargs"] = {name: each for name, each in arguments.items() if name not in without}
        return {
            "class": self.read(type(value)),
            "attributes": {str(name): self.read(each) for name, each in sorted(decisive.items())},
        }


def _is_function_of_user(member: Any) -> bool:
    """Return whether a member of a class is a function that is no code of a release."""
    function = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return isinstance(function, types.FunctionType) and release_of(function.__globals__.get("__name__") or "") is None


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions and classes that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


@functools.cache
def _attributes_of_modules() -> frozenset[str]:
    """Return the names of the attributes that every torch module has: parameters, hooks and the like."""
    import torch

    return frozenset(vars(torch.nn.Module()))


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
