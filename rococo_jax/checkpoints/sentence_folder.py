"""Sentence-transformers folders: a pipeline of modules around a model of `transformers`.

modules.json                         the `type` and `path` of each module: the model, pooling, perhaps a dense layer
1_Pooling/config.json                how the embeddings of tokens become one
2_Dense/                             a linear layer, which is our head
config_sentence_transformers.json    prompts

The first module is the model. Newer releases keep it in the folder itself (an empty path), older ones in a subfolder
such as `0_CLIPModel` or `0_Transformer`. Source: `sentence_transformers/models/{Pooling,Dense}.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.tensors import write_safetensors
from rococo_jax.checkpoints.weight_files import open_weights
from rococo_jax.errors import InputError, is_list_of
from rococo_jax.models import HeadSpec, ModelSpec
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import read_json, read_json_object, write_json

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
SENTENCE_FILES = (
    _PROMPTS,
    MODULES,
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "*_Dense/pytorch_model.bin",
)
_MODELS = ("CLIPModel", "Transformer")
_TEXT_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
_POOLING_FLAG = "pooling_mode_"
_POOLINGS = {"cls": "cls", "cls_token": "cls", "mean": "mean", "mean_tokens": "mean"}
_IDENTITY = "torch.nn.modules.linear.Identity"


def find_model_path(folder: Path) -> str | None:
    """Return the path of the model inside a sentence-transformers folder; None if it is the folder itself.

    Raises InputError if `modules.json` is damaged, or its first module is not supported.
    """
    if (folder / "config.json").is_file() or not (folder / MODULES).is_file():
        return None
    modules = _read_modules(folder)
    if not modules:
        raise InputError(folder / MODULES, "modules", "an empty list", "a list of objects")
    inner = modules[0].get("path")
    if inner == "":
        return None
    if module_kind(modules[0]) not in _MODELS:
        problem = repr(modules[0].get("type"))
        raise InputError(folder / MODULES, "type of the first module", problem, " or ".join(_MODELS))
    if not isinstance(inner, str) or not is_inner_name(inner):
        raise InputError(folder / MODULES, "path of the first module", repr(inner), "a folder inside this one")
    return inner.strip("/")


def check_modules(folder: Path) -> None:
    """Raise InputError if modules after a CLIP change its embeddings. The family checks those after a text model."""
    kinds = [module_kind(module) for module in _read_modules(folder)]
    if kinds[:1] == ["CLIPModel"] and (changing := [kind for kind in kinds[1:] if kind != "Normalize"]):
        problem = f"{', '.join(changing)} after CLIPModel"
        raise InputError(folder / MODULES, "modules", problem, "CLIPModel alone, or Normalize after it")


def module_kind(module: Mapping[str, Any]) -> str:
    """Return the class name of a module."""
    return str(module.get("type", "")).rpartition(".")[2]


def read_pooling(folder: Path) -> str | None:
    """Return the pooling of a text model's folder: `cls`, `mean`, or None without such a module.

    Raises InputError for another pooling, and for a module that changes the embeddings in another way.
    """
    path = _pipeline_folder(folder) / _text_module_paths(folder).get("Pooling", "1_Pooling") / "config.json"
    if not path.is_file():
        return None
    config = read_json_object(path, "a pooling configuration")
    # Newer releases write `pooling_mode`, older ones a flag for each mode.
    flags = [key for key, value in config.items() if key.startswith(_POOLING_FLAG) and value is True]
    modes = [flag.removeprefix(_POOLING_FLAG) for flag in flags]
    if isinstance(config.get("pooling_mode"), str):
        modes = [config["pooling_mode"]]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise InputError(path, "pooling", ", ".join(modes) or "none", "either cls or mean")
    return _POOLINGS[modes[0]]


def read_dense(folder: Path, features: int) -> tuple[HeadSpec, dict[str, np.ndarray]]:
    """Return the head of a text model's folder and its parameters by dotted path; no head without a dense module.

    Raises InputError for a dense module that is not a linear layer for `features` channels.
    """
    path = _text_module_paths(folder).get("Dense")
    if path is None:
        return HeadSpec(), {}
    dense = _pipeline_folder(folder) / path
    config = read_json_object(dense / "config.json", "a dense module")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if activation != _IDENTITY:
        raise InputError(dense / "config.json", "activation_function", activation, _IDENTITY)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise InputError(dense / "config.json", key, repr(config[key]), "sentence_embedding")
    with open_weights(dense) as tensors:
        if not {"linear.weight"} <= set(tensors.names) <= {"linear.weight", "linear.bias"}:
            raise InputError(dense, "tensors", ", ".join(tensors.names), "linear.weight, with linear.bias or without")
        weight = tensors.read("linear.weight")
        if weight.ndim != 2 or weight.shape[1] != features:
            raise InputError(dense, "linear.weight", weight.shape, f"(outputs, {features})")
        parameters = {"text_head.kernel": np.ascontiguousarray(weight.T)}
        if "linear.bias" in tensors.names:
            parameters["text_head.bias"] = tensors.read("linear.bias")
    return HeadSpec("linear", weight.shape[0], bias="text_head.bias" in parameters), parameters


def write_modules(folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
    """Write the modules of a text model: pooling, the head as a dense layer if there is one, and normalisation."""
    has_head = spec.text_head.kind == "linear"
    kinds = ["Transformer", "Pooling", *(["Dense"] if has_head else []), "Normalize"]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    if has_head:
        _write_dense(folder / paths[kinds.index("Dense")], spec, parameters)
    write_json(folder / MODULES, modules)
    pooling = {"word_embedding_dimension": spec.text.width}
    for mode, name in (("cls", "cls_token"), ("mean", "mean_tokens")):
        pooling[f"{_POOLING_FLAG}{name}"] = spec.text.pooling == mode
    write_json(folder / "1_Pooling" / "config.json", pooling)


def _write_dense(folder: Path, spec: ModelSpec, parameters: Mapping[str, np.ndarray]) -> None:
    head = spec.text_head
    config = {"in_features": spec.text.features, "out_features": head.dim, "bias": head.bias}
    write_json(folder / "config.json", {**config, "activation_function": _IDENTITY})
    tensors = {"linear.weight": parameters["text_head.kernel"].T}
    if head.bias:
        tensors["linear.bias"] = parameters["text_head.bias"]
    write_safetensors(folder / "model.safetensors", tensors)


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    """Return the modules of a folder, empty without `modules.json`. Raises InputError if it is damaged."""
    path = folder / MODULES
    if not path.is_file():
        return []
    modules = read_json(path, "the modules of a sentence-transformers model")
    if not is_list_of(dict, modules):
        raise InputError(path, "modules", type(modules).__name__, "a list of objects")
    return modules


def _pipeline_folder(folder: Path) -> Path:
    """Return the parent folder if its `modules.json` names this one as the model, else the folder itself."""
    return folder.parent if find_model_path(folder.parent) == folder.name else folder


def _text_module_paths(folder: Path) -> dict[str, str]:
    """Return the path of each module of a text model by its kind; empty without `modules.json`.

    Raises InputError for modules that are not supported, and for a prompt that is added to every text.
    """
    folder = _pipeline_folder(folder)
    prompts = read_json_object(folder / _PROMPTS, "prompts") if (folder / _PROMPTS).is_file() else {}
    if (name := prompts.get("default_prompt_name")) is not None:
        raise InputError(folder / _PROMPTS, "default_prompt_name", repr(name), "null: texts are read without a prompt")
    modules = _read_modules(folder)
    kinds = [module_kind(module) for module in modules]
    paths = {kind: str(module.get("path", "")) for kind, module in zip(kinds, modules, strict=True)}
    unsupported = [kind for kind in kinds if kind not in _TEXT_MODULES or kinds.count(kind) > 1]
    if unsupported or not all(is_inner_name(path) for path in paths.values() if path):
        problem = ", ".join(unsupported or paths.values())
        expected = f"only {', '.join(_TEXT_MODULES)}, once each, inside the folder"
        raise InputError(folder / MODULES, "modules", problem, expected)
    return paths
