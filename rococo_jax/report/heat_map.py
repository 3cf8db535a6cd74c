"""A heat map as a table: a shade for the eye, the number in every cell for everybody else.

Shades run through one hue from light to dark (from dark to light on a dark screen), so they keep their order without
colour vision and in print. The style sheet holds them, as classes `h0` to `h9` with a colour of the text for each.
"""

import dataclasses
import math
from collections.abc import Sequence

from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.vocabulary import percent

SHADES = 10


@dataclasses.dataclass(frozen=True)
class Cell:
    """A percentage, and what is told of it on demand."""

    value: float | int | None
    told: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a heat map; `group` is the heading under which it stands, None for none."""

    label: str
    cells: tuple[Cell, ...]
    group: str | None = None


def top_of_scale(values: Sequence[float | int | None]) -> float:
    """The percentage of the last shade: the largest value, rounded up to a ten.

    >>> top_of_scale([12.0, 53.1, None]), top_of_scale([])
    (60.0, 10.0)
    """
    return 10.0 * max(1, math.ceil(max((value for value in values if value is not None), default=0) / 10))


def shade(value: float | int, top: float) -> int:
    """Which of the shades a value has; all below zero have the first.

    >>> [shade(value, 50.0) for value in (-3, 0, 4.9, 5, 49, 50)]
    [0, 0, 0, 1, 9, 9]
    """
    return min(SHADES - 1, max(0, int(SHADES * value / top)))


def heat_map(name: str, corner: str, columns: Sequence[str], rows: Sequence[Row], top: float) -> Markup:
    """The table.

    Args:
        name: what it shows, for readers who hear it.
        corner: heading of the rows.
        columns: headings of the columns.
        rows: in order; a heading stands before the first row of each group.
        top: the percentage of the last shade.
    """
    head = element("thead", element("tr", [element("th", each, scope="col") for each in (corner, *columns)]))
    body, group = [], None
    for row in rows:
        if row.group is not None and row.group != group:
            body.append(
                element("tr", element("th", row.group, colspan=len(columns) + 1, scope="rowgroup"), class_="of")
            )
        group = row.group
        cells = [_cell(each, top) for each in row.cells]
        mean = "mean" if row.group is None else None
        body.append(element("tr", element("th", isolated(row.label), scope="row"), cells, class_=mean))
    table = element("table", element("caption", name, class_="heard"), head, element("tbody", body), class_="heat")
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=f"Heat map: {name}")


def _cell(cell: Cell, top: float) -> Markup:
    kind = None if cell.value is None else f"h{shade(cell.value, top)}"
    return element("td", percent(cell.value), title=cell.told, class_=kind)


def scale_legend(top: float, lowest: str) -> Markup:
    """The shades from nought (`lowest` says what that means) to `top` per cent."""
    shades = [element("span", class_=f"h{each}") for each in range(SHADES)]
    return element(
        "p", f"{lowest} ", element("span", shades, class_="shades", aria_hidden="true"), f" {top:.0f} %", class_="scale"
    )
