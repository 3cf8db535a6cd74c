"""Turns captions into token ids, exactly as each family's own tokenizer does.

A `Tokenizer` is a Rust tokenizer (`tokenizer.json` with the vocabulary, most of the text cleaning and the special
tokens) and a `TokenizerSpec` (what that file leaves open: length, padding, cleaning before it).

    family  cleaning                                             special tokens            length
    CLIP    NFC, white space to one space, lower case            <start> text <end>        up to 77, end token kept
    SigLIP  lower case, ASCII punctuation removed, white space   text </s>                 always 64, no mask
    BERT    as the tokenizer.json's normaliser says (uncased)    [CLS] text [SEP]          up to the tower's limit

OpenAI's own CLIP code cleans more: `ftfy` repairs broken Unicode ("schÃ¶n"), and HTML entities are unescaped twice
("&amp;amp;" becomes "&"). The tokenizer of `transformers`, the reference here, does neither; the two differ on captions
with mojibake or entities and agree on plain ones.
"""

import dataclasses
import os
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int

from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import atomic_write, hash_json, hub_snapshot, read_json_object

CLEANINGS = ("none", "lowercase", "siglip")
# Sentencepiece's mark for the space before a word.
WORD_MARK = "▁"
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Bounds the memory of the Rust side; far fewer texts keep its threads busy.
_TEXTS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """Settings that `tokenizer.json` leaves open.

    Attributes:
        family: `clip`, `siglip` or `bert`.
        cleaning: of a text before the Rust tokenizer: `none`, `lowercase` or `siglip`.
        context_length: the most tokens a text may have, special tokens included; longer texts are cut, end token kept.
        pad_id: the id of padding.
        eos_id: the id that ends a text ([SEP] for BERT).
        fixed_length: every text is padded to this many tokens and padding is read like text (SigLIP), or None.
    """

    family: str
    cleaning: str
    context_length: int
    pad_id: int
    eos_id: int
    fixed_length: int | None = None

    def __post_init__(self):
        if self.cleaning not in CLEANINGS:
            raise InputError("tokenizer", "cleaning", self.cleaning, f"one of {', '.join(CLEANINGS)}")
        if self.fixed_length is not None and self.fixed_length < self.context_length:
            raise InputError("tokenizer", "fixed_length", self.fixed_length, f"{self.context_length} or more")

    def to_json(self) -> dict[str, Any]:
        """A JSON value; keys are the attributes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, source: object = "tokenizer") -> "TokenizerSpec":
        """Reads the output of `to_json`. Raises InputError, which names `source`, for missing and unknown keys."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or not names - {"fixed_length"} <= set(value) <= names:
            found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise InputError(source, "tokenizer", found, f"the keys {sorted(names)}")
        for name, least in (("context_length", 1), ("pad_id", 0), ("eos_id", 0), ("fixed_length", 1)):
            number = value.get(name)
            if (name, number) != ("fixed_length", None) and (type(number) is not int or number < least):
                raise InputError(source, f"tokenizer.{name}", repr(number), f"a whole number, {least} or more")
        for name in ("family", "cleaning"):
            if not isinstance(value[name], str):
                raise InputError(source, f"tokenizer.{name}", repr(value[name]), "a string")
        return cls(**value)


class Tokenizer:
    """Turns texts into ids. The Rust tokenizer's own padding and truncation settings are replaced."""

    def __init__(self, rust: tokenizers.Tokenizer, spec: TokenizerSpec):
        self.rust, self.spec = rust, spec
        rust.no_padding()
        rust.enable_truncation(max_length=spec.context_length)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: cleaned, special tokens in place, cut to the context length with the end token kept."""
        clean = _CLEANERS[self.spec.cleaning]
        ids: list[list[int]] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            cleaned = [clean(text) for text in texts[start : start + _TEXTS_AT_ONCE]]
            ids.extend(encoding.ids for encoding in self.rust.encode_batch_fast(cleaned))
        return ids

    def pad(
        self, ids: Sequence[Sequence[int]], length: int | None = None
    ) -> tuple[Int[np.ndarray, "texts tokens"], Bool[np.ndarray, "texts tokens"]]:
        """Ids from `encode` padded to one length, the longest text's by default, and the mask of those that the tower
        may read.

        Where the spec has a fixed length, padding is part of the text, and the mask is true everywhere. Raises
        ValueError where a text is longer than `length`.
        """
        lengths = np.array([len(row) for row in ids], np.int32)
        longest = int(lengths.max(initial=1))
        length = self.spec.fixed_length or length or longest
        if longest > length:
            raise ValueError(f"a text of {longest} tokens does not fit into {length}")
        mask = np.arange(length, dtype=np.int32)[None, :] < lengths[:, None]
        padded = np.full(mask.shape, self.spec.pad_id, np.int32)
        padded[mask] = np.fromiter((token for row in ids for token in row), np.int32, int(lengths.sum()))
        return padded, np.ones_like(mask) if self.spec.fixed_length else mask

    def save(self, path: str | os.PathLike) -> None:
        """Writes `tokenizer.json`; the spec is saved in `model.json`."""
        with atomic_write(path) as temporary:
            temporary.write_text(self.rust.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike, spec: TokenizerSpec) -> "Tokenizer":
        """Reads a `tokenizer.json`. Raises InputError where the file is missing or is no tokenizer."""
        return cls(read_rust_tokenizer(Path(path)), spec)

    def hash(self) -> str:
        """SHA-256 of everything that decides the ids."""
        return hash_json({"tokenizer": self.rust.to_str(), "spec": self.spec.to_json()})


def clean_like_siglip(text: str) -> str:
    """SigLIP's text cleaning: a leading word mark, lower case, ASCII punctuation removed, white space to one space."""
    text = (WORD_MARK + text.replace(WORD_MARK, " ")).lower().translate(_WITHOUT_PUNCTUATION)
    return re.sub(r"\s+", " ", text).strip()


# Rust lower-cases letter by letter, Python treats a sigma at the end of a word specially; families differ in this.
_CLEANERS = {"none": str, "lowercase": tokenizers.normalizers.Lowercase().normalize_str, "siglip": clean_like_siglip}


def read_rust_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """A `tokenizer.json`. Raises InputError where it is missing or cannot be read."""
    if not path.is_file():
        raise InputError(path, "file", "nothing there", "a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise InputError(path, "tokenizer", first_line(error), "a tokenizer.json that can be read") from None


TOKENIZER_FILES = (
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
    """The tokenizer of a Hugging Face folder or hub name, for a model with this `config.json`.

    Raises InputError where the family is unknown, no tokenizer files are there, or they cannot be read.
    """
    family = _FAMILIES.get(config.get("model_type", ""))
    if family is None:
        raise InputError(source, "model_type", config.get("model_type"), f"one of {', '.join(_FAMILIES)}")
    folder = Path(source)
    if not folder.is_dir():
        folder = hub_snapshot(source, str(source), TOKENIZER_FILES, "tokenizer", "a folder, or a name on the hub")
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
    return Tokenizer(rust, changed)


def _read_settings(folder: Path) -> dict[str, Any]:
    """`special_tokens_map.json` under `tokenizer_config.json`, where they exist."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            read = read_json_object(folder / name, "tokenizer settings")
            settings.update({key: value for key, value in read.items() if value is not None})
    return settings


def _read_tokenizer(folder: Path, family: str) -> tokenizers.Tokenizer:
    have = {name for name in TOKENIZER_FILES if (folder / name).is_file()}
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
    model = read_json_object(folder / "tokenizer.json", "a tokenizer.json").get("model", {}).get("type")
    # SigLIP 2 reads Gemma's BPE vocabulary, lower-cased and with its punctuation.
    return "lowercase" if model == "BPE" else "siglip"


def _context_length(folder: Path, family: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    text_config = config.get("text_config") or config
    limits = [text_config.get("max_position_embeddings", {"clip": 77, "siglip": 64, "bert": 512}[family])]
    if family == "bert":
        limits.append(own.get("model_max_length", limits[0]))
        if (folder / "sentence_bert_config.json").is_file():
            settings = read_json_object(folder / "sentence_bert_config.json", "sentence-transformers settings")
            limits.append(settings.get("max_seq_length") or limits[0])
    if not all(isinstance(limit, int | float) and limit >= 1 for limit in limits):
        raise InputError(folder, "tokenizer", f"lengths {limits}", "numbers of tokens, 1 or more")
    return int(min(limits))


def _token_id(rust: tokenizers.Tokenizer, folder: Path, own: Mapping[str, Any], field: str, default: str) -> int:
    token = own.get(field, default)
    token = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(token, str):
        raise InputError(folder, field, repr(token), "a token of the vocabulary")
    number = rust.token_to_id(token)
    if number is None:
        raise InputError(folder, field, f"{token!r}, which is not in the vocabulary", "a token of the vocabulary")
    return number
