"""Grounding pairs of an item and its altered version: whether a model uses the altered part.

Tasks with such pairs compute grounding metrics in addition to their own, from the same embeddings.
"""

import dataclasses
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.tables import TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.task import Example, Side, Tables, of_different_images
from rococo_jax.similarity.differences import DifferenceStatistics, difference_statistics
from rococo_jax.similarity.statistics import Columns

# Maximum number of examples of each role in a task.
_MAX_EXAMPLES = 24
# A pair is won without the image if more than this share of unrelated queries prefer the original.
_BLIND = 0.9


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredPairs(Columns):
    """Original and altered items of pairs, and the queries of the whole benchmark.

    Attributes:
        queries: rows of the benchmark's tables.
        query_group: image of each query.
        right, wrong: original and altered item of each pair: texts if the queries are images, images if they are texts.
        group: image of each pair; its queries match the pair, all other queries are unrelated.
        also_shown_in: another image that is part of the altered item, whose queries are excluded; -1 for none.
        own_query: the only query that matches a pair, if an image has several (crops); by default all of its queries.
    """

    queries: Rows
    query_group: Int[np.ndarray, " queries"]
    right: Rows
    wrong: Rows
    group: Int[np.ndarray, " pairs"]
    also_shown_in: Int[np.ndarray, " pairs"] | None = None
    own_query: Int[np.ndarray, " pairs"] | None = None

    shared_fields: ClassVar[tuple[str, ...]] = ("queries", "query_group")

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> DifferenceStatistics:
        """Compute the statistics of all queries for each pair. Raises InputError: as `difference_statistics`."""
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
            second_group=self.also_shown_in,
            mesh=mesh,
            source=embeddings.source,
        )
        if self.own_query is None:
            return statistics
        return statistics[statistics.query == self.own_query[statistics.pair]]

    def rows(self, statistics: DifferenceStatistics, tables: Tables) -> dict[str, np.ndarray]:
        """Return columns with an entry for each pair and matching query.

        `query` is the image or caption, `right` and `wrong` are captions or names of images; `difference` is the score
        of the original minus that of the altered item; `blind` and `grounding` are shares of the `wrong_queries`, from
        0 to 1; `rank` is the rank of `difference` among those of all unrelated queries, with ties at one half.
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
            "rank": np.where(statistics.unrelated > 0, statistics.rank, np.nan),
            "wrong_queries": statistics.unrelated,
        }

    def won(
        self, named: tuple[str, str, int | None], statistics: DifferenceStatistics, tables: Tables
    ) -> list[Example]:
        """Return examples of pairs whose original won, without or because of the image.

        Without the image: almost all unrelated queries prefer the original, too. Because of the image: the difference
        ranks first, while at most half of the unrelated queries prefer the original; the largest differences come
        first. Each image is used once per role.
        """
        won = (statistics.difference > 0) & (statistics.unrelated > 0)
        size = np.abs(statistics.difference)
        blind, looking = won & (statistics.blind > _BLIND), won & (statistics.blind <= 0.5) & (statistics.rank == 1)
        orders = {
            "won_blind": np.lexsort((-size, -statistics.blind))[: len(won)],
            "won_looking": np.argsort(-size, kind="stable"),
        }
        examples = []
        for (role, order), is_candidate in zip(orders.items(), (blind, looking), strict=True):
            entries = of_different_images(order[is_candidate[order]], self.group[statistics.pair], _MAX_EXAMPLES)
            examples += [self._example(named, role, statistics, entry, tables) for entry in entries]
        return examples

    def _example(
        self,
        named: tuple[str, str, int | None],
        role: str,
        statistics: DifferenceStatistics,
        entry: int,
        tables: Tables,
    ) -> Example:
        pair, unrelated = int(statistics.pair[entry]), int(statistics.unrelated[entry])
        agree, rank = 100 * float(statistics.blind[entry]), float(statistics.rank[entry])
        medium = "images" if self.right.tables == (TEXTS,) else "captions"
        note = (
            f"{agree:.0f} % of {unrelated:,} unrelated {medium} prefer the original too; "
            f"the margin of the matching one ranks {rank:.10g} of {unrelated + 1:,}"
        )
        query = dataclasses.replace(
            side_of(tables, self.queries, self.query_group, int(statistics.query[entry])), note=note
        )
        sides = (side_of(tables, rows, self.group, pair) for rows in (self.right, self.wrong))
        return Example(*named, role, 0, "own", query, *sides, float(statistics.difference[entry]), 0.0)


def names_of(tables: Tables, rows: Rows, image: Int[np.ndarray, " rows"]) -> np.ndarray:
    """Return the texts of rows of texts, or the names of the images of rows of an image set.

    Args:
        tables: names of the benchmark's rows.
        rows: rows of one side of a task.
        image: row of the benchmark's `images` of each; for altered images, of the original.
    """
    is_text = rows.tables == (TEXTS,)
    return np.array(tables.texts if is_text else tables.images, object)[rows.index if is_text else image]


def side_of(tables: Tables, rows: Rows, image: Int[np.ndarray, " rows"], place: int) -> Side:
    """Return the side of an example for one of the rows; `image` as in `names_of`."""
    (table, (index,)) = rows[place : place + 1].parts[0]
    if table == TEXTS:
        return Side(text=tables.texts[int(index)])
    return Side(image=tables.images[int(image[place])], picture=(table, int(index)))
