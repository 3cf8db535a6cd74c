"""The subfolder of an old sentence-transformers folder that holds the model: `0_CLIPModel`, `0_Transformer`.

`modules.json` lists the modules of a pipeline, each with its `type` and `path`. The first is the model of
`transformers`; newer releases keep it in the folder itself (an empty path), older ones in a subfolder.
"""

from pathlib import Path

from rococo_jax.errors import InputError, is_list_of
from rococo_jax.safe_paths import is_inner_name
from rococo_jax.storage import read_json

MODULES = "modules.json"
_MODELS = ("CLIPModel", "Transformer")


def find_model_path(folder: Path) -> str | None:
    """Return the path of the model inside a sentence-transformers folder; None if it is the folder itself.

    Raises InputError if `modules.json` is damaged, or its first module is not supported.
    """
    path = folder / MODULES
    if (folder / "config.json").is_file() or not path.is_file():
        return None
    modules = read_json(path, "the modules of a sentence-transformers model")
    if not is_list_of(dict, modules) or not modules:
        raise InputError(path, "modules", type(modules).__name__, "a list of objects")
    kinds = [module_kind(module) for module in modules]
    inner = modules[0].get("path")
    if inner == "":
        return None
    if kinds[0] not in _MODELS:
        raise InputError(path, "type of the first module", repr(modules[0].get("type")), " or ".join(_MODELS))
    if not isinstance(inner, str) or not is_inner_name(inner):
        raise InputError(path, "path of the first module", repr(inner), "a folder inside this one")
    return inner.strip("/")


def check_modules(folder: Path) -> None:
    """Raise InputError if modules after a CLIP change its embeddings. The family checks those after a text model."""
    path = folder / MODULES
    modules = read_json(path, "the modules of a sentence-transformers model") if path.is_file() else []
    kinds = [module_kind(module) for module in modules] if is_list_of(dict, modules) else []
    if kinds[:1] == ["CLIPModel"] and (changing := [kind for kind in kinds[1:] if kind != "Normalize"]):
        raise InputError(
            path, "modules", f"{', '.join(changing)} after CLIPModel", "CLIPModel alone, or Normalize after it"
        )


def module_kind(module: dict) -> str:
    """Return the class name of a module."""
    return str(module.get("type", "")).rpartition(".")[2]
