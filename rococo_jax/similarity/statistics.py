"""Rank statistics of each query of a gallery, and the definitions that all ways of ranking share.

For a query with group `g`, the *positives* (own originals) are the unaltered gallery items of group `g`, and `s_pos` is
the score of the best of them. *Distractors* are all gallery items except the own originals. A rank is 1 + the number of
distractors that come before the best positive. There are three conventions for ties:

    optimistic   1 + #(s > s_pos)                 the distractor loses ties
    pessimistic  1 + #(s > s_pos) + #(s = s_pos)  the distractor wins ties; equal to 1 + #(s >= s_pos)
    published    1 + #(s > s_pos) + #(s = s_pos and a higher gallery index)

The public code of RoCOCO sorts ascending by an unstable argsort and reverses the result; `published` is the same with a
*stable* sort, in which the higher gallery index comes first among equals. In that code the other own originals occupy
ranks too, but none of them is ahead of the best one, so its rank is the same with and without them.
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
    """Base of dataclasses whose fields are columns: arrays with one entry per query or item, or None.

    Attributes:
        shared_fields: names of the fields that are not columns and apply to all entries.
    """

    shared_fields: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.name not in cls.shared_fields)

    def __len__(self) -> int:
        return len(getattr(self, self.columns()[0]))

    def __getitem__(self: Table, entries: slice | np.ndarray) -> Table:
        """Select entries."""
        return self._joined([self], lambda columns: columns[0][entries])

    @classmethod
    def concatenate(cls, parts: Sequence[Table]) -> Table:
        """Concatenate the entries of several tables."""
        return parts[0] if len(parts) == 1 else cls._joined(parts, np.concatenate)

    @classmethod
    def select(cls, tables: Sequence[Table], choice: Int[np.ndarray, " entries"]) -> Table:
        """Take each entry from one of several tables of the same length, `choice[i]` for entry i."""
        entries = np.arange(len(choice))
        return cls._joined(tables, lambda columns: np.stack(columns)[choice, entries])

    @classmethod
    def _joined(cls, tables: Sequence[Table], join: Callable[[list[Any]], Any]) -> Table:
        by_name = {name: [getattr(table, name) for table in tables] for name in cls.columns()}
        joined = {name: None if columns[0] is None else join(columns) for name, columns in by_name.items()}
        return dataclasses.replace(tables[0], **joined)


# Kinds of gallery items from the view of a query; the columns of `RankStatistics.best_scores`, in this order.
KINDS = ("own", "own_altered", "other_altered", "other")
OWN_ORIGINAL, OWN_ALTERED, OTHER_ALTERED, OTHER_ORIGINAL = range(4)


@dataclass(frozen=True, eq=False)
class RankStatistics(Columns):
    """Rank of the best positive and best item of each kind, one entry per query.

    Scores have the precision in which they were compared: float32 for embeddings, that of the file for a matrix.

    Attributes:
        higher: number of distractors with a strictly higher score than the best positive.
        ties: number of distractors with exactly the same score.
        ties_after: number of ties with a higher gallery index than the best positive.
        best_scores: best score of each kind in `KINDS`; -inf if the gallery has no such item.
        best_indices: gallery index of that item, the highest index in case of ties; -1 if there is no such item.
    """

    higher: Int[np.ndarray, " queries"]
    ties: Int[np.ndarray, " queries"]
    ties_after: Int[np.ndarray, " queries"]
    best_scores: Float[np.ndarray, "queries 4"]
    best_indices: Int[np.ndarray, "queries 4"]

    @property
    def positive_score(self) -> Float[np.ndarray, " queries"]:
        """Score of the best own original, `s_pos`."""
        return self.best_scores[:, OWN_ORIGINAL]

    @property
    def positive_index(self) -> Int[np.ndarray, " queries"]:
        """Gallery index of the best own original."""
        return self.best_indices[:, OWN_ORIGINAL]

    @property
    def rank_optimistic(self) -> Int[np.ndarray, " queries"]:
        """1 + #(s > s_pos) over distractors; 1 is best."""
        return 1 + self.higher

    @property
    def rank_pessimistic(self) -> Int[np.ndarray, " queries"]:
        """1 + #(s >= s_pos) over distractors."""
        return 1 + self.higher + self.ties

    @property
    def rank_published(self) -> Int[np.ndarray, " queries"]:
        """Rank by a stable ascending argsort, reversed: among equals the higher gallery index comes first."""
        return 1 + self.higher + self.ties_after

    @property
    def top_kind_published(self) -> Int[np.ndarray, " queries"]:
        """Kind of the top item (index in `KINDS`); among equals the higher gallery index comes first."""
        on_top = self.best_scores == self.best_scores.max(axis=1, keepdims=True)
        return np.where(on_top, self.best_indices, -1).argmax(axis=1)

    @property
    def top_kind_against_the_model(self) -> Int[np.ndarray, " queries"]:
        """Kind of the top item if the model loses ties: other altered, own altered, other, then own."""
        order = np.array([OTHER_ALTERED, OWN_ALTERED, OTHER_ORIGINAL, OWN_ORIGINAL])
        return order[self.best_scores[:, order].argmax(axis=1)]


def ranks_before(
    score: np.ndarray | Array,
    index: np.ndarray | Array,
    other_score: np.ndarray | Array,
    other_index: np.ndarray | Array,
) -> Bool[np.ndarray, "..."] | Bool[Array, "..."]:
    """Compare items elementwise: the higher score comes first, and among equal scores the higher gallery index.

    Works for arrays of NumPy and JAX. A score of -inf stands for no item, which never comes first.
    """
    return (score > other_score) | ((score == other_score) & (score > -np.inf) & (index > other_index))


def same_group_pairs(
    query_group: Int[np.ndarray, " queries"], gallery_group: Int[np.ndarray, " gallery"]
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """List all pairs (query, gallery item) of the same group, ordered by query, then by gallery index.

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
    query_group: Int[np.ndarray, " queries"],
    gallery_group: Int[np.ndarray, " gallery"],
    gallery_altered: Bool[np.ndarray, " gallery"],
    source: str,
) -> None:
    """Raise InputError if there are no queries, or a query's group has no unaltered gallery item."""
    if not len(query_group):
        raise InputError(source, "queries", "none", "at least one")
    unmatched = np.flatnonzero(~np.isin(query_group, gallery_group[~gallery_altered]))
    if len(unmatched):
        problem = f"{len(unmatched)} queries without one (the first is query {unmatched[0]})"
        raise InputError(source, "unaltered gallery items of the same group", problem, "at least one for each query")
