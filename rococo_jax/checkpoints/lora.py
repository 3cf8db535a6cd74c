"""Read adapters of PEFT (LoRA, arXiv 2106.09685) merged into the weights, like `merge_and_unload`.

    W + s B A,    s = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`

for linear layers and convolutions; B A is transposed for tables of embeddings. The rank of a layer is that of its
matrices; `alpha_pattern` names layers with another alpha. `modules_to_save` and trained biases replace the weights.
`fan_in_fan_out` belongs to layers that no family here has, and PEFT ignores it for linear layers too. Source:
`peft/tuners/lora/layer.py`, `peft/utils/save_and_load.py`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex

from rococo_jax.checkpoints.tensors import Tensors
from rococo_jax.checkpoints.weight_files import find_weights, open_weights
from rococo_jax.errors import InputError, is_number
from rococo_jax.hub_files import find_folder
from rococo_jax.storage import read_json_object

ADAPTER = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
ADAPTER_FILES = (ADAPTER, *_FILES)
_MATRIX = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.(?!weight$)([^.]+))?(?:\.weight)?")
# The longest time that a pattern of layers may take with one name; usual ones take microseconds.
_SECONDS = 2.0
_MERGED = "weights that were merged with merge_and_unload() of PEFT"
_SUPPORTED_KEYS = {
    "alpha_pattern", "base_model_name_or_path", "init_lora_weights", "lora_alpha", "peft_type", "r", "revision",
    "use_rslora",
}  # fmt: skip
# Layer selection and training settings, which do not change the merge; and keys that only matter with refused ones.
_WITHOUT_EFFECT = {
    "auto_mapping", "bias", "corda_config", "ensure_weight_tying", "ephemeral_gpu_offload", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_dropout", "lora_ga_config", "megatron_core", "modules_to_save", "peft_version", "qalora_group_size",
    "rank_pattern", "runtime_config", "target_modules", "task_type",
}  # fmt: skip
# Initialisations that leave the base weights unchanged; the others subtract the initial matrices from them.
_SUPPORTED_INITS = (True, False, None, "gaussian", "orthogonal", "eva")


def base_folder(folder: Path, files: tuple[str, ...], weights: tuple[str, ...] = ()) -> Path:
    """Return the folder with the weights that an adapter in `folder` is for; `folder` if it has no adapter.

    As in `transformers`, it is the model that the adapter names if that is a local folder, else the folder of the
    adapter if it has weights, else the named model on the hub. `files` are those of a model on the hub, `weights`
    patterns of which a cached copy of it must have one. Raises InputError if there is no such folder.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return folder
    base_name = read_json_object(path, "an adapter of PEFT").get("base_model_name_or_path")
    for candidate in (Path(str(base_name)), folder / str(base_name)):
        if base_name and candidate.is_dir() and (candidate / "config.json").is_file():
            return candidate
    if (folder / "config.json").is_file() and find_weights(folder) is not None:
        return folder
    field = "base_model_name_or_path"
    expected = "a folder or hub name with the weights that the adapter is for, or these weights beside it"
    if not base_name:
        raise InputError(path, field, "none", expected)
    return find_folder(str(base_name), files, f"{field} of {path}", expected, weights)


class _Location(NamedTuple):
    """A stored tensor: the file, and its name there."""

    source: Tensors
    name: str

    def read(self) -> np.ndarray:
        return self.source.read(self.name)


@dataclasses.dataclass
class _Pair:
    """The matrices A and B of one layer, None where one is missing; those of a table of embeddings are transposed."""

    a: _Location | None = None
    b: _Location | None = None
    is_embedding: bool = False


def with_adapter(base: Tensors, folder: Path) -> Tensors:
    """Return the tensors with the adapter in `folder`, or with LoRA matrices among them, merged; else unchanged.

    Raises InputError if the adapter is of an unsupported kind, or the scale of its matrices is not recorded.
    """
    path = folder / ADAPTER
    if not path.is_file():
        if any(_MATRIX.fullmatch(name) for name in base.names):
            expected = f"{ADAPTER} beside them, for lora_alpha; or {_MERGED}"
            raise InputError(base.path, "tensors", "matrices of LoRA that are not merged", expected)
        return base
    config = read_json_object(path, "an adapter of PEFT")
    check_adapter(config, path)
    sources = [base]
    if any((folder / name).is_file() for name in _FILES):
        sources.append(_read_adapter_file(folder))
    pairs, weights = _sort_tensors(sources)

    def read(name: str) -> np.ndarray:
        weight, module = weights[name].read(), name.removesuffix(".weight")
        if module not in pairs or name == module:
            return weight
        pair = pairs[module]
        a, b = pair.a.read(), pair.b.read()
        change = b.reshape(b.shape[0], -1) @ a.reshape(a.shape[0], -1)
        rank = len(a)
        scale = _alpha(config, module, path) / (rank**0.5 if config.get("use_rslora") else rank)
        return weight + np.float32(scale) * (change.T if pair.is_embedding else change).reshape(weight.shape)

    info = {name: location.source.info(location.name) for name, location in weights.items()}
    origin = f"{base.origin}, with the LoRA adapter of {folder.name} merged"
    return Tensors(base.path, info, read, base.close, origin)


def _read_adapter_file(folder: Path) -> Tensors:
    """Read an adapter file into memory."""
    with open_weights(folder, _FILES) as adapter:
        arrays = {name: adapter.read(name) for name in adapter.names}
    return Tensors(adapter.path, {name: (array.shape, "F32") for name, array in arrays.items()}, arrays.__getitem__)


def _sort_tensors(sources: Sequence[Tensors]) -> tuple[dict[str, _Pair], dict[str, _Location]]:
    """Return the LoRA matrices by module, and all other tensors by the name that they have in the merged model.

    Raises InputError unless there is exactly one adapter with both matrices for weights of the model.
    """
    pairs: dict[str, _Pair] = {}
    weights: dict[str, _Location] = {}
    adapters = set()
    for source in sources:
        for name in source.names:
            if match := _MATRIX.fullmatch(name):
                module, embedding, side, adapter_name = match.groups()
                adapters.add(adapter_name or "default")
                pair = pairs.setdefault(module, _Pair())
                pair.is_embedding = bool(embedding)
                setattr(pair, side.lower(), _Location(source, name))
            elif ".original_module." not in name:
                merged_name = re.sub(r"\.(base_layer|modules_to_save\.[^.]+)\.", ".", name)
                weights[merged_name] = _Location(source, name)
    incomplete = [
        module for module, pair in pairs.items() if None in (pair.a, pair.b) or f"{module}.weight" not in weights
    ]
    if not pairs or incomplete or len(adapters) > 1:
        problem = f"adapters: {sorted(adapters)}"
        if incomplete:
            problem = f"an unpaired LoRA matrix, or one without a base weight: {incomplete[0]}"
        expected = f"one adapter, A and B for weights of {sources[0].path}"
        raise InputError(sources[-1].path, "tensors", problem, expected)
    return pairs, weights


def _alpha(config: Mapping[str, Any], module: str, path: Path) -> float:
    """Return the alpha of a module, whose name PEFT compares with regular expressions (`get_pattern_key`).

    Raises InputError if it is no number, or a pattern cannot be used.
    """
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise InputError(path, "alpha_pattern", repr(patterns)[:80], "an object of numbers by names of layers")
    key = next((key for key in patterns if _fits(key, module, path)), None)
    alpha = config.get("lora_alpha") if key is None else patterns[key]
    if not is_number(alpha):
        raise InputError(path, "lora_alpha", repr(alpha), "a number")
    return float(alpha)


def _fits(pattern: str, module: str, path: Path) -> bool:
    """Return whether the name of a module ends with a pattern."""
    try:
        return regex.match(rf"(.*\.)?({pattern})$", module, timeout=_SECONDS) is not None
    except regex.error as error:
        raise InputError(path, "alpha_pattern", f"{pattern[:80]!r} ({error.msg})", "a regular expression") from None
    except TimeoutError:
        problem = f"{pattern[:80]!r}, which takes too long on {module[:80]!r}"
        raise InputError(path, "alpha_pattern", problem, "a pattern without nested repetitions") from None


def check_adapter(config: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if the adapter is not a plain LoRA."""
    if config.get("peft_type") != "LORA":
        raise InputError(path, "peft_type", repr(config.get("peft_type")), f"'LORA'; for others, {_MERGED}")
    if config.get("init_lora_weights") not in _SUPPORTED_INITS:
        expected = f"an init that leaves the base weights unchanged; or {_MERGED}"
        raise InputError(path, "init_lora_weights", repr(config["init_lora_weights"]), expected)
    if config.get("revision") not in (None, "main"):
        raise InputError(
            path,
            "revision",
            config["revision"],
            "main; or a folder as base_model_name_or_path",
        )
    for key, value in config.items():
        if value and key not in _SUPPORTED_KEYS | _WITHOUT_EFFECT:
            raise InputError(path, key, str(value)[:80], f"plain LoRA, without it; or {_MERGED}")
