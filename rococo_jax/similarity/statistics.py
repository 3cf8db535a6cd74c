"""The statistics that ranking a gallery gives for each query, and the rules that all ways of ranking share.

For a query with group `g`, the *positives* ("own originals") are the unaltered gallery items of group `g`, and
`s_pos` is the score of the best of them. *Distractors* are all gallery items but the own originals. With ties counted
apart, a rank is 1 + the distractors that come before the best positive:

    optimistic   1 + #(s > s_pos)                 ties are lost by the distractor
    pessimistic  1 + #(s > s_pos) + #(s = s_pos)  ties are won by the distractor; this is #(s >= s_pos) + 1
    published    1 + #(s > s_pos) + #(s = s_pos and a higher gallery index)

The public code of RoCOCO sorts ascending by an unstable argsort and reverses the result; `published` is the same with a
*stable* sort, in which the higher gallery index comes first among equals. There the other own originals occupy ranks
too, but none of them is ahead of the best own original, so its rank is the same with and without them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.errors import InputError

Table = TypeVar("Table", bound="Columns")


class Columns:
    """Base of such dataclasses. A column that is None stays None.

    Attributes:
        of_all: fields that are no columns; the same for any of the entries.
    """

    of_all: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.name not in cls.of_all)

    def __len__(self) -> int:
        return len(getattr(self, self.columns()[0]))

    def __getitem__(self: Table, which: slice | np.ndarray) -> Table:
        """Some of the entries."""
        return self._joined([self], lambda columns: columns[0][which])

    @classmethod
    def concatenate(cls, parts: Sequence[Table]) -> Table:
        """The entries of all parts, one part after the other."""
        return parts[0] if len(parts) == 1 else cls._joined(parts, np.concatenate)

    @classmethod
    def chosen(cls, several: Sequence[Table], which: Int[np.ndarray, " entries"]) -> Table:
        """Each entry as one of several has it, which are of the same entries."""
        every = np.arange(len(which))
        return cls._joined(several, lambda columns: np.stack(columns)[which, every])

    @classmethod
    def _joined(cls, several: Sequence[Table], join: Callable[[list[Any]], Any]) -> Table:
        by_name = {name: [getattr(each, name) for each in several] for name in cls.columns()}
        joined = {name: None if columns[0] is None else join(columns) for name, columns in by_name.items()}
        return dataclasses.replace(several[0], **joined)


# What a gallery item is to a query; the columns of `RankStatistics.best_scores`, in this order.
KINDS = ("own", "own_altered", "other_altered", "other")
OWN, OWN_ALTERED, OTHER_ALTERED, OTHER = range(4)


@dataclass(frozen=True, eq=False)
class RankStatistics(Columns):
    """Rank of the best positive and best item of each kind, one entry a query.

    Scores have the precision in which they were compared: float32 from embeddings, that of the file from a matrix.

    Attributes:
        higher: how many distractors score strictly higher than the best positive.
        ties: how many distractors score exactly the same.
        ties_after: how many of these have a higher gallery index than the best positive.
        best_scores: the best score of each kind of `KINDS`; -inf where the gallery has none.
        best_indices: the gallery index of that item, the highest index where several tie; -1 where there is none.
    """

    higher: Int[np.ndarray, "queries"]
    ties: Int[np.ndarray, "queries"]
    ties_after: Int[np.ndarray, "queries"]
    best_scores: Float[np.ndarray, "queries 4"]
    best_indices: Int[np.ndarray, "queries 4"]

    @property
    def positive_score(self) -> Float[np.ndarray, "queries"]:
        """`s_pos`, the score of the best own original."""
        return self.best_scores[:, OWN]

    @property
    def positive_index(self) -> Int[np.ndarray, "queries"]:
        """Gallery index of the best own original."""
        return self.best_indices[:, OWN]

    @property
    def rank_optimistic(self) -> Int[np.ndarray, "queries"]:
        """1 + #(s > s_pos) over distractors; 1 is best."""
        return 1 + self.higher

    @property
    def rank_pessimistic(self) -> Int[np.ndarray, "queries"]:
        """1 + #(s >= s_pos) over distractors."""
        return 1 + self.higher + self.ties

    @property
    def rank_published(self) -> Int[np.ndarray, "queries"]:
        """The rank by a stable ascending argsort, reversed: among equals the higher gallery index comes first."""
        return 1 + self.higher + self.ties_after

    @property
    def top_kind_published(self) -> Int[np.ndarray, "queries"]:
        """Kind of the top item (its place in `KINDS`); among equals the higher gallery index comes first."""
        on_top = self.best_scores == self.best_scores.max(axis=1, keepdims=True)
        return np.where(on_top, self.best_indices, -1).argmax(axis=1)

    @property
    def top_kind_against_the_model(self) -> Int[np.ndarray, "queries"]:
        """Kind of the top item where the model loses ties: other altered, own altered, other, then own."""
        order = np.array([OTHER_ALTERED, OWN_ALTERED, OTHER, OWN])
        return order[self.best_scores[:, order].argmax(axis=1)]


def ranks_before(
    score: np.ndarray | Array,
    index: np.ndarray | Array,
    other_score: np.ndarray | Array,
    other_index: np.ndarray | Array,
) -> Bool[np.ndarray, "..."] | Bool[Array, "..."]:
    """Whether an item comes before another: by score, and among equals by gallery index, the higher first.

    Elementwise, for arrays of NumPy or JAX. A score of -inf is no item, and comes before none.
    """
    return (score > other_score) | ((score == other_score) & (score > -np.inf) & (index > other_index))


def same_group_pairs(
    query_group: Int[np.ndarray, "queries"], gallery_group: Int[np.ndarray, "gallery"]
) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "pairs"]]:
    """Lists all pairs (query, gallery item) of the same group, ordered by query, then by gallery index.

    >>> same_group_pairs(np.array([7, 3]), np.array([3, 7, 7]))
    (array([0, 0, 1]), array([1, 2, 0]))
    """
    by_group = np.argsort(gallery_group, kind="stable")
    ordered = gallery_group[by_group]
    first = np.searchsorted(ordered, query_group, side="left")
    counts = np.searchsorted(ordered, query_group, side="right") - first
    queries = np.repeat(np.arange(len(query_group)), counts)
    within = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
    return queries, by_group[np.repeat(first, counts) + within]


def check_groups(
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    source: str,
) -> None:
    """Raises InputError where there are no queries, or a query's group has no unaltered gallery item."""
    if not len(query_group):
        raise InputError(source, "queries", "none", "at least one")
    without = np.flatnonzero(~np.isin(query_group, gallery_group[~gallery_altered]))
    if len(without):
        found = f"{len(without)} queries without one (the first is query {without[0]})"
        raise InputError(source, "unaltered gallery items of the same group", found, "at least one for each query")
