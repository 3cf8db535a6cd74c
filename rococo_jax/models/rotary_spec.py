"""Specification of rotary positions."""

import dataclasses
from typing import ClassVar

from rococo_jax.models.checked_spec import CheckedSpec


@dataclasses.dataclass(frozen=True)
class RotarySpec(CheckedSpec):
    """Rotary positions of patches in every attention (`models.positions.Rotary`).

    Attributes:
        grid: side of the grid to which positions are scaled, whatever the tower's own grid.
        from_one: positions count from 1 instead of 0.
        columns_first: the first half of a head is rotated by the column instead of the row.
        centred: DINOv3's positions: those of the centres of patches, from -2 pi to 2 pi along `grid`. Channel i of a
            head is rotated with channel i + d/2, instead of 2i with 2i + 1.
        base: base of the frequencies.
    """

    label: ClassVar[str] = "rotary"
    omit_if_default: ClassVar[frozenset[str]] = frozenset(("centred", "base"))

    grid: int
    from_one: bool = False
    columns_first: bool = False
    centred: bool = False
    base: int = 10000
