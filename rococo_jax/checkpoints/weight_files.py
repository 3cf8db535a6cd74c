"""The weights of a folder: safetensors or torch archives, in one file or in shards.

Files have the names of `transformers`, with its variants (`model.fp16.safetensors`), or of open_clip. Prefixes of
wrappers of torch (`module.` of data parallelism, `_orig_mod.` of `torch.compile`) are removed from the tensors' names.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.checkpoints.tensors import Tensors, open_safetensors
from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.errors import InputError
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import read_json_object

SAFETENSORS = ("model*.safetensors", "model.safetensors.index*.json")
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index*.json")
# In the order of `transformers`: the file or the index of its shards, and the pattern of its variants.
_NAMES = (
    ("model.safetensors", "model.*.safetensors"),
    ("model.safetensors.index.json", "model.safetensors.index.*.json"),
    ("pytorch_model.bin", "pytorch_model.*.bin"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin.index.*.json"),
)
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.ckpt", "*.onnx", "*.gguf")


def find_weights(folder: Path, names: Sequence[str] = ()) -> Path | None:
    """Return the file of a folder's weights, or the index of their shards; None if there is none.

    `names` are looked for first, then the names of `transformers`. Raises InputError if there are several variants and
    nothing else.
    """
    for name in (*names, *(name for name, _ in _NAMES)):
        if (folder / name).is_file():
            return folder / name
    for _, pattern in _NAMES:
        if len(variants := sorted(path for path in folder.glob(pattern) if "-of-" not in path.name)) > 1:
            problem = f"variants alone: {', '.join(path.name for path in variants)}"
            raise InputError(folder, "weights", problem, "one of them, or model.safetensors beside them")
        if variants:
            return variants[0]
    return None


def open_weights(folder: Path, names: Sequence[str] = ()) -> Tensors:
    """Open the file that `find_weights` returns; a context manager. Raises InputError if there is none."""
    path = find_weights(folder, names)
    if path is None:
        other_files = sorted({each.name for pattern in _WEIGHT_PATTERNS for each in folder.glob(pattern)})
        file_names = " or ".join(names or [name for name, _ in _NAMES[::2]])
        raise InputError(folder, "weights", ", ".join(other_files[:8]) or "no weight files", file_names)
    tensors = _open_shards(path) if path.suffix == ".json" else _open_file(path)
    return tensors.unwrapped()


def _open_file(path: Path) -> Tensors:
    return open_safetensors(path) if path.suffix == ".safetensors" else open_torch_archive(path)


def _open_shards(index: Path) -> Tensors:
    weight_map = read_json_object(index, "an index of weight files").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise InputError(index, "weight_map", type(weight_map).__name__, "file names by tensor")
    names = set(weight_map.values())
    if outside := sorted(file for file in names if not is_inner_name(file) or Path(file).name != file):
        raise InputError(index, "weight_map", outside[0], "file names inside the folder")
    with contextlib.ExitStack() as stack:
        shards = {name: stack.enter_context(_open_file(index.parent / name)) for name in sorted(names)}
        for name, shard in shards.items():
            expected = {tensor for tensor, file in weight_map.items() if file == name}
            if missing := expected - set(shard.names):
                raise InputError(shard.path, "tensors", f"no {sorted(missing)[:5]}", "all tensors of the index")
        info = {tensor: shard.info(tensor) for shard in shards.values() for tensor in shard.names}
        shard_of = {tensor: shard for shard in shards.values() for tensor in shard.names}
        return Tensors(index, info, lambda tensor: shard_of[tensor].read_raw(tensor), stack.pop_all().close)
