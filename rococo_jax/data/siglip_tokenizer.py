"""Read the tokenizers of SigLIP and SigLIP 2; SigLIP's sentencepiece model is converted to a Rust tokenizer.

SigLIP's texts were cleaned before its tokenizer: lower case, no ASCII punctuation, white space as one space. The
cleaning is written in Python in `transformers` (`SiglipTokenizer`) and in big_vision; here it is a
part of the Rust tokenizer, so that every program that reads an exported `tokenizer.json` has it, too.
"""

import string
from pathlib import Path
from types import SimpleNamespace

import tokenizers
from tokenizers import Regex, normalizers

from rococo_jax.data.tokenizers import WORD_MARK, read_rust_tokenizer
from rococo_jax.errors import InputError
from rococo_jax.storage import why_unreadable

_CASED = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
# Rust lower-cases letter by letter; Python has another sigma at the end of a word (Unicode, 3.13, Final_Sigma).
_FINAL_SIGMA = Regex(rf"{_CASED}\p{{Case_Ignorable}}*\KΣ(?!\p{{Case_Ignorable}}*{_CASED})")
_PUNCTUATION = Regex("[" + "".join(f"\\{character}" for character in string.punctuation) + "]")
# The white space of Python.
_WHITE_SPACE = Regex(r"[\s\x1c-\x1f]+")
# Lower case as Python's, no ASCII punctuation, white space as one space, none at the end.
_LOWER_WITHOUT_PUNCTUATION = normalizers.Sequence(
    [
        normalizers.Replace(_FINAL_SIGMA, "ς"),
        normalizers.Lowercase(),
        normalizers.Replace(_PUNCTUATION, ""),
        normalizers.Replace(_WHITE_SPACE, " "),
        normalizers.Replace(Regex(r" +\z"), ""),
    ]
)
SIGLIP_CLEANING = normalizers.Sequence(
    [normalizers.Replace(WORD_MARK, " "), normalizers.Prepend(WORD_MARK), _LOWER_WITHOUT_PUNCTUATION]
)
# open_clip's cleaning `canonicalize` without the repair of broken Unicode; curly quotes are removed like straight ones.
CANONICALIZE = normalizers.Sequence(
    [
        normalizers.NFC(),
        normalizers.Replace("_", " "),
        normalizers.Replace(Regex("[ʼ‘-‟]"), ""),
        _LOWER_WITHOUT_PUNCTUATION,
        normalizers.Replace(Regex(r"\A +"), ""),
    ]
)


def read_siglip_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Return the Rust tokenizer, with the cleaning as its first normaliser."""
    if (folder / "spiece.model").is_file():
        return _from_sentencepiece(folder / "spiece.model")
    rust = read_rust_tokenizer(folder / "tokenizer.json")
    # SigLIP 2 uses Gemma's BPE vocabulary, in lower case and with punctuation.
    is_bpe = isinstance(rust.model, tokenizers.models.BPE)
    cleaning = normalizers.Sequence([normalizers.Lowercase()]) if is_bpe else SIGLIP_CLEANING
    # An exported tokenizer has the cleaning already.
    if not _has_steps(rust.normalizer, cleaning if is_bpe else _LOWER_WITHOUT_PUNCTUATION):
        put_normalizer_first(rust, cleaning)
    return rust


def put_normalizer_first(rust: tokenizers.Tokenizer, normalizer: normalizers.Normalizer) -> None:
    """Change the tokenizer so that texts pass through this normaliser before its own."""
    following = [] if rust.normalizer is None else [rust.normalizer]
    rust.normalizer = normalizers.Sequence([normalizer, *following])


def _has_steps(normalizer: normalizers.Normalizer | None, sequence: normalizers.Sequence) -> bool:
    """Return whether a normaliser has the steps of a sequence one after the other."""

    def steps(normalizer: normalizers.Normalizer) -> bytes:
        # The state is JSON, in which nested sequences are one list.
        return bytes(normalizer.__getstate__()).removeprefix(b'{"type":"Sequence","normalizers":[').removesuffix(b"]}")

    return normalizer is not None and steps(sequence) in steps(normalizer)


def _from_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """Convert SigLIP's sentencepiece model to a Rust tokenizer."""
    from transformers.convert_slow_tokenizer import SpmConverter

    class SiglipConverter(SpmConverter):
        def normalizer(self, proto):
            spec, steps = proto.normalizer_spec, []
            if spec.precompiled_charsmap:
                steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
            if spec.remove_extra_whitespaces:
                # As in sentencepiece: several spaces become one; spaces and word marks at the end are removed.
                steps.append(normalizers.Replace(Regex(" {2,}"), " "))
                steps.append(normalizers.Replace(Regex(f"[ {WORD_MARK}]+$"), ""))
            return normalizers.Sequence(steps)

        def post_processor(self):
            end = next(number for number, piece in enumerate(self.proto.pieces) if piece.piece == "</s>")
            return tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])

    try:
        rust = SiglipConverter(SimpleNamespace(vocab_file=str(path))).converted()
        put_normalizer_first(rust, SIGLIP_CLEANING)
        # The scores that tokenizers writes change in the last place when they are first read, and never again.
        return tokenizers.Tokenizer.from_str(rust.to_str())
    except Exception as error:  # protobuf, the converter and Rust have no common class of exceptions
        raise InputError(path, "sentencepiece model", why_unreadable(path, error), "one that can be read") from None
