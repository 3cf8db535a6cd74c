"""What keeps two sections of the page apart."""

from rococo_jax.report.collection import Section
from rococo_jax.report.markup import Markup, element, isolated


def differences(section: Section) -> Markup:
    """What a section was measured under that the first one was not."""
    rows = [
        element("tr", element("th", isolated(one.field), scope="row"), [_value(text) for text in (one.first, one.here)])
        for one in section.differences
    ]
    header = ("Field", "Section 1", "This section")
    head = element("thead", element("tr", [element("th", name, scope="col") for name in header]))
    return element(
        "div",
        element("p", "Not comparable with section 1. These were measured under other conditions, so they stand apart:"),
        element("table", head, element("tbody", rows), class_="plain"),
        class_="differences",
    )


def _value(text: str) -> Markup:
    short = text if len(text) <= 48 else text[:24] + "…" + text[-12:]
    return element("td", isolated(short), title=text if short != text else None)
