"""A card for each model: where it comes from, how it was asked, and its main figures, folded away under its name."""

from collections.abc import Iterator, Sequence
from typing import Any

from rococo_jax.report.collection import flat_fingerprint
from rococo_jax.report.headline import coverage, dataset_name
from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.scores import Run
from rococo_jax.report.tables import figure_cell
from rococo_jax.report.vocabulary import metric, task_label, variant_label

_FIGURES = ("r1", "r5", "r10", "fr1", "drop")
_NOTE = "Where each model comes from, how it was asked, its main figures, and the fingerprint of all that decides them."


def model_cards(runs: Sequence[Run]) -> Markup:
    """All cards of a section."""
    cards = [
        element(
            "details",
            element("summary", isolated(run.label)),
            element(
                "div",
                element("table", element("tbody", [_row(*fact) for fact in card_facts(run)]), class_="plain"),
                _figures(run),
                element("h5", "Fingerprint"),
                element(
                    "table", element("tbody", [_row(*pair) for pair in flat_fingerprint(run.results).items()]),
                    class_="plain",
                ),
                class_="scroll",
            ),
            class_="model-card",
        )
        for run in runs
    ]  # fmt: skip
    return element("section", element("h3", "Models"), element("p", _NOTE, class_="note"), cards, class_="figure")


def card_facts(run: Run) -> list[tuple[str, str]]:
    """What is known of a model and of how it was asked, as words; shorter where the results say less."""
    return [(term, text) for term, text in _facts(run) if text]


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    about, data = _object(run.results.get("about")), run.data
    for term, value in _object(about.get("provenance")).items():
        yield term.replace("_", " ").capitalize(), _words(value)
    counts, flops = _object(about.get("parameters")), _object(about.get("flops"))
    if isinstance(counts.get("total"), int):
        parts = ", ".join(f"{name.replace('_', ' ')} {_count(n)}" for name, n in counts.items() if name != "total")
        yield "Parameters", f"{_count(counts['total'])}: {parts}"
    costs = [f"{flops[part] / 1e9:.3g} GFLOP {what}" for part, what in _COSTS if isinstance(flops.get(part), int)]
    yield "Cost", ", ".join(costs)
    yield "Embedding", _words(about.get("embedding_dimensions")) and f"{about['embedding_dimensions']} dimensions"
    yield "Images become", _words(about.get("preprocessing"))
    yield "Tokenizer", _words(about.get("tokenizer"))
    for warning in about.get("warnings") or []:
        yield "Look twice", _words(warning)
    yield "Protocol", run.results["protocol"]
    name = dataset_name(data)
    sizes = [f"{data[key]:,} {what}" for key, what in _SIZES if isinstance(data.get(key), int)]
    yield "Data", ", ".join([*([name] if name else []), *sizes])
    if found := coverage(data):
        yield "Coverage", f"only {found[0]:,} of {found[1]:,} images: not comparable with full-gallery figures"
    versions = _object(run.results["fingerprint"].get("versions"))
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    for note in run.results.get("notes") or []:
        yield "Note", _words(note)


_COSTS = (("image", "an image"), ("text", "a text of full length"))
_SIZES = (("image_count", "images"), ("caption_count", "captions"))


def _figures(run: Run) -> Markup:
    names = [name for name in _FIGURES if _is_measured(run, name)]
    head = element("tr", [element("th", label, scope="col") for label in ("Task", "Variant")], [
        element("th", metric(name).label, scope="col") for name in names
    ])  # fmt: skip
    rows = [
        element(
            "tr",
            element("td", task_label(task), class_="words"),
            element("td", variant_label(variant), class_="words"),
            [figure_cell(run.figure(task, variant, name)) for name in names],
        )
        for task in run.tasks
        for variant in run.variants(task)
    ]
    return element("table", element("thead", head), element("tbody", rows), class_="figures")


def _is_measured(run: Run, name: str) -> bool:
    return any(
        run.figure(task, variant, name).value is not None for task in run.tasks for variant in run.variants(task)
    )


def _row(term: str, text: str) -> Markup:
    return element("tr", element("th", isolated(term), scope="row"), element("td", isolated(text)))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> str:
    """A JSON value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "" if value is None else str(value)


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else _words(number)
