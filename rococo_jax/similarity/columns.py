"""Dataclasses whose fields are columns: one entry each for every query, pair, item or image."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Int

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
