"""Transformations of captions, and the constraints that an altered caption must satisfy.

A change replaces a span of a caption by a text. Changes of one caption are combined if their spans are separate. One
change replaces, swaps, adds or removes one word; an article before the word follows it, and an added noun brings its
"and a". One change of letters is an edit of distance one.

Word changes make a caption false: no caption of the image contains an inserted word, a synonym, or a more special word
(the rules of `perturb.text`), and at most one change of a caption negates. Changes of letters keep a caption true; they
must not make a word that is known.
"""

import itertools
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rococo_jax.errors import unknown_name
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.kinds import KINDS, KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import CaptionAlterer
from rococo_jax.perturb.text.words import Word, caption_words, like_case, plain, replace_span, split_words

DELETION, LETTERS = "deletion", "letters"
# Transformations of words by name. rand_voca is left out: its words would depend on the model's vocabulary.
WORD_CHANGES = (*(variant for variant in VARIANTS if variant != "rand_voca"), *KINDS, DELETION)
DEFAULT_CHANGES = ("same_concept", *KINDS)
_NEGATING = ("negation", DELETION)
_SHORTEST_WORD = 4  # Shorter words are too often a typo away from another word.


class Change(NamedTuple):
    """A change of one caption: the text `new` in place of `caption[start:end]`, by the transformation `kind`."""

    start: int
    end: int
    new: str
    kind: str


def word_changes(
    caption: str,
    originals: Sequence[str],
    lexicon: Lexicon,
    kinds: Iterable[str],
    allowed: frozenset[str] | None = None,
) -> list[Change]:
    """Return all changes of one word that make a caption false.

    Args:
        caption: the caption.
        originals: all captions of its image.
        lexicon: nouns, and what they imply.
        kinds: names among `WORD_CHANGES`.
        allowed: words that may be inserted, in plain form; None for any.

    Raises InputError for an unknown kind.
    """
    spans: list[Change] = []
    for kind in kinds:
        if kind not in WORD_CHANGES:
            raise unknown_name("attack", "`changes`", kind, WORD_CHANGES)
        if kind in VARIANTS:
            replacements = CaptionAlterer(kind, lexicon, select="random").all_replacements(caption, originals)
            spans += (Change(word.start, word.end, new, kind) for word, texts in replacements for new in texts)
        elif kind == DELETION:
            spans += _deletions(caption)
        else:
            found = KindAlterer(kind, lexicon).spans(caption, originals)
            spans += (Change(span.start, span.end, text, kind) for span in found for text in span.texts)
    if allowed is not None:
        spans = [each for each in spans if all(plain(word.text) in allowed for word in split_words(each.new))]
    return list(dict.fromkeys(spans))


def _deletions(caption: str) -> Iterator[Change]:
    """Yield the removal of each negating word: removing any other word leaves a caption true."""
    for word, following in itertools.pairwise(split_words(caption)):
        if plain(word.text) in ("no", "not", "never"):
            yield Change(word.start, following.start, "", DELETION)


def letter_changes(caption: str, known: frozenset[str]) -> list[Change]:
    """Return all edits of one letter of a word with at least four letters that make no known word.

    A letter is replaced, removed or inserted (Levenshtein distance one), as in LEAF (arXiv 2506.03355). The first
    letter stays. `known` has words in plain form.
    """
    edits = (
        Change(word.start + place, word.start + place + removed, new, LETTERS)
        for word in split_words(caption)
        if word.text.isascii() and word.text.isalpha() and len(word.text) >= _SHORTEST_WORD
        for place in range(1, len(word.text) + 1)
        for removed in (0, 1)
        for new in ("", *string.ascii_lowercase)
        if place + removed <= len(word.text) and (removed or new) and caption[word.start + place :][:removed] != new
    )
    return [each for each in edits if makes_no_word(caption, apply_changes(caption, [each]), known)]


def makes_no_word(caption: str, altered: str, known: frozenset[str]) -> bool:
    return known.isdisjoint(caption_words([altered]) - caption_words([caption]))


def apply_changes(caption: str, changes: Iterable[Change]) -> str:
    """Return a caption with changes of separate spans, in ascending order; `a` or `an` before a changed word follows.

    >>> apply_changes("A dog on a car", [Change(2, 5, "owl", "same_concept"), Change(11, 14, "tree", "same_concept")])
    'An owl on a tree'
    """
    text = caption
    for change in changes:
        moved = len(text) - len(caption)  # All text that changed so far lies before this span.
        start, end = change.start + moved, change.end + moved
        new = like_case(text[start:end], change.new) if change.start == 0 and change.kind != LETTERS else change.new
        if change.kind != LETTERS and text[:start].rstrip().rpartition(" ")[2].lower() in ("a", "an"):
            text = replace_span(text, start, end, new)
        else:
            text = text[:start] + new + text[end:]
    return text


def are_separate(first: Change, second: Change) -> bool:
    """Return whether two changes can be combined: `first` ends before `second` starts, and not both negate."""
    if first.kind in _NEGATING and second.kind in _NEGATING:
        return False
    return first.end < second.start or (first.kind == LETTERS and first.end == second.start)


class Candidate(NamedTuple):
    """An altered caption: the number of the original, the changes, and the text.

    `is_probe` marks a text that a search scores for guidance and that is no allowed result.
    """

    caption: int
    changes: tuple[Change, ...]
    text: str
    is_probe: bool = False


class Space:
    """All altered captions of a query, each text once, in a fixed order.

    Args:
        captions: the captions of the query.
        changes: the allowed changes of each caption, in the order in which they are tried.
        excluded: texts that are no candidates, such as all captions of the image.
        is_allowed: further constraint on (original, altered caption).
    """

    def __init__(
        self,
        captions: Sequence[str],
        changes: Sequence[Sequence[Change]],
        excluded: Iterable[str] = (),
        is_allowed: Callable[[str, str], bool] = lambda caption, text: True,
    ):
        self.captions, self.changes, self.is_allowed = tuple(captions), changes, is_allowed
        self._used = {plain(text) for text in excluded}

    def __bool__(self) -> bool:
        return any(self.changes)

    def combinations(self, count: int) -> Iterator[Candidate]:
        """Yield each altered caption with `count` changes that was not yielded before; captions take turns."""
        by_caption = [self._combine(number, count) for number in range(len(self.captions))]
        turns = itertools.zip_longest(*by_caption)
        yield from (each for turn in turns for each in turn if each is not None)

    def extend(self, candidate: Candidate, changes: Sequence[Change] | None = None) -> Iterator[Candidate]:
        """Yield each new altered caption with one more change than a candidate: one of `changes`, by default any."""
        for change in self.changes[candidate.caption] if changes is None else changes:
            combined = sorted((*candidate.changes, change))
            if all(itertools.starmap(are_separate, itertools.combinations(combined, 2))):
                yield from self._new(candidate.caption, combined)

    def _combine(self, number: int, count: int) -> Iterator[Candidate]:
        for chosen in itertools.combinations(self.changes[number], count):
            chosen = sorted(chosen)
            if count == 1 or all(itertools.starmap(are_separate, itertools.combinations(chosen, 2))):
                yield from self._new(number, chosen)

    def _new(self, number: int, changes: Sequence[Change]) -> Iterator[Candidate]:
        caption = self.captions[number]
        text = apply_changes(caption, changes)
        key = plain(text)
        if key not in self._used and self.is_allowed(caption, text):
            self._used.add(key)
            yield Candidate(number, tuple(changes), text)


def first_word_of(change: Change, words: Sequence[Word]) -> int:
    """Return the index of the first word that a change touches."""
    return next((number for number, word in enumerate(words) if word.end > change.start), len(words) - 1)
