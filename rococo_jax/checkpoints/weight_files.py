"""The weights of a folder, whatever file holds them: safetensors or torch's archive, whole or in shards.

Names are those of `transformers`, with its variants (`model.fp16.safetensors`), or of open_clip. Prefixes that wrappers
of torch put before all names (`module.` of data parallelism, `_orig_mod.` of `torch.compile`) are left out.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from rococo_jax.checkpoints.tensors import Tensors, open_safetensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.errors import InputError
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import read_json_object

SAFETENSORS = ("model*.safetensors", "model.safetensors.index*.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index*.json")
# In the order in which `transformers` looks for them: the file, the index of its shards, and patterns of variants.
_NAMES = (
    ("model.safetensors", "model.*.safetensors"),
    ("model.safetensors.index.json", "model.safetensors.index.*.json"),
    ("pytorch_model.bin", "pytorch_model.*.bin"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin.index.*.json"),
)
_OTHERS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ckpt", "*.onnx", "*.gguf")


def find_weights(folder: Path, names: Sequence[str] = ()) -> Path | None:
    """The file of a folder's weights, or the index of their shards: the first of `names`, else as `transformers` names
    them. None where there is none. Raises InputError where there are several variants and nothing else.
    """
    for name in (*names, *(name for name, _ in _NAMES)):
        if (folder / name).is_file():
            return folder / name
    for _, pattern in _NAMES:
        if len(variants := sorted(path for path in folder.glob(pattern) if "-of-" not in path.name)) > 1:
            found = f"variants alone: {', '.join(path.name for path in variants)}"
            raise InputError(folder, "weights", found, "one of them, or model.safetensors beside them")
        if variants:
            return variants[0]
    return None


def open_weights(folder: Path, names: Sequence[str] = ()) -> Tensors:
    """The tensors of the file that `find_weights` gives; a context manager. Raises InputError where there is none."""
    path = find_weights(folder, names)
    if path is None:
        others = sorted({each.name for pattern in _OTHERS for each in folder.glob(pattern)})
        wanted = " or ".join(names or [name for name, _ in _NAMES[::2]])
        raise InputError(folder, "weights", ", ".join(others[:8]) or "no weight files", wanted)
    opened = _open_shards(path) if path.suffix == ".json" else _opener(path.name)(path)
    return opened.unwrapped()


def _opener(name: str) -> Callable[[Path], Tensors]:
    return open_safetensors if name.endswith(".safetensors") else open_torch_archive


def _open_shards(index: Path) -> Tensors:
    weight_map = read_json_object(index, "an index of weight files").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(index, "weight_map", type(weight_map).__name__, "file names by tensor")
    names = set(weight_map.values())
    if outside := sorted(file for file in names if not is_inner_name(file) or Path(file).name != file):
        raise InputError(index, "weight_map", outside[0], "file names inside the folder")
    with contextlib.ExitStack() as stack:
        shards = {
            name: stack.enter_context(_opener(name)(index.parent / name)) for name in sorted(set(weight_map.values()))
        }
        for name, shard in shards.items():
            expected = {tensor for tensor, file in weight_map.items() if file == name}
            if absent := expected - set(shard.names):
                raise InputError(shard.path, "tensors", f"no {sorted(absent)[:5]}", "all that the index names")
        about = {tensor: shard.info(tensor) for shard in shards.values() for tensor in shard.names}
        places = {tensor: shard for shard in shards.values() for tensor in shard.names}
        return Tensors(index, about, lambda tensor: places[tensor].read_raw(tensor), stack.pop_all().close)
