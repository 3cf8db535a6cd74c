"""Which word an altered caption replaced, read back from the caption itself.

The published RoCOCO files hold captions, not changes: lower-cased, split at punctuation and clitics ("someone 's"),
without the final stop. Both sides are split into words here and laid beside each other; where they differ in exactly
one word, that is the change. An altered caption that replaced every occurrence of a word, hit a substring
("baseweapon"), mended the spelling of another word or equals its original has no single change, and gives None.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import regex

from rococo_jax.perturb.text.words import plain, split_words

_SPLIT_CLITIC = regex.compile(r"\s+(?=(?:n['’]t|['’](?:s|re|ve|ll|d|m))(?!\w))", regex.IGNORECASE)
# The one replacement of the Danger list that is two words, misspelt as published.
_TWO_WORDS = ("commiting crime", "committing crime")


class Change(NamedTuple):
    """One word of a caption replaced.

    Attributes:
        word_index: which word of the original (as `split_words` counts).
        old: the replaced word as the original writes it.
        new: what stands there in the altered caption.
    """

    word_index: int
    old: str
    new: str


def recover_change(original: str, altered: str) -> Change | None:
    """The single word in which two captions differ, whatever their case and punctuation; None where there is none.

    >>> recover_change("A man's dog.", "a queen 's dog")
    Change(word_index=1, old='man', new='queen')
    """
    old = [word.text for word in split_words(original)]
    new = _words_of_altered(altered)
    if len(old) != len(new):
        return None
    different = [index for index, pair in enumerate(zip(old, new, strict=True)) if plain(pair[0]) != plain(pair[1])]
    if len(different) != 1:
        return None
    index = different[0]
    return Change(index, old[index], new[index])


def _words_of_altered(altered: str) -> list[str]:
    for two in _TWO_WORDS:
        altered = altered.replace(two, two.replace(" ", "\u2011"))
    return [word.text.replace("\u2011", " ") for word in split_words(_SPLIT_CLITIC.sub("", altered))]


def common_change(original: str, altered: Mapping[str, str | None]) -> tuple[int, dict[str, Change]] | None:
    """The word that every variant replaced, where each replaced exactly one and all the same one.

    Args:
        original: the caption.
        altered: variant -> its altered caption, or None where the variant left this one unaltered.

    Returns:
        The word's index and variant -> change; None where the captions cannot be compared so.
    """
    changes = {
        variant: recover_change(original, caption) for variant, caption in altered.items() if caption is not None
    }
    if len(changes) < len(altered) or any(change is None for change in changes.values()):
        return None
    indices = {change.word_index for change in changes.values()}
    return (indices.pop(), changes) if len(indices) == 1 else None


def pair_counts(originals: Sequence[str], altered: Sequence[str | None]) -> dict[tuple[str, str], int]:
    """How often each word was replaced by each: (old, new) -> count, words in `plain` form."""
    counts: dict[tuple[str, str], int] = {}
    for original, caption in zip(originals, altered, strict=True):
        change = None if caption is None else recover_change(original, caption)
        if change is not None:
            pair = (plain(change.old), plain(change.new))
            counts[pair] = counts.get(pair, 0) + 1
    return counts
