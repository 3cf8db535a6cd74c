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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rococo_jax.attacks.changes import Candidate, Space
from rococo_jax.attacks.scoring import Goal, Query
from rococo_jax.attacks.search import FIRST_BLOCK, LARGEST_BLOCK, SEARCHES, Search
from rococo_jax.data.captions import CaptionedImage

# Queries that are searched side by side.
GROUP = 16
_MARGIN_DIGITS = 7


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of an attack on captions.

    Attributes:
        changes: largest number of changes of words, or of letters.
        queries: largest number of altered captions that are scored for a query; None for no limit.
        search: name among `SEARCHES`.
        width: candidates of each caption that a beam keeps.
        witness: `best` for the highest margin among the smallest changes; `first` ends a query with its first success.
    """

    changes: int = 1
    queries: int | None = None
    search: str = "exhaustive"
    width: int = 8
    witness: str = "best"


class _State:
    """A query while it is searched."""

    def __init__(self, query: Query, space: Space, budget: Budget):
        self.query, self.budget = query, budget
        self.stops = budget.witness == "first"
        self.search: Search = SEARCHES[budget.search](
            space, budget.changes, budget.width, FIRST_BLOCK if self.stops else LARGEST_BLOCK
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
        left = len(block) if self.budget.queries is None else self.budget.queries - self.tried
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
    queries: Sequence[Query],
    items: Sequence[CaptionedImage],
    goal: Goal,
    make_space: Callable[[Query], Space],
    budget: Budget,
    start: int = 0,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each group of queries, from query `start`, a multiple of `GROUP`.

    Args:
        queries: the queries.
        items: all images with their captions.
        goal: says when a query is fooled.
        make_space: returns the altered captions of a query.
        budget: the search and its limits.
    """
    for first in range(start, len(queries), GROUP):
        group = range(first, min(first + GROUP, len(queries)))
        states = [_State(queries[number], make_space(queries[number]), budget) for number in group]
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
