"""Reads the tokenizer of a folder as the library that the checkpoint belongs to reads it.

transformers             `AutoTokenizer`: the class that `tokenizer_config.json`, else the model's type, names makes
                         the tokenizer anew, so that `do_lower_case` and its like win over `tokenizer.json`
sentence-transformers    the same, with `sentence_bert_config.json`
open_clip                the same behind a cleaning, where `hf_tokenizer_name` is set, cut at open_clip's length;
                         else OpenAI's tokenizer, for which any file of CLIP's vocabulary serves
SigLIP                   its tokenizer is written in Python; the sentencepiece model is converted here
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tokenizers

from rococo_jax.data.tokenizers import WORD_MARK, Tokenizer, TokenizerSpec, read_rust_tokenizer
from rococo_jax.errors import InputError, first_line
from rococo_jax.hub_files import find_folder
from rococo_jax.storage import read_json_object

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "sentence_bert_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
_FAMILIES = {
    "clip": "clip",
    "clip_text_model": "clip",
    "siglip": "siglip",
    "siglip_text_model": "siglip",
    "siglip2": "siglip2",
    "siglip2_text_model": "siglip2",
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "m2m_100": "roberta",
    "tipsv2": "tipsv2",
    "tipsv2_text_model": "tipsv2",
}
# (the setting that names the token that ends a text, its default, that of padding, positions by default)
_ENDS = {
    "clip": ("eos_token", "<|endoftext|>", "<|endoftext|>", 77),
    "siglip": ("eos_token", "</s>", "</s>", 64),
    "siglip2": ("eos_token", "<eos>", "<pad>", 64),
    "bert": ("sep_token", "[SEP]", "[PAD]", 512),
    "roberta": ("eos_token", "</s>", "<pad>", 512),
    "tipsv2": ("pad_token", "<pad>", "<pad>", 64),  # no token ends a text
}
_VOCABULARIES = {
    "clip": ({"tokenizer.json"}, {"vocab.json", "merges.txt"}),
    "siglip": ({"spiece.model"}, {"tokenizer.json"}),
    "siglip2": ({"tokenizer.json"},),
    "bert": ({"tokenizer.json"}, {"vocab.txt"}),
    "roberta": ({"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"sentencepiece.bpe.model"}),
    "tipsv2": ({"tokenizer.json"}, {"tokenizer.model"}),
}
# What every text here is: cut at its end and padded after it, read as text throughout, the same each time.
_FIXED = {"padding_side": "right", "truncation_side": "right", "split_special_tokens": False, "sp_model_kwargs": {}}
_CLEANINGS = ("whitespace", "lower", "canonicalize")


def read_huggingface_tokenizer(source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or hub name, for a model with this `config.json`.

    Raises InputError where the family is unknown, no tokenizer files are there, they cannot be read, or a setting asks
    for what is not done here.
    """
    kind = config.get("model_type", "")
    family, folder = _family(source, kind), _folder(source)
    own, places = _settings(folder, family)
    _require_vocabulary(folder, family)
    cleaning = "none"
    if family == "siglip":
        rust, cleaning = _read_siglip(folder)
        if str(own.get("tokenizer_class", "")).startswith("Gemma"):
            _check_fixed(folder, {"padding_side": "left", **own})  # the default of that class
        if own.get("do_lower_case") is False:
            raise InputError(folder, "do_lower_case", "false", "true, as SigLIP's text tower was trained")
    else:
        # A lone text tower of SigLIP 2 has no class of its own there, and texts as those of the pair.
        kind = family if family == "siglip2" else kind
        rust, own = _through_transformers(folder, kind, own, config.get("tokenizer_class"))
        _check_fixed(folder, own)
    text_config = config.get("text_config") or config
    limits = {"config.json: max_position_embeddings": text_config.get("max_position_embeddings", _ENDS[family][3])}
    limits["tokenizer_config.json: model_max_length"] = own.get("model_max_length") or min(limits.values())
    if (folder / "sentence_bert_config.json").is_file():
        sentences = read_json_object(folder / "sentence_bert_config.json", "sentence-transformers settings")
        limits["sentence_bert_config.json: max_seq_length"] = sentences.get("max_seq_length") or min(limits.values())
        if sentences.get("do_lower_case"):
            cleaning = "str_lower"
            places["cleaning"] = places["lower case"] = "sentence_bert_config.json: do_lower_case"
    if not all(isinstance(limit, int | float) and limit >= 1 for limit in limits.values()):
        raise InputError(folder, "tokenizer", f"lengths {[*limits.values()]}", "numbers of tokens, 1 or more")
    places["text length"] = min(limits, key=limits.get)
    length = int(limits[places["text length"]])
    return _tokenizer(rust, folder, family, own, cleaning, length, places, length if "siglip" in family else None)


def read_open_clip_tokenizer(
    source: str | Path, kind: str, length: int, arguments: Mapping[str, Any], *, simple: bool, config: object = ""
) -> Tokenizer:
    """The tokenizer that open_clip makes of a folder or hub name. OpenAI's own is `simple` without arguments.

    Args:
        kind: `clip`, `siglip`, `bert`, `roberta`, `xlm-roberta` or `m2m_100`, whose special tokens are the defaults.
        length: texts are cut there, end token kept.
        arguments: `tokenizer_kwargs`.
        simple: open_clip's own tokenizer, else one of `transformers`.
        config: the file that `arguments` are of, for errors.

    Raises InputError as `read_huggingface_tokenizer`, and for an argument that is not followed here.
    """
    family, folder = _family(source, kind), _folder(source)
    own, places = _settings(folder, family)
    places["text length"] = "text_cfg.context_length, or the default"
    places["cleaning"] = "text_cfg.tokenizer_kwargs.clean" if "clean" in arguments else "open_clip's default"
    if simple:
        places["lower case"] = places["cleaning"]
    _require_vocabulary(folder, family)
    cleaning = arguments.get("clean", "lower" if simple else "whitespace")
    for name, value in arguments.items():
        off = value in (None, False, "", [])
        known = {"clean": value in _CLEANINGS, "strip_sep_token": value is True and not simple}
        known["language"] = isinstance(value, str) and kind == "m2m_100"
        if not known.get(name, off) and not (off and name != "clean"):
            wanted = f"one of {', '.join(_CLEANINGS)}" if name == "clean" else "a tokenizer without it"
            raise InputError(config, f"text_cfg.tokenizer_kwargs.{name}", repr(value), wanted)
    if "tokenizer_class" not in own and (folder / "tokenizer.json").is_file():
        rust = read_rust_tokenizer(folder / "tokenizer.json")
    elif family == "siglip" and (folder / "spiece.model").is_file():
        rust, more = _read_siglip(folder)
        cleaning = f"{cleaning}+{more}"
    else:
        rust, own = _through_transformers(folder, kind, own)
    if simple:
        rust.normalizer = tokenizers.normalizers.Sequence([])
    tokenizer = _tokenizer(rust, folder, family, own, cleaning, length, places)
    if kind == "m2m_100":
        # The language stands before a text: the file may have it after the end, where NLLB once had it.
        language = arguments.get("language") or own.get("src_lang", "eng_Latn")
        if (number := rust.token_to_id(language)) is None:
            raise InputError(source, "tokenizer", f"no {language}", "the languages of NLLB")
        ends = [(language, number), ("</s>", tokenizer.spec.eos_id)]
        rust.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{language} $A </s>", special_tokens=ends
        )
    return with_padded_end(tokenizer) if arguments.get("strip_sep_token") else tokenizer


def with_padded_end(tokenizer: Tokenizer) -> Tokenizer:
    """CLIPA's (arXiv 2305.07017) from BERT's: the padding id in place of [SEP], texts padded to the context length.

    open_clip calls it `strip_sep_token`.
    """
    rust, spec = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str()), tokenizer.spec
    first = rust.encode("").ids[0]
    start, pad = rust.id_to_token(first), rust.id_to_token(spec.pad_id)
    special = [(start, first), (pad, spec.pad_id)]
    rust.post_processor = tokenizers.processors.TemplateProcessing(single=f"{start} $A {pad}", special_tokens=special)
    changed = dataclasses.replace(spec, eos_id=spec.pad_id, fixed_length=spec.context_length)
    return Tokenizer(rust, changed, {**tokenizer.read_from, "end id": "text_cfg.tokenizer_kwargs.strip_sep_token"})


def for_transformers(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer as `transformers` can have it: of open_clip's cleaning `lower`, its lower case and white space.

    Raises InputError for another cleaning of open_clip's.
    """
    if tokenizer.spec.cleaning not in _CLEANINGS:
        return tokenizer
    if tokenizer.spec.cleaning != "lower":
        raise InputError("tokenizer", "cleaning", tokenizer.spec.cleaning, "what a tokenizer.json can express")
    steps = tokenizers.normalizers
    replace = steps.Replace(tokenizers.Regex(r"\s+"), " ")
    return _with_cleaning(tokenizer, "none", steps.Sequence([steps.NFC(), replace, steps.Lowercase()]))


def for_open_clip(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer as open_clip's own: one without a cleaning gets `lower` in place of its normaliser."""
    if tokenizer.spec.cleaning != "none":
        return tokenizer
    return _with_cleaning(tokenizer, "lower", tokenizers.normalizers.Sequence([]))


def _with_cleaning(tokenizer: Tokenizer, cleaning: str, normalizer: Any) -> Tokenizer:
    rust = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str())
    rust.normalizer = normalizer
    return Tokenizer(rust, dataclasses.replace(tokenizer.spec, cleaning=cleaning))


def _family(source: object, kind: str) -> str:
    if kind not in _FAMILIES:
        raise InputError(source, "model_type", kind or None, f"one of {', '.join(_FAMILIES)}")
    return _FAMILIES[kind]


def _folder(source: str | Path) -> Path:
    return find_folder(source, TOKENIZER_FILES, "tokenizer", "a folder, or a name on the hub", TOKENIZER_FILES)


def _settings(folder: Path, family: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`special_tokens_map.json` under `tokenizer_config.json`, where they exist, and where rules stand in them."""
    settings: dict[str, Any] = {}
    vocabulary = "tokenizer.json" if (folder / "tokenizer.json").is_file() else "the family's default"
    keys = {"end id": _ENDS[family][0], "padding id": "pad_token", "lower case": "do_lower_case"}
    places = dict.fromkeys((*keys, "cleaning", "start id"), vocabulary)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            read = read_json_object(folder / name, "tokenizer settings")
            settings.update({key: value for key, value in read.items() if value is not None})
            places |= {rule: f"{name}: {key}" for rule, key in keys.items() if read.get(key) is not None}
    _check_fixed(folder, settings)
    for key in (_ENDS[family][0], "pad_token"):
        _content(folder, key, settings.get(key, ""))
    return settings, places


def _check_fixed(folder: Path, settings: Mapping[str, Any]) -> None:
    for key, wanted in _FIXED.items():
        if settings.get(key, wanted) != wanted:
            raise InputError(folder, key, repr(settings[key]), f"{wanted!r}, as its text tower was trained")


def _content(folder: Path, field: str, token: Any) -> str:
    token = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(token, str):
        raise InputError(folder, field, repr(token), "a token of the vocabulary")
    return token


def _require_vocabulary(folder: Path, family: str) -> None:
    have = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
    if not any(files <= have for files in _VOCABULARIES[family]):
        wanted = ", or ".join(" and ".join(sorted(files, reverse=True)) for files in _VOCABULARIES[family])
        raise InputError(folder, "tokenizer", ", ".join(sorted(have)) or "no tokenizer files", wanted)


def _through_transformers(
    folder: Path, kind: str, own: Mapping[str, Any], named: str | None = None
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The Rust tokenizer that `transformers` makes of a folder for a `model_type`, and its settings.

    `named` is the `tokenizer_class` of `config.json`.
    """
    from transformers import AutoConfig, AutoTokenizer, TokenizersBackend

    if (folder / "tokenizer.json").is_file():
        read_rust_tokenizer(folder / "tokenizer.json")  # names what is wrong with it
    try:
        config = AutoConfig.for_model(kind, tokenizer_class=named)
        library = AutoTokenizer.from_pretrained(
            str(folder), config=config, local_files_only=True, trust_remote_code=False
        )
        if type(library) is TokenizersBackend and (folder / "tokenizer.json").is_file():
            rust = read_rust_tokenizer(folder / "tokenizer.json")  # which it takes as it is
        else:
            rust = tokenizers.Tokenizer.from_str(library.backend_tokenizer.to_str())
    except Exception as error:
        raise InputError(folder, "tokenizer", first_line(error), "vocabulary files that can be read") from None
    names = (*_FIXED, "model_max_length", "pad_token", "eos_token", "sep_token")
    return rust, {**own, **{name: value for name in names if (value := getattr(library, name, None)) is not None}}


def _tokenizer(
    rust: tokenizers.Tokenizer,
    folder: Path,
    family: str,
    own: Mapping[str, Any],
    cleaning: str,
    length: int,
    places: Mapping[str, str],
    fixed_length: int | None = None,
) -> Tokenizer:
    end_field, end, pad, _ = _ENDS[family]
    numbers = []
    for field, default in ((end_field, end), ("pad_token", pad)):
        token = _content(folder, field, own.get(field, default))
        if (number := rust.token_to_id(token)) is None:
            found = f"{token!r}, which is not in the vocabulary"
            raise InputError(folder, field, found, "a token of the vocabulary")
        numbers.append(number)
    return Tokenizer(rust, TokenizerSpec(family, cleaning, length, numbers[1], numbers[0], fixed_length), places)


def _read_siglip(folder: Path) -> tuple[tokenizers.Tokenizer, str]:
    """The Rust tokenizer, and the cleaning before it."""
    if (folder / "spiece.model").is_file():
        return _from_sentencepiece(folder / "spiece.model"), "siglip"
    rust = read_rust_tokenizer(folder / "tokenizer.json")
    # SigLIP 2 reads Gemma's BPE vocabulary, lower-cased and with its punctuation.
    return rust, "lowercase" if isinstance(rust.model, tokenizers.models.BPE) else "siglip"


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
