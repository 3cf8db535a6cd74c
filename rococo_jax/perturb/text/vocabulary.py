"""The whole words of a tokenizer's vocabulary, for the variant that puts any word of the encoder's in place."""

import regex

from rococo_jax.data.tokenizers import WORD_MARK, Tokenizer
from rococo_jax.errors import InputError

_WORD = regex.compile(r"[a-z]{3,}")
_CLIP_END = "</w>"


def vocabulary_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Tokens that are a whole word of three or more letters a to z, in alphabetical order.

    WordPiece marks what continues a word ("##ing"), CLIP's byte pairs what ends one ("dog</w>"), sentencepiece what
    begins one ("▁dog"; whether the word ends there cannot be told).

    Raises:
        InputError: the vocabulary has no such word.
    """
    tokens = tokenizer.rust.get_vocab()
    if any(token.endswith(_CLIP_END) for token in tokens):
        whole = (token.removesuffix(_CLIP_END) for token in tokens if token.endswith(_CLIP_END))
    elif any(token.startswith(WORD_MARK) for token in tokens):
        whole = (token.removeprefix(WORD_MARK) for token in tokens if token.startswith(WORD_MARK))
    else:
        whole = iter(tokens)
    words = tuple(sorted({word for word in whole if _WORD.fullmatch(word)}))
    if not words:
        raise InputError("tokenizer", "vocabulary", "no whole words", "a vocabulary with words, for variant rand_voca")
    return words
