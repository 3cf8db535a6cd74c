"""The table of paired differences."""

from rococo_jax.metrics.paired import PairedDifference
from rococo_jax.report.comparison import METRICS, Comparison
from rococo_jax.report.markup import Markup, element
from rococo_jax.report.tables import header_cell, scrolling_table
from rococo_jax.report.vocabulary import metric, percent, variant_label


def difference_table(comparison: Comparison, task: str) -> Markup:
    """One row a model and variant: the difference of each metric with its interval, and p."""
    head = element(
        "thead",
        element(
            "tr",
            header_cell("Model", first=True),
            header_cell("Variant", words=True),
            [
                [header_cell(f"{metric(name).label} difference", metric(name).definition, True), header_cell("p")]
                for name in METRICS
            ],
        ),
    )
    rows = [
        element(
            "tr",
            element("th", element("bdi", row.run.label), scope="row"),
            element("td", variant_label(row.variant), class_="words"),
            [_cells(row.metrics.get(name)) for name in METRICS],
        )
        for row in comparison.rows
    ]
    caption = f"Differences from {comparison.reference.label}, {task}"
    return scrolling_table(caption, head, rows, sortable=True, filterable=True)


def _cells(found: PairedDifference | None) -> list[Markup]:
    if found is None:
        return [element("td", percent(None), class_="edge"), element("td", percent(None))]
    number = element("strong", signed(found.points)) if found.low > 0 or found.high < 0 else signed(found.points)
    interval = element("small", f"{signed(found.low)} to {signed(found.high)}")
    return [
        element("td", number, interval, data_value=found.points, class_="edge"),
        element("td", p_value(found.p), data_value=found.p),
    ]


def signed(points: float) -> str:
    """A difference with its sign.

    >>> signed(1.25), signed(-0.3), signed(0.01)
    ('+1.2', '−0.3', '0.0')
    """
    text = percent(points)
    return text if text == "0.0" or points < 0 else f"+{text}"


def p_value(p: float) -> str:
    """Three decimals, four where they are needed.

    >>> p_value(0.0301), p_value(0.0001)
    ('0.030', '0.0001')
    """
    return f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"
