"""Where figures come from: fingerprints, and what keeps two sections of the page apart."""

from collections.abc import Sequence

from rococo_jax.evaluation.report.collection import Section, flat_fingerprint
from rococo_jax.evaluation.report.markup import Markup, element, isolated
from rococo_jax.evaluation.report.scores import Run


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


def fingerprints(runs: Sequence[Run]) -> Markup:
    """The fingerprint of every run, folded away."""
    shown = []
    for run in runs:
        rows = [
            element("tr", element("th", isolated(field), scope="row"), element("td", isolated(text)))
            for field, text in flat_fingerprint(run.results).items()
        ]
        shown.append(
            element(
                "details",
                element("summary", "Fingerprint of ", isolated(run.label)),
                element("div", element("table", element("tbody", rows), class_="plain"), class_="scroll"),
            )
        )
    note = "What each figure depends on: weights, preprocessing, tokenizer, data, protocol and versions."
    return element("section", element("h3", "Provenance"), element("p", note, class_="note"), shown, class_="figure")
