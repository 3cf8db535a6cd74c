"""Read the tokenizer of a folder in the same way as the library that the checkpoint belongs to.

transformers             `AutoTokenizer`: the class named by `tokenizer_config.json`, or else by the model's type,
                         rebuilds the tokenizer, so settings such as `do_lower_case` win over `tokenizer.json`
sentence-transformers    the same, with `sentence_bert_config.json`
open_clip                the same after a cleaning, if `hf_tokenizer_name` is set, cut at open_clip's length; else
                         OpenAI's tokenizer, which any file with CLIP's vocabulary provides
SigLIP                   its tokenizer is written in Python; `siglip_tokenizer` converts it, with its cleaning
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import normalizers

from rococo_jax.data.siglip_tokenizer import CANONICALIZE, put_normalizer_first, read_siglip_tokenizer
from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec, read_rust_tokenizer
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
    "tipsv2": "tipsv2",
    "tipsv2_text_model": "tipsv2",
}


class _SpecialTokens(NamedTuple):
    """The special tokens of a family.

    Attributes:
        end_setting: the setting that names the token which ends a text.
        end: default of that setting.
        padding: default of the setting `pad_token`.
        context_length: default number of positions.
    """

    end_setting: str
    end: str
    padding: str
    context_length: int


_SPECIAL_TOKENS = {
    "clip": _SpecialTokens("eos_token", "<|endoftext|>", "<|endoftext|>", 77),
    "siglip": _SpecialTokens("eos_token", "</s>", "</s>", 64),
    "siglip2": _SpecialTokens("eos_token", "<eos>", "<pad>", 64),
    "bert": _SpecialTokens("sep_token", "[SEP]", "[PAD]", 512),
    "roberta": _SpecialTokens("eos_token", "</s>", "<pad>", 512),
    "tipsv2": _SpecialTokens("pad_token", "<pad>", "<pad>", 64),  # no token ends a text
}
_VOCABULARIES = {
    "clip": ({"tokenizer.json"}, {"vocab.json", "merges.txt"}),
    "siglip": ({"spiece.model"}, {"tokenizer.json"}),
    "siglip2": ({"tokenizer.json"},),
    "bert": ({"tokenizer.json"}, {"vocab.txt"}),
    "roberta": ({"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"sentencepiece.bpe.model"}),
    "tipsv2": ({"tokenizer.json"}, {"tokenizer.model"}),
}
# Settings that must have these values: texts are cut and padded at their end, and tokenised deterministically.
_REQUIRED_SETTINGS = {
    "padding_side": "right",
    "truncation_side": "right",
    "split_special_tokens": False,
    "sp_model_kwargs": {},
}
_NFC, _ONE_SPACE = normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
# open_clip's cleanings, and what they are without the repair of broken Unicode and entities.
_CLEANINGS = {
    "whitespace": normalizers.Sequence([_NFC, _ONE_SPACE, normalizers.Strip()]),
    "lower": normalizers.Sequence([_NFC, _ONE_SPACE, normalizers.Lowercase()]),  # CLIP's in `transformers`
    "canonicalize": CANONICALIZE,
}
_SENTENCE_SETTINGS = "sentence_bert_config.json"


def read_huggingface_tokenizer(source: str | Path, config: Mapping[str, Any]) -> Tokenizer:
    """Read the tokenizer of a Hugging Face folder or hub name, for a model with this `config.json`.

    Raises InputError: the family is unknown, tokenizer files are missing or cannot be read, or a setting has an
        unsupported value.
    """
    kind = config.get("model_type", "")
    family, folder = _family(source, kind), _folder(source)
    settings, origins = _settings(folder, family)
    _require_vocabulary(folder, family)
    cleaning = "none"
    if family == "siglip":
        rust = read_siglip_tokenizer(folder)
        if str(settings.get("tokenizer_class", "")).startswith("Gemma"):
            _check_settings(folder, {"padding_side": "left", **settings})  # the default of that class
        if settings.get("do_lower_case") is False:
            raise InputError(folder, "do_lower_case", "false", "true, as SigLIP's text tower was trained")
    else:
        # The text tower of SigLIP 2 alone has no class in transformers; it reads texts like the complete model.
        kind = family if family == "siglip2" else kind
        rust, settings = _through_transformers(folder, kind, settings, config.get("tokenizer_class"))
        _check_settings(folder, settings)
    text_config = config.get("text_config") or config
    sentence_settings: dict[str, Any] = {}
    if (folder / _SENTENCE_SETTINGS).is_file():
        sentence_settings = read_json_object(folder / _SENTENCE_SETTINGS, "sentence-transformers settings")
    if sentence_settings.get("do_lower_case"):
        cleaning = "str_lower"
        origins["cleaning"] = origins["lower case"] = f"{_SENTENCE_SETTINGS}: do_lower_case"
    positions = text_config.get("max_position_embeddings", _SPECIAL_TOKENS[family].context_length)
    # The smallest limit counts, and of equal ones the first.
    limits = {"config.json: max_position_embeddings": positions}
    if settings.get("model_max_length"):
        limits["tokenizer_config.json: model_max_length"] = settings["model_max_length"]
    if sentence_settings.get("max_seq_length"):
        limits[f"{_SENTENCE_SETTINGS}: max_seq_length"] = sentence_settings["max_seq_length"]
    if not all(isinstance(limit, int | float) and limit >= 1 for limit in limits.values()):
        raise InputError(folder, "tokenizer", f"lengths {[*limits.values()]}", "numbers of tokens, 1 or more")
    origins["text length"] = min(limits, key=limits.__getitem__)
    length = int(limits[origins["text length"]])
    fixed_length = length if "siglip" in family else None
    return _tokenizer(rust, folder, family, settings, cleaning, length, origins, fixed_length)


def read_open_clip_tokenizer(
    source: str | Path, kind: str, length: int, arguments: Mapping[str, Any], *, simple: bool, config: object = ""
) -> Tokenizer:
    """Read the tokenizer that open_clip builds from a folder or hub name.

    Args:
        kind: `clip`, `siglip`, `bert`, `roberta` or `xlm-roberta`; its special tokens are the defaults.
        length: number of tokens to which texts are cut, keeping the end token.
        arguments: `tokenizer_kwargs`.
        simple: whether it is open_clip's own tokenizer, which is OpenAI's without arguments, or one of `transformers`.
        config: the file of the `arguments`, for errors.

    Raises InputError: as `read_huggingface_tokenizer`, or an argument is not supported.
    """
    family, folder = _family(source, kind), _folder(source)
    settings, origins = _settings(folder, family)
    origins["text length"] = "text_cfg.context_length, or the default"
    origins["cleaning"] = "text_cfg.tokenizer_kwargs.clean" if "clean" in arguments else "open_clip's default"
    if simple:
        origins["lower case"] = origins["cleaning"]
    _require_vocabulary(folder, family)
    cleaning = arguments.get("clean", "lower" if simple else "whitespace")
    _check_open_clip_arguments(arguments, simple, config)
    if "tokenizer_class" not in settings and (folder / "tokenizer.json").is_file():
        rust = read_rust_tokenizer(folder / "tokenizer.json")
    elif family == "siglip" and (folder / "spiece.model").is_file():
        rust = read_siglip_tokenizer(folder)
    else:
        rust, settings = _through_transformers(folder, kind, settings)
    if simple:
        rust.normalizer = tokenizers.normalizers.Sequence([])
    tokenizer = _tokenizer(rust, folder, family, settings, cleaning, length, origins)
    return with_padded_end(tokenizer) if arguments.get("strip_sep_token") else tokenizer


def _check_open_clip_arguments(arguments: Mapping[str, Any], simple: bool, config: object) -> None:
    for name, value in arguments.items():
        is_off = value in (None, False, "", [])
        is_supported = {
            "clean": value in tuple(_CLEANINGS),
            "strip_sep_token": is_off or (value is True and not simple),
        }
        if not is_supported.get(name, is_off):
            expected = f"one of {', '.join(_CLEANINGS)}" if name == "clean" else "a tokenizer without it"
            raise InputError(config, f"text_cfg.tokenizer_kwargs.{name}", repr(value), expected)


def with_padded_end(tokenizer: Tokenizer) -> Tokenizer:
    """Turn BERT's tokenizer into CLIPA's (arXiv 2305.07017): padding instead of [SEP], up to the context length.

    open_clip calls this `strip_sep_token`.
    """
    rust, spec = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str()), tokenizer.spec
    first = rust.encode("").ids[0]
    start, pad = rust.id_to_token(first), rust.id_to_token(spec.pad_id)
    special = [(start, first), (pad, spec.pad_id)]
    rust.post_processor = tokenizers.processors.TemplateProcessing(single=f"{start} $A {pad}", special_tokens=special)
    new_spec = dataclasses.replace(spec, eos_id=spec.pad_id, fixed_length=spec.context_length)
    return Tokenizer(rust, new_spec, {**tokenizer.read_from, "end id": "text_cfg.tokenizer_kwargs.strip_sep_token"})


def for_transformers(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer in a form that `transformers` can express.

    open_clip's cleaning becomes the first normaliser of the Rust tokenizer, without the repair of broken Unicode.
    """
    if tokenizer.spec.cleaning not in _CLEANINGS:
        return tokenizer
    cleaned = _with_cleaning(tokenizer, "none")
    put_normalizer_first(cleaned.rust, _CLEANINGS[tokenizer.spec.cleaning])
    return cleaned


def for_open_clip(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer as open_clip's own; without a cleaning, it gets `lower` instead of its normaliser.

    Raises InputError: it is no tokenizer of CLIP, whose vocabulary open_clip uses whatever files an export has.
    """
    if tokenizer.spec.family != "clip":
        raise InputError("tokenizer", "family", tokenizer.spec.family, "clip, whose vocabulary open_clip's own has")
    if tokenizer.spec.cleaning != "none":
        return tokenizer
    changed = _with_cleaning(tokenizer, "lower")
    changed.rust.normalizer = tokenizers.normalizers.Sequence([])
    return changed


def _with_cleaning(tokenizer: Tokenizer, cleaning: str) -> Tokenizer:
    rust = tokenizers.Tokenizer.from_str(tokenizer.rust.to_str())
    return Tokenizer(rust, dataclasses.replace(tokenizer.spec, cleaning=cleaning))


def _family(source: object, kind: str) -> str:
    if kind not in _FAMILIES:
        raise InputError(source, "model_type", kind or None, f"one of {', '.join(_FAMILIES)}")
    return _FAMILIES[kind]


def _folder(source: str | Path) -> Path:
    return find_folder(source, TOKENIZER_FILES, "tokenizer", "a folder, or a name on the hub", TOKENIZER_FILES)


def _settings(folder: Path, family: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the settings of a folder; return them, and the origin of each for provenance.

    `tokenizer_config.json` wins over `special_tokens_map.json`; both are optional.
    """
    settings: dict[str, Any] = {}
    default_origin = "tokenizer.json" if (folder / "tokenizer.json").is_file() else "the family's default"
    end_setting = _SPECIAL_TOKENS[family].end_setting
    keys = {"end id": end_setting, "padding id": "pad_token", "lower case": "do_lower_case"}
    origins = dict.fromkeys((*keys, "cleaning", "start id"), default_origin)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            values = read_json_object(folder / name, "tokenizer settings")
            settings.update({key: value for key, value in values.items() if value is not None})
            origins |= {label: f"{name}: {key}" for label, key in keys.items() if values.get(key) is not None}
    _check_settings(folder, settings)
    for key in (end_setting, "pad_token"):
        _token_text(folder, key, settings.get(key, ""))
    return settings, origins


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    for key, required in _REQUIRED_SETTINGS.items():
        if settings.get(key, required) != required:
            raise InputError(folder, key, repr(settings[key]), f"{required!r}, as its text tower was trained")


def _token_text(folder: Path, field: str, token: Any) -> str:
    token = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(token, str):
        raise InputError(folder, field, repr(token), "a token of the vocabulary")
    return token


def _require_vocabulary(folder: Path, family: str) -> None:
    available = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
    if not any(files <= available for files in _VOCABULARIES[family]):
        expected = ", or ".join(" and ".join(sorted(files, reverse=True)) for files in _VOCABULARIES[family])
        raise InputError(folder, "tokenizer", ", ".join(sorted(available)) or "no tokenizer files", expected)


def _through_transformers(
    folder: Path, kind: str, settings: Mapping[str, Any], tokenizer_class: str | None = None
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the Rust tokenizer that `transformers` builds from a folder for a `model_type`, and its settings.

    Args:
        tokenizer_class: the entry of `config.json`.
    """
    from transformers import AutoConfig, AutoTokenizer, TokenizersBackend

    if (folder / "tokenizer.json").is_file():
        read_rust_tokenizer(folder / "tokenizer.json")  # its errors are clearer than those below
    try:
        config = AutoConfig.for_model(kind, tokenizer_class=tokenizer_class)
        library = AutoTokenizer.from_pretrained(
            str(folder), config=config, local_files_only=True, trust_remote_code=False
        )
        if type(library) is TokenizersBackend and (folder / "tokenizer.json").is_file():
            rust = read_rust_tokenizer(folder / "tokenizer.json")  # this class does not change the file's tokenizer
        else:
            rust = tokenizers.Tokenizer.from_str(library.backend_tokenizer.to_str())
    except Exception as error:
        raise InputError(folder, "tokenizer", first_line(error), "vocabulary files that can be read") from None
    names = (*_REQUIRED_SETTINGS, "model_max_length", "pad_token", "eos_token", "sep_token")
    library_settings = {name: value for name in names if (value := getattr(library, name, None)) is not None}
    return rust, {**settings, **library_settings}


def _tokenizer(
    rust: tokenizers.Tokenizer,
    folder: Path,
    family: str,
    settings: Mapping[str, Any],
    cleaning: str,
    length: int,
    origins: Mapping[str, str],
    fixed_length: int | None = None,
) -> Tokenizer:
    tokens = _SPECIAL_TOKENS[family]

    def id_of(field: str, default: str) -> int:
        token = _token_text(folder, field, settings.get(field, default))
        number = rust.token_to_id(token)
        if number is None:
            problem = f"{token!r}, which is not in the vocabulary"
            raise InputError(folder, field, problem, "a token of the vocabulary")
        return number

    eos_id, pad_id = id_of(tokens.end_setting, tokens.end), id_of("pad_token", tokens.padding)
    return Tokenizer(rust, TokenizerSpec(family, cleaning, length, pad_id, eos_id, fixed_length), origins)
