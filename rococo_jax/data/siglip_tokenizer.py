"""Read the tokenizers of SigLIP and SigLIP 2; SigLIP's sentencepiece model is converted to a Rust tokenizer."""

from pathlib import Path
from types import SimpleNamespace

import tokenizers

from rococo_jax.data.tokenizers import WORD_MARK, read_rust_tokenizer
from rococo_jax.errors import InputError, first_line


def read_siglip_tokenizer(folder: Path) -> tuple[tokenizers.Tokenizer, str]:
    """Return the Rust tokenizer, and the cleaning before it."""
    if (folder / "spiece.model").is_file():
        return _from_sentencepiece(folder / "spiece.model"), "siglip"
    rust = read_rust_tokenizer(folder / "tokenizer.json")
    # SigLIP 2 uses Gemma's BPE vocabulary, in lower case and with punctuation.
    return rust, "lowercase" if isinstance(rust.model, tokenizers.models.BPE) else "siglip"


def _from_sentencepiece(path: Path) -> tokenizers.Tokenizer:
    """Convert SigLIP's sentencepiece model to a Rust tokenizer, which needs `clean_like_siglip` before it."""
    from tokenizers import Regex, normalizers
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
        return SiglipConverter(SimpleNamespace(vocab_file=str(path))).converted()
    except Exception as error:  # protobuf, the converter and Rust have no common class of exceptions
        raise InputError(path, "sentencepiece model", first_line(error), "one that can be read") from None
