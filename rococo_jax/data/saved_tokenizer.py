"""Read a tokenizer without a model: a folder written by `save_pretrained`, or a single `tokenizer.json`.

A tokenizer class of `transformers` that belongs to a family is read like that family (`tokenizer_files`). For any other
tokenizer, `tokenizer.json` determines the ids, and the last token that it adds to every text is the end token.
"""

from pathlib import Path
from typing import Any

from rococo_jax.data.tokenizer_files import TOKENIZER_FILES, read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec, read_rust_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json_object

# `tokenizer_class` of tokenizer_config.json: `model_type` of config.json.
_MODEL_TYPES = {
    "CLIPTokenizer": "clip",
    "SiglipTokenizer": "siglip",
    "BertTokenizer": "bert",
    "RobertaTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
}
_SETTINGS, _RUST = "tokenizer_config.json", "tokenizer.json"
_PADDING = ("<pad>", "[PAD]", "<|pad|>")


def read_saved_tokenizer(path: Path, context_length: int) -> Tokenizer:
    """Read the tokenizer of a folder or of a `tokenizer.json`, for texts of at most `context_length` tokens.

    Raises InputError: there are no tokenizer files, they cannot be read, or there is no token for padding.
    """
    folder = path.parent if path.name == _RUST else path
    settings = read_json_object(folder / _SETTINGS, "tokenizer settings") if (folder / _SETTINGS).is_file() else {}
    kind = _MODEL_TYPES.get(str(settings.get("tokenizer_class", "")).removesuffix("Fast"))
    if kind is not None:
        lengths = {"text_config": {"max_position_embeddings": context_length}}
        return read_huggingface_tokenizer(folder, {"model_type": kind, **lengths})
    rust_file = path if path.is_file() else folder / _RUST
    if not rust_file.is_file():
        problem = ", ".join(name for name in TOKENIZER_FILES if (folder / name).is_file())
        problem = problem or ("no tokenizer files" if path.exists() else "nothing there")
        raise InputError(path, "tokenizer", problem, f"{_RUST}, or the files of {', '.join(sorted(_MODEL_TYPES))}")
    return _read_rust(rust_file, settings, context_length)


def _read_rust(path: Path, settings: dict[str, Any], context_length: int) -> Tokenizer:
    """Read a `tokenizer.json`.

    Its padding token is that of the settings or, in this order, a usual one, that of the file, or the end token.
    """
    rust = read_rust_tokenizer(path)
    special_ids = rust.encode("").ids
    pad_token = settings.get("pad_token")
    pad_token = pad_token.get("content") if isinstance(pad_token, dict) else pad_token
    names = [pad_token] if pad_token is not None else list(_PADDING)
    ids_by_name = [number for name in names if (number := rust.token_to_id(str(name))) is not None]
    ids_in_file = [] if rust.padding is None else [rust.padding["pad_id"]]
    candidates = [*ids_by_name, *ids_in_file, *special_ids[-1:]]
    if not candidates:
        raise InputError(path, "padding", "no token for it", f"a tokenizer with one of {', '.join(_PADDING)}")
    eos_id = special_ids[-1] if special_ids else candidates[0]
    spec = TokenizerSpec("tokenizers", "none", context_length, candidates[0], eos_id)
    origins = {"text length": "config.init.spec", "end id": _RUST, "padding id": _SETTINGS if ids_by_name else _RUST}
    return Tokenizer(rust, spec, origins)
