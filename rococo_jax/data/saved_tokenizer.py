"""A tokenizer without a model: the folder of a `save_pretrained`, or a `tokenizer.json` alone.

A class of `transformers` that belongs to a family is read as of that family (`tokenizer_files`). Of any other tokenizer
`tokenizer.json` decides the ids; the token that ends a text is the last one that it adds to every text.
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
    """The tokenizer of a folder or of a `tokenizer.json`, whose texts have at most so many tokens.

    Raises InputError: there are no tokenizer files, they cannot be read, or no token pads texts.
    """
    folder = path.parent if path.name == _RUST else path
    settings = read_json_object(folder / _SETTINGS, "tokenizer settings") if (folder / _SETTINGS).is_file() else {}
    kind = _MODEL_TYPES.get(str(settings.get("tokenizer_class", "")).removesuffix("Fast"))
    if kind is not None:
        lengths = {"text_config": {"max_position_embeddings": context_length}}
        return read_huggingface_tokenizer(folder, {"model_type": kind, **lengths})
    rust_file = path if path.is_file() else folder / _RUST
    if not rust_file.is_file():
        there = ", ".join(name for name in TOKENIZER_FILES if (folder / name).is_file())
        there = there or ("no tokenizer files" if path.exists() else "nothing there")
        raise InputError(path, "tokenizer", there, f"{_RUST}, or the files of {', '.join(sorted(_MODEL_TYPES))}")
    return _read_rust(rust_file, settings, context_length)


def _read_rust(path: Path, settings: dict[str, Any], context_length: int) -> Tokenizer:
    """The tokenizer of a file, padded as its settings or the file say, else by a usual token or that of the end."""
    rust = read_rust_tokenizer(path)
    added = rust.encode("").ids
    named = settings.get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    names = [named] if named is not None else list(_PADDING)
    own_padding = [] if rust.padding is None else [rust.padding["pad_id"]]
    padding = [number for name in names if (number := rust.token_to_id(str(name))) is not None]
    candidates = [*padding, *own_padding, *added[-1:]]
    if not candidates:
        raise InputError(path, "padding", "no token for it", f"a tokenizer with one of {', '.join(_PADDING)}")
    end = added[-1] if added else candidates[0]
    spec = TokenizerSpec("tokenizers", "none", context_length, candidates[0], end)
    places = {"text length": "config.init.spec", "end id": _RUST, "padding id": _SETTINGS if padding else _RUST}
    return Tokenizer(rust, spec, places)
