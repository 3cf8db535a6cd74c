"""Examples of fooled queries as cards: the picture, the altered caption that won, the true one, both scores."""

from collections.abc import Sequence
from typing import Any

from rococo_jax.evaluation.report.archive import Archive, Picture
from rococo_jax.evaluation.report.examples import Fooled, Word, compare_words
from rococo_jax.evaluation.report.markup import Markup, element, isolated
from rococo_jax.evaluation.report.vocabulary import variant_label

_LONGEST_CAPTION = 400  # letters


def cards(examples: Sequence[Fooled], task: str, data: dict[str, Any], archive: Archive) -> Markup:
    """The examples side by side, and a word on the pictures that could not be had."""
    draw = _caption_card if task == "image_to_text" else _image_card
    drawn = [draw(example, data, archive) for example in examples]
    missing = sum(archive.picture(data, example.image) is None for example in examples)
    note = None
    if missing:
        which = "The pictures are" if missing == len(examples) else f"{missing} of these {len(examples)} pictures are"
        note = element("p", f"{which} not to be found where the results say; names stand instead.", class_="note")
    return element("div", note, element("div", drawn, class_="cards"))


def _caption_card(example: Fooled, data: dict[str, Any], archive: Archive) -> Markup:
    source = archive.source_caption(data, example)
    # Where nothing tells which original was altered, the true caption is the best guess; unlike ones stay unmarked.
    compared = source or example.caption
    compared_words, chosen_words = compare_words(_cut(compared), _cut(example.chosen))
    lines = [_line("chosen", _marked(chosen_words, "mark"), example.chosen_score, "chosen")]
    if compared == example.caption:
        true = _marked(compared_words, "del")
    else:
        whose = "altered from" if example.kind == "own_altered" else "altered from another image's caption"
        lines.append(_line(whose, _marked(compared_words, "del"), None, "made-from"))
        true = isolated(_cut(example.caption))
    true = true if example.caption else element("i", "the best of its own captions")
    lines.append(_line("true", true, example.true_score, "true"))
    kind = "own caption, altered" if example.kind == "own_altered" else "another image's caption, altered"
    return _card([_picture(example.image, archive.picture(data, example.image))], example.variant, kind, lines)


def _image_card(example: Fooled, data: dict[str, Any], archive: Archive) -> Markup:
    kind = "own image, altered" if example.kind == "own_altered" else "another image, altered"
    lines = [
        _line("caption", isolated(_cut(example.caption)), None, "true"),
        _line("chosen", ["altered ", isolated(example.chosen)], example.chosen_score, "chosen"),
        _line("true", isolated(example.image), example.true_score, "true"),
    ]
    shown = [_picture(example.image, archive.picture(data, example.image))]
    chosen = archive.picture(data, example.chosen) if example.chosen != example.image else None
    if chosen is not None:
        shown.append(_picture(example.chosen, chosen, "the chosen image before it was altered"))
    return _card(shown, example.variant, kind, lines)


def _card(pictures: list[Markup], variant: str, kind: str, lines: list[Markup]) -> Markup:
    head = element("p", element("b", variant_label(variant)), " · ", kind, class_="card-head")
    return element(
        "article",
        element("div", pictures, class_="pictures"),
        element("div", head, element("dl", lines), class_="card-text"),
        class_="card",
    )


def _line(term: str, words: Markup | list, score: float | None, kind: str) -> Markup:
    number = element("dd", f"{score:.3f}".replace("-", "−"), class_="score") if score is not None else None
    return element("div", element("dt", term), element("dd", words), number, class_=kind)


def _marked(words: Sequence[Word], name: str) -> Markup:
    """A caption with its changed words inside elements called `name`."""
    return element("bdi", [[" " if place else None, _word(word, name)] for place, word in enumerate(words)])


def _word(word: Word, name: str) -> Markup | str:
    return element(name, word.text) if word.changed else word.text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CAPTION else text[: _LONGEST_CAPTION - 1] + "…"


def _picture(name: str, found: Picture | None, told: str = "the true image") -> Markup:
    if found is None:
        return element("div", isolated(name), class_="no-picture")
    return element("img", src=found.uri, width=found.width, height=found.height, alt=f"{told}: {name}", title=name)
