"""Adapters of PEFT (LoRA, arXiv 2106.09685), merged into the weights on reading, as `merge_and_unload` does.

    W + s B A,    s = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`

for linear layers and convolutions; transposed for tables of embeddings. The rank of a layer is that of its matrices;
`alpha_pattern` names layers with another alpha. `modules_to_save` and trained biases take the place of the weights.
`fan_in_fan_out` is of layers that no family here has, and PEFT too takes no notice of it for linear layers. Source:
`peft/tuners/lora/layer.py`, `peft/utils/save_and_load.py`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.weight_files import find_weights, open_weights
from rococo_jax.errors import InputError, is_number
from rococo_jax.hub_files import find_folder
from rococo_jax.storage import read_json_object

ADAPTER = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
ADAPTER_FILES = (ADAPTER, *_FILES)
_MATRIX = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.(?!weight$)([^.]+))?(?:\.weight)?")
_MERGED = "the weights that merge_and_unload() of PEFT gives"
_FOLLOWED = {
    "alpha_pattern", "base_model_name_or_path", "init_lora_weights", "lora_alpha", "peft_type", "r", "revision",
    "use_rslora",
}  # fmt: skip
# What chose the layers and trained them, or is used only with a key that is refused; sizes are those of the matrices.
_HARMLESS = {
    "auto_mapping", "bias", "corda_config", "ensure_weight_tying", "ephemeral_gpu_offload", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_core", "modules_to_save", "peft_version", "qalora_group_size",
    "rank_pattern", "runtime_config", "target_modules", "task_type",
}  # fmt: skip
# The others take their matrices out of the base model's weights.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")


def base_folder(folder: Path, files: tuple[str, ...], weights: tuple[str, ...] = ()) -> Path:
    """Where the weights are that an adapter in `folder` is for; `folder` where it has none.

    `files` are those of a model on the hub, `weights` the patterns of which a cached copy of it must have one. As in
    `transformers`, the model that the adapter names, where it is on this disk; else what is beside the adapter;
    else the named model of the hub. Raises InputError where none is there.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return folder
    named = read_json_object(path, "an adapter of PEFT").get("base_model_name_or_path")
    for place in (Path(str(named)), folder / str(named)):
        if named and place.is_dir() and (place / "config.json").is_file():
            return place
    if (folder / "config.json").is_file() and find_weights(folder) is not None:
        return folder
    field = "base_model_name_or_path"
    wanted = "a folder or hub name with the weights that the adapter is for, or these weights beside it"
    if not named:
        raise InputError(path, field, "none", wanted)
    return find_folder(str(named), files, f"{field} of {path}", wanted, weights)


def with_adapter(base: Tensors, folder: Path) -> Tensors:
    """The tensors with the adapter in `folder`, or with matrices of one among them, merged; else as they are.

    Raises InputError where the adapter is of another kind, or nothing tells how its matrices are scaled.
    """
    path = folder / ADAPTER
    if not path.is_file():
        if any(_MATRIX.fullmatch(name) for name in base.names):
            wanted = f"{ADAPTER} beside them, for lora_alpha; or {_MERGED}"
            raise InputError(base.path, "tensors", "matrices of LoRA that are not merged", wanted)
        return base
    config = read_json_object(path, "an adapter of PEFT")
    check_adapter(config, path)
    sources = [base]
    if any((folder / name).is_file() for name in _FILES):
        with open_weights(folder, _FILES) as adapter:
            arrays = {name: adapter.read(name) for name in adapter.names}
        sources.append(
            Tensors(adapter.path, {name: (array.shape, "F32") for name, array in arrays.items()}, arrays.get)
        )
    matrices: dict[str, dict[str, tuple[Tensors, str, bool]]] = {}
    plain: dict[str, tuple[Tensors, str]] = {}
    adapters = set()
    for source in sources:
        for name in source.names:
            if match := _MATRIX.fullmatch(name):
                module, embedding, side, adapter_name = match.groups()
                adapters.add(adapter_name or "default")
                matrices.setdefault(module, {})[side] = (source, name, bool(embedding))
            elif ".original_module." not in name:
                plain[re.sub(r"\.(base_layer|modules_to_save\.[^.]+)\.", ".", name)] = (source, name)
    wrong = [module for module, pair in matrices.items() if len(pair) != 2 or f"{module}.weight" not in plain]
    if not matrices or wrong or len(adapters) > 1:
        found = f"a matrix alone, or for no weight: {wrong[0]}" if wrong else f"adapters: {sorted(adapters)}"
        raise InputError(sources[-1].path, "tensors", found, f"one adapter, A and B for weights of {base.path}")

    def read(name: str) -> np.ndarray:
        source, stored = plain[name]
        weight, module = source.read(stored), name.removesuffix(".weight")
        if module not in matrices or name == module:
            return weight
        (a_source, a_name, embedding), (b_source, b_name, _) = matrices[module]["A"], matrices[module]["B"]
        a, b = a_source.read(a_name), b_source.read(b_name)
        change = b.reshape(b.shape[0], -1) @ a.reshape(a.shape[0], -1)
        scale = _alpha(config, module, path) / (len(a) ** 0.5 if config.get("use_rslora") else len(a))
        return weight + np.float32(scale) * (change.T if embedding else change).reshape(weight.shape)

    about = {name: source.info(stored) for name, (source, stored) in plain.items()}
    origin = f"{base.origin}, with the LoRA adapter of {folder.name} merged"
    return Tensors(base.path, about, read, base.close, origin)


def _alpha(config: Mapping[str, Any], module: str, path: Path) -> float:
    patterns = config.get("alpha_pattern") or {}
    key = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), None)
    alpha = config.get("lora_alpha") if key is None else patterns[key]
    if not is_number(alpha):
        raise InputError(path, "lora_alpha", repr(alpha), "a number")
    return float(alpha)


def check_adapter(config: Mapping[str, Any], path: Path) -> None:
    """Raises InputError where the adapter is none of LoRA's plain form."""
    if config.get("peft_type") != "LORA":
        raise InputError(path, "peft_type", repr(config.get("peft_type")), f"'LORA'; for others, {_MERGED}")
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        raise InputError(
            path, "init_lora_weights", repr(config["init_lora_weights"]), f"a start of its own; or {_MERGED}"
        )
    if config.get("revision") not in (None, "main"):
        raise InputError(path, "revision", config["revision"], "main; or the base model's folder as its name")
    changed = [key for key in config if key not in _FOLLOWED | _HARMLESS and config[key]]
    if changed:
        raise InputError(path, changed[0], str(config[changed[0]])[:80], f"plain LoRA, without it; or {_MERGED}")
