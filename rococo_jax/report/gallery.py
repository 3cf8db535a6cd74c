"""Examples of fooled queries as cards: the picture, the altered caption that won, the true one, both scores."""

from collections.abc import Callable, Sequence
from typing import Any

from rococo_jax.report.archive import Archive, Picture
from rococo_jax.report.charts import short_labels
from rococo_jax.report.examples import Fooled, Word, compare_words
from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.mixed_pictures import Mixed
from rococo_jax.report.vocabulary import percent, variant_label

_LONGEST_CAPTION = 400  # letters
_LONGEST_FILE = 20


def cards(
    examples: Sequence[Fooled],
    task: str,
    data: dict[str, Any],
    archive: Archive,
    mixed: Callable[[Fooled], Mixed | None] = lambda _: None,
) -> Markup:
    """The examples side by side, and a word on the pictures that could not be had.

    Args:
        examples: what to show.
        task: `image_to_text` or `text_to_image`.
        data: what the run says of its data.
        archive: where pictures and originals come from.
        mixed: makes the mixed image that an example chose.
    """
    if task == "image_to_text":
        drawn = [_caption_card(example, data, archive) for example in examples]
    else:
        drawn = [_image_card(example, data, archive, mixed(example)) for example in examples]
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


def _image_card(example: Fooled, data: dict[str, Any], archive: Archive, mixed: Mixed | None) -> Markup:
    own = example.kind == "own_altered"
    kind = "its own image, with another mixed in" if own else "another image, mixed"
    shown = [_picture(example.image, archive.picture(data, example.image))]
    chosen: list = ["mixed ", _file(example.chosen)]
    if mixed is not None:
        shown.append(_picture(example.chosen, mixed.picture, "the mixed image that came first"))
        own_share, other_share = percent(mixed.own_share), percent(100 - mixed.own_share)
        chosen = [f"{own_share} % ", _file(example.chosen), f" + {other_share} % ", _file(mixed.partner)]
    elif not own and (before := archive.picture(data, example.chosen)) is not None:
        shown.append(_picture(example.chosen, before, "the chosen image before it was mixed"))
    seed = f" (seed {example.seed})" if example.seed is not None else ""
    lines = [
        _line("caption", isolated(_cut(example.caption)), None, "query"),
        _line(f"chosen{seed}", chosen, example.chosen_score, "chosen file"),
        _line("true", _file(example.image), example.true_score, "true file"),
    ]
    labels = ["true", "chosen"] if len(shown) > 1 else [None]
    pictures = [_labelled(picture, label) for picture, label in zip(shown, labels, strict=True)]
    return _card(pictures, example.variant, kind, lines)


def _file(name: str) -> Markup:
    """A file's name without its folders and its middle; the whole of it is told on demand."""
    return element("bdi", short_labels([name.rpartition("/")[2]], _LONGEST_FILE)[0], title=name)


def _labelled(picture: Markup, label: str | None) -> Markup:
    return picture if label is None else element("figure", picture, element("figcaption", label))


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
