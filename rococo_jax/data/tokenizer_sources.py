"""Reads the tokenizer of a Hugging Face folder or hub name, whatever files it is made of.

    tokenizer.json                     read as it is (CLIP, BERT, SigLIP 2)
    vocab.json + merges.txt            CLIP before `tokenizers`
    vocab.txt                          BERT before `tokenizers`
    spiece.model                       SigLIP (sentencepiece); preferred there, because the reference reads it

The last three are converted to a Rust tokenizer by the classes of `transformers`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers

from rococo_jax.data.tokenizers import WORD_MARK, Tokenizer, TokenizerSpec, first_line, read_rust_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "sentence_bert_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
)
_FAMILIES = {
    "clip": "clip",
    "clip_text_model": "clip",
    "siglip": "siglip",
    "siglip_text_model": "siglip",
    "bert": "bert",
}
# (field of the special tokens map, the family's default token) for the end of a text and for padding.
_END = {
    "clip": ("eos_token", "<|endoftext|>"),
    "siglip": ("eos_token", "</s>"),
    "bert": ("sep_token", "[SEP]"),
}
_PADDING = {"clip": "<|endoftext|>", "siglip": "</s>", "bert": "[PAD]"}


def read_huggingface_tokenizer(source: str | os.PathLike, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or hub name.

    Args:
        source: the folder, or a name on the hub.
        config: the model's `config.json`, for its `model_type` and lengths.

    Raises:
        InputError: the family is unknown, no tokenizer files are there, or they cannot be read.
    """
    family = _FAMILIES.get(config.get("model_type", ""))
    if family is None:
        raise InputError(source, "model_type", config.get("model_type"), f"one of {', '.join(_FAMILIES)}")
    folder = _find_folder(source)
    own = _read_settings(folder)
    if family == "siglip" and own.get("padding_side", "right") != "right":
        raise InputError(folder, "padding_side", own["padding_side"], "right, as SigLIP's text tower was trained")
    rust = _read_tokenizer(folder, family)
    end_field, end_default = _END[family]
    context_length = _context_length(folder, family, config, own)
    spec = TokenizerSpec(
        family=family,
        cleaning=_cleaning(folder, family),
        context_length=context_length,
        pad_id=_token_id(rust, folder, own, "pad_token", _PADDING[family]),
        eos_id=_token_id(rust, folder, own, end_field, end_default),
        fixed_length=context_length if family == "siglip" else None,
    )
    return Tokenizer(rust, spec)


def _find_folder(source: str | os.PathLike) -> Path:
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=list(_FILES)))
    except Exception as error:  # no network, no such name, no right to read it
        found = first_line(error)
        raise InputError(source, "tokenizer", found, "a folder, or a name on the Hugging Face hub") from None


def _read_settings(folder: Path) -> dict[str, Any]:
    """`special_tokens_map.json` under `tokenizer_config.json`, where they exist."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings.update({k: v for k, v in read_json(folder / name, "tokenizer settings").items() if v is not None})
    return settings


def _read_tokenizer(folder: Path, family: str) -> tokenizers.Tokenizer:
    have = {name for name in _FILES if (folder / name).is_file()}
    if family == "siglip" and "spiece.model" in have:
        return _from_sentencepiece(folder / "spiece.model")
    if "tokenizer.json" in have:
        return read_rust_tokenizer(folder / "tokenizer.json")
    if family == "clip" and {"vocab.json", "merges.txt"} <= have:
        from transformers import CLIPTokenizer

        return _through_transformers(CLIPTokenizer, folder)
    if family == "bert" and "vocab.txt" in have:
        from transformers import BertTokenizer

        return _through_transformers(BertTokenizer, folder)
    wanted = {
        "clip": "tokenizer.json, or vocab.json and merges.txt",
        "siglip": "spiece.model or tokenizer.json",
        "bert": "tokenizer.json or vocab.txt",
    }
    raise InputError(folder, "tokenizer", ", ".join(sorted(have)) or "no tokenizer files", wanted[family])


def _through_transformers(tokenizer_class: Any, folder: Path) -> tokenizers.Tokenizer:
    try:
        text = tokenizer_class.from_pretrained(str(folder)).backend_tokenizer.to_str()
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise InputError(folder, "tokenizer", first_line(error), "vocabulary files that can be read") from None


def _from_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """SigLIP's sentencepiece model as a Rust tokenizer. `clean_like_siglip` runs before it and sets the word mark."""
    from tokenizers import Regex, normalizers
    from transformers.convert_slow_tokenizer import SpmConverter

    class SiglipConverter(SpmConverter):
        def normalizer(self, proto):
            spec, steps = proto.normalizer_spec, []
            if spec.precompiled_charsmap:
                steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
            if spec.remove_extra_whitespaces:
                # As in sentencepiece: a run of spaces is one space; spaces and word marks at the end are dropped.
                steps.append(normalizers.Replace(Regex(" {2,}"), " "))
                steps.append(normalizers.Replace(Regex(f"[ {WORD_MARK}]+$"), ""))
            return normalizers.Sequence(steps)

        def post_processor(self):
            end = next(number for number, piece in enumerate(self.proto.pieces) if piece.piece == "</s>")
            return tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])

    try:
        return SiglipConverter(SimpleNamespace(vocab_file=str(path))).converted()
    except Exception as error:  # protobuf, the converter and Rust raise without a common class
        raise InputError(path, "sentencepiece model", first_line(error), "one that can be read") from None


def _cleaning(folder: Path, family: str) -> str:
    if family != "siglip":
        return "none"
    if (folder / "spiece.model").is_file():
        return "siglip"
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["type"]
    # SigLIP 2 reads Gemma's BPE vocabulary, lower-cased and with its punctuation.
    return "lowercase" if model == "BPE" else "siglip"


def _context_length(folder: Path, family: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    text_config = config.get("text_config") or config
    limits = [text_config.get("max_position_embeddings", {"clip": 77, "siglip": 64, "bert": 512}[family])]
    if family == "bert":
        limits.append(own.get("model_max_length", limits[0]))
        if (folder / "sentence_bert_config.json").is_file():
            settings = read_json(folder / "sentence_bert_config.json", "sentence-transformers settings")
            limits.append(settings.get("max_seq_length") or limits[0])
    return int(min(limits))


def _token_id(rust: tokenizers.Tokenizer, folder: Path, own: Mapping[str, Any], field: str, default: str) -> int:
    token = own.get(field, default)
    token = token["content"] if isinstance(token, Mapping) else token
    number = rust.token_to_id(token)
    if number is None:
        raise InputError(folder, field, f"{token!r}, which is not in the vocabulary", "a token of the vocabulary")
    return number
