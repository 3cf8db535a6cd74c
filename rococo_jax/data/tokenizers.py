"""Turn captions into token ids, exactly as each family's own tokenizer does.

A `Tokenizer` is a Rust tokenizer (`tokenizer.json`, with the vocabulary, most of the text cleaning and the special
tokens) and a `TokenizerSpec` (the settings that this file does not have: length, padding, and cleaning before it).

    family  cleaning in `transformers`                           special tokens            length
    CLIP    NFC, white space to one space, lower case            <start> text <end>        up to 77, end token kept
    SigLIP  lower case, ASCII punctuation removed, white space   text </s>                 always 64, no mask
    BERT    the normaliser of the tokenizer.json (uncased)       [CLS] text [SEP]          up to the tower's limit

OpenAI's code and open_clip clean every text first: `ftfy` repairs broken Unicode ("schÃ¶n") and straightens quotes,
HTML entities are unescaped twice ("&amp;amp;" becomes "&"), then `whitespace`, `lower` or `canonicalize`.
"""

import dataclasses
import html
import os
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int

from rococo_jax.errors import InputError, require_file
from rococo_jax.storage import atomic_write, hash_json, why_unreadable

# Sentencepiece's mark for the space before a word.
WORD_MARK = "▁"
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Bounds the memory of the Rust library; far fewer texts keep its threads busy.
_TEXTS_AT_ONCE = 8192
# The ids of each text, and whether the text was cut.
TokenRows = tuple[list[list[int]], list[bool]]


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """The settings that `tokenizer.json` does not have.

    Attributes:
        family: of the model, such as `clip`, `siglip`, `siglip2` or `bert`.
        cleaning: applied to a text before the Rust tokenizer: `none`, or a name of `CLEANINGS`.
        context_length: largest number of tokens of a text, including special tokens; longer texts are cut, keeping the
            end token.
        pad_id: the id of padding.
        eos_id: the id that ends a text ([SEP] for BERT).
        fixed_length: number of tokens to which every text is padded if padding is read like text (SigLIP), else None.
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
        """Return the attributes as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, source: object = "tokenizer") -> "TokenizerSpec":
        """Read the output of `to_json`. Raises InputError: a key is missing or unknown; the error names `source`."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or not names - {"fixed_length"} <= set(value) <= names:
            problem = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise InputError(source, "tokenizer", problem, f"the keys {sorted(names)}")
        for name, minimum in (("context_length", 1), ("pad_id", 0), ("eos_id", 0), ("fixed_length", 1)):
            number = value.get(name)
            if name == "fixed_length" and number is None:
                continue
            if type(number) is not int or number < minimum:
                raise InputError(source, f"tokenizer.{name}", repr(number), f"a whole number, {minimum} or more")
        for name in ("family", "cleaning"):
            if not isinstance(value[name], str):
                raise InputError(source, f"tokenizer.{name}", repr(value[name]), "a string")
        return cls(**value)


class Tokenizer:
    """Turns texts into ids. The Rust tokenizer's own padding and truncation settings are replaced.

    Args:
        read_from: for provenance, the file and key of each setting of a tokenizer that was just read.
    """

    def __init__(self, rust: tokenizers.Tokenizer, spec: TokenizerSpec, read_from: Mapping[str, str] | None = None):
        self.rust, self.spec, self.read_from = rust, spec, read_from or {}
        rust.no_padding()
        rust.enable_truncation(max_length=spec.context_length)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text: cleaned, with special tokens, cut to the context length with its end token."""
        return self.encode_with_truncation(texts)[0]

    def encode_with_truncation(self, texts: Sequence[str]) -> TokenRows:
        """Return the ids of each text, as `encode`, and whether each text was cut."""
        clean = CLEANINGS[self.spec.cleaning]
        ids: list[list[int]] = []
        is_cut: list[bool] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            cleaned = [clean(text) for text in texts[start : start + _TEXTS_AT_ONCE]]
            encodings = self.rust.encode_batch_fast(cleaned)
            ids.extend(encoding.ids for encoding in encodings)
            is_cut.extend(bool(encoding.overflowing) for encoding in encodings)
        return ids, is_cut

    def pad(
        self, ids: Sequence[Sequence[int]], length: int | None = None
    ) -> tuple[Int[np.ndarray, "texts tokens"], Bool[np.ndarray, "texts tokens"]]:
        """Pad ids from `encode` to one length, and return the mask of the tokens that the tower may read.

        The length is that of the longest text by default. If the spec has a fixed length, padding is part of the text,
        and the mask is true everywhere. Raises ValueError: a text is longer than `length`.
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
        """Write `tokenizer.json`; the spec is saved in `model.json`."""
        with atomic_write(path) as temporary:
            temporary.write_text(self.rust.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike, spec: TokenizerSpec) -> "Tokenizer":
        """Read a `tokenizer.json`. Raises InputError: the file is missing or is not a tokenizer."""
        return cls(read_rust_tokenizer(Path(path)), spec)

    def hash(self) -> str:
        """Return the SHA-256 of everything that determines the ids."""
        return hash_json({"tokenizer": self.rust.to_str(), "spec": self.spec.to_json()})


def _repair(text: str) -> str:
    if text.isascii() and text.isprintable() and "&" not in text:
        return " ".join(text.split())  # equal to the following, and faster

    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def _canonicalise(text: str) -> str:
    return " ".join(_repair(text).replace("_", " ").translate(_WITHOUT_PUNCTUATION).lower().split())


CLEANINGS: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "str_lower": str.lower,  # sentence-transformers
    # OpenAI's code (`lower`) and open_clip, where they are values of `clean` in `tokenizer_kwargs`.
    "whitespace": _repair,
    "lower": lambda text: _repair(text).lower(),
    "canonicalize": _canonicalise,
}


def read_rust_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """Read a `tokenizer.json`. Raises InputError: it is missing or cannot be read."""
    require_file(path, "a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise InputError(path, "tokenizer", why_unreadable(path, error), "a tokenizer.json that can be read") from None
