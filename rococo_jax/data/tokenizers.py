"""Turns captions into token ids, exactly as each family's own tokenizer does.

A `Tokenizer` is a Rust tokenizer (`tokenizer.json` with the vocabulary, most of the text cleaning and the special
tokens) and a `TokenizerSpec` (what that file leaves open: length, padding, cleaning before it).

    family  cleaning in `transformers`                           special tokens            length
    CLIP    NFC, white space to one space, lower case            <start> text <end>        up to 77, end token kept
    SigLIP  lower case, ASCII punctuation removed, white space   text </s>                 always 64, no mask
    BERT    as the tokenizer.json's normaliser says (uncased)    [CLS] text [SEP]          up to the tower's limit

OpenAI's code and open_clip clean every text first: `ftfy` repairs broken Unicode ("schÃ¶n") and straightens quotes,
HTML entities are unescaped twice ("&amp;amp;" becomes "&"), then `whitespace`, `lower` or `canonicalize`.
"""

import dataclasses
import functools
import html
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Bool, Int

from rococo_jax.errors import InputError, first_line
from rococo_jax.storage import atomic_write, hash_json

# Sentencepiece's mark for the space before a word.
WORD_MARK = "▁"
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Bounds the memory of the Rust side; far fewer texts keep its threads busy.
_TEXTS_AT_ONCE = 8192
# The ids of each text as a model reads it, and whether it was cut.
TokenRows = tuple[list[list[int]], list[bool]]


@dataclasses.dataclass(frozen=True)
class TokenizerSpec:
    """Settings that `tokenizer.json` leaves open.

    Attributes:
        family: the model's, such as `clip`, `siglip`, `siglip2` or `bert`.
        cleaning: of a text before the Rust tokenizer: `none`, or names of `CLEANINGS` joined by +, in their order.
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
        if self.cleaning != "none" and not set(self.cleaning.split("+")) <= set(CLEANINGS):
            raise InputError("tokenizer", "cleaning", self.cleaning, f"none, or of {', '.join(CLEANINGS)}")
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
    """Turns texts into ids. The Rust tokenizer's own padding and truncation settings are replaced.

    `read_from` says where rules of a tokenizer that was just read stand, for provenance.
    """

    def __init__(self, rust: tokenizers.Tokenizer, spec: TokenizerSpec, read_from: Mapping[str, str] | None = None):
        self.rust, self.spec, self.read_from = rust, spec, read_from or {}
        rust.no_padding()
        rust.enable_truncation(max_length=spec.context_length)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text: cleaned, special tokens in place, cut to the context length with the end token kept."""
        return self.encode_with_truncation(texts)[0]

    def encode_with_truncation(self, texts: Sequence[str]) -> TokenRows:
        """As `encode`, and whether each text was cut."""
        clean = cleaner(self.spec.cleaning)
        ids: list[list[int]] = []
        cut: list[bool] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            cleaned = [clean(text) for text in texts[start : start + _TEXTS_AT_ONCE]]
            encodings = self.rust.encode_batch_fast(cleaned)
            ids.extend(encoding.ids for encoding in encodings)
            cut.extend(bool(encoding.overflowing) for encoding in encodings)
        return ids, cut

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


def _repaired(text: str) -> str:
    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def _canonicalised(text: str) -> str:
    return " ".join(_repaired(text).replace("_", " ").translate(_WITHOUT_PUNCTUATION).lower().split())


# Rust lower-cases letter by letter, Python treats a sigma at the end of a word specially; libraries differ in this.
CLEANINGS: dict[str, Callable[[str], str]] = {
    "lowercase": tokenizers.normalizers.Lowercase().normalize_str,
    "siglip": clean_like_siglip,
    "str_lower": str.lower,  # of sentence-transformers
    # OpenAI's code (`lower`) and open_clip, whose `tokenizer_kwargs` name `clean`: it has these names
    "whitespace": _repaired,
    "lower": lambda text: _repaired(text).lower(),
    "canonicalize": _canonicalised,
}


def cleaner(cleaning: str) -> Callable[[str], str]:
    """The function of a `TokenizerSpec.cleaning`.

    >>> cleaner("canonicalize")("A red_bus, &amp;amp; “two” dogs.")
    'a red bus two dogs'
    """
    steps = [] if cleaning == "none" else [CLEANINGS[name] for name in cleaning.split("+")]
    return functools.partial(functools.reduce, lambda text, step: step(text), steps)


def read_rust_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """A `tokenizer.json`. Raises InputError where it is missing or cannot be read."""
    if not path.is_file():
        raise InputError(path, "file", "nothing there", "a tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise InputError(path, "tokenizer", first_line(error), "a tokenizer.json that can be read") from None
