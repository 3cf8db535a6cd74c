"""Tables of things to embed, and rows of them: what tasks are made of, and what an encoder fills in.

A benchmark has one table of texts and one table for each of its image sets. A row is (table, index); tasks name rows
and know nothing else of images, texts or models.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.data.images import ORIGINALS

__all__ = ["DEFAULT_SCALE", "ORIGINALS", "TEXTS", "Embeddings", "Rows"]

TEXTS = "texts"
# The factor on cosines of models that have none of their own: where CLIP ends its training.
DEFAULT_SCALE = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one table or of several: `parts` has the name of a table and the indices in it, one part
    after the other.
    """

    parts: tuple[tuple[str, Int[np.ndarray, " rows"]], ...]

    @classmethod
    def of(cls, table: str, index: Sequence[int] | Int[np.ndarray, " rows"]) -> "Rows":
        """Rows of one table."""
        return cls(((table, np.asarray(index, int)),))

    def __add__(self, other: "Rows") -> "Rows":
        return Rows((*self.parts, *other.parts))

    def __len__(self) -> int:
        return sum(len(index) for _, index in self.parts)

    def __getitem__(self, which: slice | np.ndarray) -> "Rows":
        """Some of the rows; `which` is a slice, indices or a mask over all rows."""
        chosen = np.arange(len(self))[which]
        if not len(chosen):
            return Rows(tuple((name, index[:0]) for name, index in self.parts[:1]))
        ends = np.cumsum([len(index) for _, index in self.parts])
        part = np.searchsorted(ends, chosen, side="right")
        begins = ends - [len(index) for _, index in self.parts]
        runs = np.flatnonzero(np.diff(part, prepend=-1)).tolist()
        return Rows(
            tuple(
                (self.parts[part[start]][0], self.parts[part[start]][1][chosen[start:end] - begins[part[start]]])
                for start, end in zip(runs, [*runs[1:], len(chosen)], strict=True)
            )
        )

    @property
    def index(self) -> Int[np.ndarray, " rows"]:
        """The index of each row in its table."""
        return np.concatenate([index for _, index in self.parts]) if self.parts else np.empty(0, int)

    @property
    def table(self) -> np.ndarray:
        """The name of the table of each row."""
        return np.repeat([name for name, _ in self.parts], [len(index) for _, index in self.parts])

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that occur, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.parts))

    def with_table(self, old: str, new: str) -> "Rows":
        """The same indices with one table in place of another."""
        return Rows(tuple((new if name == old else name, index) for name, index in self.parts))


@dataclasses.dataclass(frozen=True, eq=False)
class Embeddings:
    """Unit vectors of every row of every table, by the table's name. Errors call the vectors `source`.

    `logit_scale` is the model's own factor on cosines, by which they become probabilities; None where it has none.
    """

    tables: Mapping[str, Float[np.ndarray, "rows width"]]
    source: str = "embeddings"
    logit_scale: float | None = None

    def select(self, rows: Rows) -> tuple[Float[np.ndarray, "table width"], Int[np.ndarray, " rows"]]:
        """A table that holds all these rows, and the place of each in it; a single table is not copied."""
        if len(rows.tables) == 1:
            return self.tables[rows.tables[0]], rows.index
        used = [self.tables[name] for name in rows.tables]
        begins = dict(zip(rows.tables, np.cumsum([0, *map(len, used[:-1])]).tolist(), strict=True))
        places = [begins[name] + index for name, index in rows.parts]
        return np.concatenate(used), np.concatenate(places)
