"""Pairs of an item and its altered copy, and all that is asked about them: whether a model looks at what was changed.

Kinds of tasks that have such pairs count them beside their own metrics, from the same embeddings.
"""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.tables import TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.task import Example, Side, Tables
from rococo_jax.similarity.differences import DifferenceStatistics, difference_statistics
from rococo_jax.similarity.statistics import Columns

# Examples of each role that a task offers, and the share of wrong queries above which a pair is won blind.
_MOST, _BLIND = 24, 0.9


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredPairs(Columns):
    """Right and wrong items of pairs, and the queries of the whole benchmark.

    Attributes:
        queries: rows of the benchmark's tables.
        query_group: the image that a query is, or belongs to.
        right, wrong: rows, one a pair: texts where the queries are images, images where they are texts.
        group: the image of each pair; its queries are the pair's own, all others are wrong ones.
        also_shown_in: a further image that is in the wrong item, whose queries are left out; -1 for none.
        own_query: the one query that is a pair's own, where an image has several (crops); all by default.
    """

    queries: Rows
    query_group: Int[np.ndarray, " queries"]
    right: Rows
    wrong: Rows
    group: Int[np.ndarray, " pairs"]
    also_shown_in: Int[np.ndarray, " pairs"] | None = None
    own_query: Int[np.ndarray, " pairs"] | None = None

    of_all: ClassVar[tuple[str, ...]] = ("queries", "query_group")

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> DifferenceStatistics:
        """Counts all queries for each pair. Raises InputError: as `difference_statistics`."""
        sides = (self.queries, self.right, self.wrong)
        (queries, query_rows), (right, right_rows), (wrong, wrong_rows) = map(embeddings.select, sides)
        statistics = difference_statistics(
            queries,
            right,
            wrong,
            query_rows=query_rows,
            right_rows=right_rows,
            wrong_rows=wrong_rows,
            query_group=self.query_group,
            pair_group=self.group,
            also_shown_in=self.also_shown_in,
            mesh=mesh,
            source=embeddings.source,
        )
        if self.own_query is None:
            return statistics
        return statistics[statistics.query == self.own_query[statistics.pair]]

    def rows(self, statistics: DifferenceStatistics, tables: Tables) -> dict[str, np.ndarray]:
        """Columns with an entry for each pair and own query.

        `query` is the image or caption that is asked, `right` and `wrong` are captions or names of images; `difference`
        is how much more the right one scores; `blind` and `grounding` are shares of the `wrong_queries`, from 0 to 1;
        `rank` is that of `difference` among those of all wrong queries, ties at one half.
        """
        pair, query = statistics.pair, statistics.query
        return {
            "image": np.array(tables.images, object)[self.group[pair]],
            "query": names_of(tables, self.queries[query], self.query_group[query]),
            "right": names_of(tables, self.right[pair], self.group[pair]),
            "wrong": names_of(tables, self.wrong[pair], self.group[pair]),
            "difference": statistics.difference.astype(np.float64),
            "preference": statistics.preference,
            "blind": statistics.blind,
            "grounding": statistics.grounding,
            "rank": np.where(statistics.wrong > 0, statistics.rank, np.nan),
            "wrong_queries": statistics.wrong,
        }

    def won(
        self, named: tuple[str, str, int | None], statistics: DifferenceStatistics, tables: Tables
    ) -> list[Example]:
        """Pairs whose original won, as examples: those that most wrong queries agree on, and those won by looking.

        Won by looking is a difference that ranks first while at most half of the wrong queries prefer the original; the
        largest differences come first. An image is shown once a role.
        """
        won = (statistics.difference > 0) & (statistics.wrong > 0)
        size = np.abs(statistics.difference)
        blind, looking = won & (statistics.blind > _BLIND), won & (statistics.blind <= 0.5) & (statistics.rank == 1)
        orders = {
            "won_blind": np.lexsort((-size, -statistics.blind))[: len(won)],
            "won_looking": np.argsort(-size, kind="stable"),
        }
        examples = []
        for (role, order), chosen in zip(orders.items(), (blind, looking), strict=True):
            shown: set[int] = set()
            for entry in order[chosen[order]].tolist():
                image = int(self.group[statistics.pair[entry]])
                if len(shown) == _MOST or image in shown:
                    continue
                shown.add(image)
                examples.append(self._example(named, role, statistics, entry, tables))
        return examples

    def _example(
        self,
        named: tuple[str, str, int | None],
        role: str,
        statistics: DifferenceStatistics,
        entry: int,
        tables: Tables,
    ) -> Example:
        pair, others = int(statistics.pair[entry]), int(statistics.wrong[entry])
        agree, rank = 100 * float(statistics.blind[entry]), float(statistics.rank[entry])
        what = "images" if self.right.tables == (TEXTS,) else "captions"
        note = (
            f"{agree:.0f} % of {others:,} other {what} prefer the original too; "
            f"by how much, this one ranks {rank:.10g} of {others + 1:,}"
        )
        query = dataclasses.replace(
            side_of(tables, self.queries, self.query_group, int(statistics.query[entry])), note=note
        )
        sides = (side_of(tables, rows, self.group, pair) for rows in (self.right, self.wrong))
        return Example(*named, role, 0, "own", query, *sides, float(statistics.difference[entry]), 0.0)


def names_of(tables: Tables, rows: Rows, image: Int[np.ndarray, " rows"]) -> np.ndarray:
    """The texts behind rows of texts; of rows of any image set the names of the images that they are, or are made of.

    Args:
        tables: the benchmark's names.
        rows: of one side of a task.
        image: for each of them, a row of the benchmark's `images`; an index in another set says nothing of names.
    """
    is_text = rows.tables == (TEXTS,)
    return np.array(tables.texts if is_text else tables.images, object)[rows.index if is_text else image]


def side_of(tables: Tables, rows: Rows, image: Int[np.ndarray, " rows"], place: int) -> Side:
    """Side of an example for one of the rows; `image` as in `names_of`."""
    (table, (index,)) = rows[place : place + 1].parts[0]
    if table == TEXTS:
        return Side(text=tables.texts[int(index)])
    return Side(image=tables.images[int(image[place])], picture=(table, int(index)))
