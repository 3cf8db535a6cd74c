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
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int

from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, hash_json

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
    def from_json(cls, value: Mapping[str, Any], source: object = "tokenizer") -> "TokenizerSpec":
        """Reads the output of `to_json`.

        Raises:
            InputError: keys are missing or unknown. The error names `source`.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or not names - {"fixed_length"} <= set(value) <= names:
            found = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise InputError(source, "tokenizer", found, f"the keys {sorted(names)}")
        return cls(**value)


class Tokenizer:
    """Turns texts into ids.

    Args:
        rust: the tokenizer; its own padding and truncation settings are replaced.
        spec: the settings that the Rust tokenizer leaves open.
    """

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
        """Ids padded to one length, and the mask of those that the tower may read.

        Args:
            ids: from `encode`.
            length: the longest text's by default. Ignored where the spec has a fixed length: then padding is part of
                the text, and the mask is true everywhere.

        Raises:
            ValueError: a text is longer than `length`.
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
        """Reads a `tokenizer.json`.

        Raises:
            InputError: the file is missing or is no tokenizer.
        """
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


def first_line(error: Exception) -> str:
    """The first line of an exception of another library, or its class where it has no text."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def read_rust_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """A `tokenizer.json`. Raises InputError where it is missing or cannot be read."""
    if not path.is_file():
        raise InputError(path, "file", "nothing there", "a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise InputError(path, "tokenizer", first_line(error), "a tokenizer.json that can be read") from None
