"""Attack captions: search the smallest change that fools each query, for queries side by side.

Queries are attacked in groups of fixed size, in their order. A group decides the last digits of its similarities, so
the result depends on no batch size and no number of devices. Each query has a record, as JSON:

    image, right            its name; whether the query was right before
    candidates, tried       altered captions with one change; altered captions that were scored
    complete                up to how many changes all altered captions were tried
    smallest, first         least number of changes that reaches the goal, and the place of the first success in the
                            order of the search; null without success
    caption, text, changes  number of the original, the altered caption, and its changes: the witness (of the smallest
                            successes the one of the highest margin, or the first), or without success the highest
                            margin of all
    margin                  its margin; 0 or more is a success
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.attacks.changes import (
    DEFAULT_CHANGES,
    WORD_CHANGES,
    Candidate,
    Change,
    Space,
    letter_changes,
    makes_no_word,
    word_changes,
)
from rococo_jax.attacks.scoring import Goal, Query
from rococo_jax.attacks.search import FIRST_BLOCK, LARGEST_BLOCK, SEARCHES, Search
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.perturb.text import VARIANTS, hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words, plain

# Queries that are searched side by side.
GROUP = 16
_MARGIN_DIGITS = 7


@dataclasses.dataclass(frozen=True)
class CaptionAttack:
    """An attack on captions.

    Attributes:
        unit: what one change changes: `words` or `characters`.
        budgets: numbers of changes to report, ascending.
        goal: `gallery` or `own` for words, `image` for characters.
        lexicon: nouns, and what they imply.
        kinds: changes of words that are tried.
        known_words: insert only words that captions of the data contain.
        search: name among `SEARCHES`.
        width: candidates of each caption that a beam keeps.
        queries: largest number of altered captions that are scored for a query; None for no limit.
        seed: decides the order of the changes.
        witness: `best` for the highest margin among the smallest changes; `first` ends a query with its first success.
    """

    unit: str
    budgets: tuple[int, ...]
    goal: str
    lexicon: Lexicon
    kinds: tuple[str, ...] = DEFAULT_CHANGES
    known_words: bool = False
    search: str = "exhaustive"
    width: int = 8
    queries: int | None = None
    seed: int = 0
    witness: str = "best"

    def __post_init__(self):
        if self.search not in SEARCHES:
            raise unknown_name("attack", "`search`", self.search, SEARCHES)

    def as_json(self) -> dict[str, object]:
        """Return everything that decides a result, besides model and data."""
        settings = {**vars(self), "lexicon": {"name": self.lexicon.name, "sha256": self.lexicon.hash()}}
        return settings if self.unit == "words" else {**settings, "kinds": ()}

    def make_queries(self, items: Sequence[CaptionedImage]) -> list[Query]:
        """Return a query for each image, or for each caption if captions are the queries."""
        if self.unit == "words":
            return [Query(number, item.captions) for number, item in enumerate(items)]
        return [Query(number, [caption]) for number, item in enumerate(items) for caption in item.captions]


class Spaces:
    """The altered captions of each query of an attack.

    Raises InputError if no caption of the data can be altered.
    """

    def __init__(self, attack: CaptionAttack, items: Sequence[CaptionedImage]):
        self.attack, self.items = attack, items
        of_data = caption_words(caption for item in items for caption in item.captions)
        self.allowed = of_data if attack.known_words else None
        nouns = attack.lexicon.nouns
        forms = {plain(form) for noun in nouns for form in (noun.singular, noun.plural) if form is not None}
        self.known = of_data | forms
        if attack.unit == "words":
            self._check()

    def __call__(self, query: Query) -> Space:
        """Return the altered captions of a query, in an order that only the seed and the captions decide."""
        if self.attack.unit == "characters":
            changes = [letter_changes(query.captions[0], self.known)]
            is_allowed = functools.partial(makes_no_word, known=self.known)
            return Space(query.captions, self._shuffled(query, changes), query.captions, is_allowed)
        originals = self.items[query.image].captions
        changes = [
            word_changes(caption, originals, self.attack.lexicon, self.attack.kinds, self.allowed)
            for caption in query.captions
        ]
        return Space(query.captions, self._shuffled(query, changes), originals)

    def _shuffled(self, query: Query, changes: Sequence[Sequence[Change]]) -> list[list[Change]]:
        shuffled = []
        for caption, of_caption in zip(query.captions, changes, strict=True):
            order = np.random.default_rng(hash_key([self.attack.seed, "attack", caption])).permutation(len(of_caption))
            shuffled.append([of_caption[place] for place in order])
        return shuffled

    def _check(self) -> None:
        """Raise InputError for a lexicon without a usable noun, or captions without any change."""
        lexicon, kinds = self.attack.lexicon, self.attack.kinds
        if (nouns := [kind for kind in kinds if kind in VARIANTS]) and not any(self._changes(nouns)):
            wanted = "a noun of a caption with another noun of its group"
            raise InputError(lexicon.name, "nouns of the lexicon", "none that can replace a word of a caption", wanted)
        if not any(self._changes(kinds)):
            found = f"no word that {', '.join(kinds)} can change"
            raise InputError(
                "captions", "words", found, f"a noun or attribute, or other changes: {', '.join(WORD_CHANGES)}"
            )

    def _changes(self, kinds: Sequence[str]) -> Iterator[list[Change]]:
        for item in self.items:
            for caption in item.captions:
                yield word_changes(caption, item.captions, self.attack.lexicon, kinds, self.allowed)


class _State:
    """A query while it is searched."""

    def __init__(self, query: Query, space: Space, attack: CaptionAttack):
        self.query, self.attack = query, attack
        self.stops = attack.witness == "first"
        self.search: Search = SEARCHES[attack.search](
            space, max(attack.budgets), attack.width, FIRST_BLOCK if self.stops else LARGEST_BLOCK
        )
        self.candidates = sum(map(len, space.changes))
        self.tried, self.complete, self.is_cut = 0, 0, False
        self.smallest: int | None = None
        self.first: int | None = None
        self.best: tuple[float, Candidate] | None = None
        self.block: list[Candidate] = []
        self._continue(None)

    def receive(self, margins: np.ndarray) -> None:
        """Record the margins of the current block, and ask the search for the next one."""
        for place, (candidate, margin) in enumerate(zip(self.block, margins.tolist(), strict=True), self.tried + 1):
            if candidate.is_probe:
                continue
            count, margin = len(candidate.changes), round(margin, _MARGIN_DIGITS)
            if margin >= 0 and self.smallest is None:
                self.smallest, self.first, self.best = count, place, None
            is_witness = self.smallest is None or (count == self.smallest and margin >= 0)
            if is_witness and (self.best is None or margin > self.best[0]):
                self.best = margin, candidate
        self.tried += len(self.block)
        self._continue(margins)

    def _continue(self, margins: np.ndarray | None) -> None:
        if self.is_cut:
            self.block = []
            return
        try:
            block, self.complete = self.search.send(margins) if margins is not None else next(self.search)
        except StopIteration as stop:
            self.block, self.complete = [], stop.value
            return
        changes = len(block[0].changes)
        if self.smallest is not None and (self.stops or changes > self.smallest):
            # The smallest change is known, as all smaller ones were tried before.
            self.block = []
            return
        left = len(block) if self.attack.queries is None else self.attack.queries - self.tried
        self.is_cut = left < len(block)
        self.block = block[:left]

    def record(self, item: CaptionedImage, right: bool) -> dict[str, Any]:
        margin, best = self.best or (None, None)
        changes = [] if best is None else [list(change) for change in best.changes]
        return {
            "image": item.image,
            "right": right,
            "candidates": self.candidates,
            "tried": self.tried,
            "complete": self.complete,
            "smallest": self.smallest,
            "first": self.first,
            "caption": None if best is None else best.caption,
            "text": None if best is None else best.text,
            "changes": changes,
            "margin": margin,
        }


def attack_captions(
    attack: CaptionAttack,
    queries: Sequence[Query],
    items: Sequence[CaptionedImage],
    goal: Goal,
    make_space: Callable[[Query], Space],
    start: int = 0,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each group of queries, from query `start`, a multiple of `GROUP`.

    Args:
        attack: the search and its limits.
        queries: the queries.
        items: all images with their captions.
        goal: says when a query is fooled.
        make_space: returns the altered captions of a query.
    """
    for first in range(start, len(queries), GROUP):
        group = range(first, min(first + GROUP, len(queries)))
        states = [_State(queries[number], make_space(queries[number]), attack) for number in group]
        while active := [state for state in states if state.block]:
            texts = [[candidate.text for candidate in state.block] for state in active]
            margins = goal.margins([state.query for state in active], texts)
            for state, of_state in zip(active, margins, strict=True):
                state.receive(of_state)
        yield [
            state.record(items[queries[number].image], bool(goal.right[number]))
            for number, state in zip(group, states, strict=True)
        ]


def certificate(record: Mapping[str, Any], changes: int | float) -> str:
    """Return `broken` (a witness exists), `proved` (all changes were tried) or `open`, for up to `changes` changes.

    >>> [certificate({"smallest": 2, "complete": 1}, changes) for changes in (1, 2)]
    ['proved', 'broken']
    """
    if record["smallest"] is not None and record["smallest"] <= changes:
        return "broken"
    return "proved" if record["complete"] >= changes else "open"
