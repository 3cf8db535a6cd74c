"""Embedding tables of images and texts, and references to their rows.

A benchmark has one table of texts and one table for each of its image sets. A row is (table, index). Tasks refer to
rows and depend on nothing else of images, texts or models.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.data.images import ORIGINALS

__all__ = ["DEFAULT_SCALE", "ORIGINALS", "TEXTS", "Embeddings", "Rows"]

TEXTS = "texts"
# Scale of cosines for models without their own: CLIP's value at the end of its training.
DEFAULT_SCALE = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A sequence of rows of one or several tables; each of `parts` is the name of a table and indices into it."""

    parts: tuple[tuple[str, Int[np.ndarray, " rows"]], ...]

    @classmethod
    def of(cls, table: str, index: Sequence[int] | Int[np.ndarray, " rows"]) -> "Rows":
        """Return rows of one table."""
        return cls(((table, np.asarray(index, int)),))

    def __add__(self, other: "Rows") -> "Rows":
        return Rows((*self.parts, *other.parts))

    def __len__(self) -> int:
        return sum(len(index) for _, index in self.parts)

    def __getitem__(self, selection: slice | np.ndarray) -> "Rows":
        """Return the rows of a slice, of positions or of a mask over all rows."""
        positions = np.arange(len(self))[selection]
        if not len(positions):
            return Rows(tuple((name, index[:0]) for name, index in self.parts[:1]))
        sizes = np.array([len(index) for _, index in self.parts])
        ends = np.cumsum(sizes)
        part_of_position = np.searchsorted(ends, positions, side="right")
        # Consecutive positions in the same part become one part of the result.
        run_starts = np.flatnonzero(np.diff(part_of_position, prepend=-1)).tolist()
        run_ends = [*run_starts[1:], len(positions)]
        selected = []
        for start, end in zip(run_starts, run_ends, strict=True):
            part = part_of_position[start]
            name, index = self.parts[part]
            selected.append((name, index[positions[start:end] - (ends - sizes)[part]]))
        return Rows(tuple(selected))

    @property
    def index(self) -> Int[np.ndarray, " rows"]:
        """Index of each row in its table."""
        return np.concatenate([index for _, index in self.parts]) if self.parts else np.empty(0, int)

    @property
    def table(self) -> np.ndarray:
        """Name of the table of each row."""
        return np.repeat([name for name, _ in self.parts], [len(index) for _, index in self.parts])

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables, without repetitions."""
        return tuple(dict.fromkeys(name for name, _ in self.parts))

    def with_table(self, old: str, new: str) -> "Rows":
        """Return the same rows with one table replaced by another."""
        return Rows(tuple((new if name == old else name, index) for name, index in self.parts))


@dataclasses.dataclass(frozen=True, eq=False)
class Embeddings:
    """Unit vectors of all rows of all tables.

    Attributes:
        tables: vectors by name of the table.
        source: name of the vectors in errors.
        logit_scale: the model's factor on cosines before a softmax; None if the model has none.
    """

    tables: Mapping[str, Float[np.ndarray, "rows width"]]
    source: str = "embeddings"
    logit_scale: float | None = None

    def select(self, rows: Rows) -> tuple[Float[np.ndarray, "table width"], Int[np.ndarray, " rows"]]:
        """Return a table that contains all these rows, and the index of each row in it. One table is not copied."""
        if len(rows.tables) == 1:
            return self.tables[rows.tables[0]], rows.index
        tables = [self.tables[name] for name in rows.tables]
        starts = dict(zip(rows.tables, np.cumsum([0, *map(len, tables[:-1])]).tolist(), strict=True))
        indices = [starts[name] + index for name, index in rows.parts]
        return np.concatenate(tables), np.concatenate(indices)
