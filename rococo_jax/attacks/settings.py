"""Settings of attacks on captions, the spaces they search, and their checks."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from rococo_jax.attacks.captions import Budget
from rococo_jax.attacks.changes import (
    DEFAULT_CHANGES,
    WORD_CHANGES,
    Change,
    Space,
    letter_changes,
    makes_no_word,
    word_changes,
)
from rococo_jax.attacks.scoring import Query
from rococo_jax.attacks.search import SEARCHES
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.errors import InputError, unknown_name
from rococo_jax.perturb.text import VARIANTS, hash_key
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.words import caption_words, plain


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
        search, width, queries, witness, seed: see `Budget`; the seed decides the order of the changes.
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

    @property
    def budget(self) -> Budget:
        """The limits of the search."""
        return Budget(max(self.budgets), self.queries, self.search, self.width, self.witness)

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
