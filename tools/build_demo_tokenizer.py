"""Makes the demo model's tokenizer from the words that the scenes and the lexicon use.

BERT's WordPiece with a vocabulary written down rather than learned: every word of the training captions and of the
lexicon is one token, and every character of ASCII is one too, at the start and inside a word, so that other words are
spelled. Case and accents are removed; a word with a character of another script is [UNK].
"""

import re
import string

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from rococo_jax.data.tokenizers import Tokenizer, TokenizerSpec
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.lexicon import ORDINARY_WORDS, danger_words, nouns
from rococo_jax.demo.scenes import make_scene

CONTEXT_LENGTH = 48
_PAD, _UNKNOWN, _START, _END = _SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def make_tokenizer(scenes: int = 4000) -> Tokenizer:
    """The tokenizer for the words of the first `scenes` training scenes and of the lexicon."""
    tokens = [*_SPECIAL, *_characters(), *_words(scenes)]
    ids = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    rust = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=_UNKNOWN, max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    rust.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A {_END}", special_tokens=[(_START, ids[_START]), (_END, ids[_END])]
    )
    rust.add_special_tokens(list(_SPECIAL))
    spec = TokenizerSpec("bert", "none", context_length=CONTEXT_LENGTH, pad_id=ids[_PAD], eos_id=ids[_END])
    return Tokenizer(rust, spec)


def _characters() -> list[str]:
    letters = string.ascii_lowercase + string.digits
    return [*string.punctuation, *letters, *(f"##{letter}" for letter in letters)]


def _words(scenes: int) -> list[str]:
    captions = (caption for index in range(scenes) for caption in captions_of(make_scene("train", 0, index)))
    seen = {word for caption in captions for word in re.findall(r"[a-z]+", caption.lower())}
    return sorted(seen.union(ORDINARY_WORDS, nouns(), danger_words()))
