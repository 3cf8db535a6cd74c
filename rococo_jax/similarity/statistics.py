"""What ranking one set of queries against a gallery leaves behind: one entry per query, never a sorted list.

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

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

# What a gallery item is to a query; the columns of `RankStatistics.best_scores`, in this order.
KINDS = ("own", "own_altered", "other_altered", "other")
OWN, OWN_ALTERED, OTHER_ALTERED, OTHER = range(4)


@dataclass(frozen=True, eq=False)
class RankStatistics:
    """Per query: where the best positive stands, and the best item of each kind.

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
        """The kind of the item on top, the higher gallery index first among equals (places in `KINDS`)."""
        on_top = self.best_scores == self.best_scores.max(axis=1, keepdims=True)
        return np.where(on_top, self.best_indices, -1).argmax(axis=1)

    @property
    def top_kind_against_the_model(self) -> Int[np.ndarray, "queries"]:
        """The same where ties are lost by the model: other altered, own altered, other, and only then own."""
        order = np.array([OTHER_ALTERED, OWN_ALTERED, OTHER, OWN])
        return order[self.best_scores[:, order].argmax(axis=1)]

    def __len__(self) -> int:
        return len(self.higher)

    def __getitem__(self, rows: slice | np.ndarray) -> "RankStatistics":
        """The statistics of some of the queries."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})
