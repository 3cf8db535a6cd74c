"""Example cards, from the `examples.parquet` that an evaluation writes; differing words are marked."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from rococo_jax.evaluation.examples import Example
from rococo_jax.report.blocks import Card, Cards, Line, Picture, Text, rich
from rococo_jax.report.charts import short_labels
from rococo_jax.report.vocabulary import order_variants, variant_label

# Two captions that share less than this are different sentences, and marking their words would mark nearly all.
_SAME_SENTENCE = 0.5
_LONGEST_TEXT = 400  # letters
_LONGEST_FILE = 20
_ORIGINAL = "altered from: "
ERROR, WON = ("error",), ("won_blind", "won_looking")
_WON_KINDS = {"won_blind": "correct without the image", "won_looking": "correct because of the image"}
WON_NOTE = (
    "Examples of correct preferences",
    "Correct without the image: almost every image (or caption), related or not, prefers the original to its altered "
    "version. Correct because of the image: the matching image prefers the original more than any other does, while "
    "unrelated images prefer the altered version as often.",
)
_KINDS = {
    ("own_altered", "text"): "the image's own caption, altered",
    ("other_altered", "text"): "altered caption of another image",
    ("own_altered", "image"): "its own image, with another mixed in",
    ("other_altered", "image"): "another image, mixed",
    ("wrong", "text"): "the wrong text",
}


@dataclasses.dataclass(frozen=True)
class Word:
    """Word of a caption, and whether it differs from the caption it is compared with."""

    text: str
    is_changed: bool


def choose_examples(examples: Iterable[Example], task: str, roles: Sequence[str], count: int) -> list[Example]:
    """Return the first `count` examples of a task and of some roles, grouped by role and variant."""
    candidates = [each for each in examples if each.role in roles and each.task == task]
    first = sorted(candidates, key=lambda each: each.order)[:count]
    variants = order_variants(each.variant for each in first)
    return sorted(first, key=lambda each: (roles.index(each.role), variants.index(each.variant)))


def example_cards(examples: Sequence[Example], model: str = "") -> Cards:
    """Return the examples side by side.

    Args:
        model: name of the model that made the errors; empty where a heading names it.
    """
    return Cards([_card(example, model) for example in examples])


def _card(example: Example, model: str) -> Card:
    if example.role in WON:
        return _won_card(example)
    medium = "image" if example.wrong.image else "text"
    kind = _KINDS.get((example.kind, medium), example.kind.replace("_", " "))
    seed = f" (seed {example.seed})" if example.seed is not None else ""
    pictures = [
        Picture(side.jpeg, side.image, f"{name}: {side.image}", label)
        for side, name, label in (
            (example.query, "the query", ""),
            (example.right, "the correct image", "correct"),
            (example.wrong, "the image that ranks first", "ranked first"),
        )
        if side.image
    ]
    if len(pictures) == 1:
        pictures = [dataclasses.replace(pictures[0], label="")]
    lines = [] if not example.query.text else [Line("caption", _cut(example.query.text), None, "query")]
    if medium == "image":
        note = f" {example.wrong.note}" if example.wrong.note else ""
        wrong = rich("{}<bdi>{}</bdi>", _file(example.wrong.image), note)
        lines.append(Line(f"ranked first{seed}", wrong, example.wrong_score, "chosen file"))
        lines.append(Line("correct", _file(example.right.image), example.right_score, "true file"))
    else:
        lines += _text_lines(example, seed)
    head = rich("<b>{}</b> · {}", variant_label(example.variant), kind)
    if model:
        head = rich("<b>{}</b> prefers {}<br>{}", model, _preferred(example, medium), head)
    return Card(head, pictures, lines)


def _preferred(example: Example, medium: str) -> str:
    """Name the item that ranked first."""
    if "altered" not in example.kind:
        return f"a wrong {medium}"
    return "the mixed image" if medium == "image" else "the altered caption"


def _won_card(example: Example) -> Card:
    """Return the card of a pair of which the original won: the query, both items, and how many other queries agree."""
    kind = _WON_KINDS[example.role]
    sides = ((example.query, ""), (example.right, "original"), (example.wrong, "altered"))
    pictures = [
        Picture(side.jpeg, side.image, f"{label or 'the query'}: {side.image}", label)
        for side, label in sides
        if side.image
    ]
    lines = [Line("caption", _cut(example.query.text), None, "query")] if example.query.text else []
    if example.right.text:
        original, altered = compare_words(_cut(example.right.text), _cut(example.wrong.text))
        lines += [Line("original", _marked(original, "del"), None, "true")]
        lines += [Line("altered", _marked(altered, "mark"), None, "chosen")]
    lines.append(Line("unrelated queries", example.query.note, None, "made-from"))
    return Card(rich("<b>{}</b> · {}", variant_label(example.variant), kind), pictures, lines)


def _text_lines(example: Example, seed: str) -> list[Line]:
    """Return lines for the text that ranks first with its changed words, its original, and the correct text."""
    note, true = example.wrong.note, example.right.text
    source = note.removeprefix(_ORIGINAL) if note.startswith(_ORIGINAL) else ""
    # If the results do not name the original, the true text is the best guess; different sentences stay unmarked.
    original_words, chosen_words = compare_words(_cut(source or true), _cut(example.wrong.text))
    lines = [Line(f"ranked first{seed}", _marked(chosen_words, "mark"), example.wrong_score, "chosen")]
    if source and source != true:
        term = "altered from another image's caption" if example.kind == "other_altered" else "altered from"
        lines.append(Line(term, _marked(original_words, "del"), None, "made-from"))
        true_text: Text = _cut(true)
    else:
        true_text = _marked(original_words, "del")
        if note and not source:
            lines.append(Line("note", _cut(note), None, "made-from"))
    true_text = true_text if true else Markup("<i>the best of its own captions</i>")
    return [*lines, Line("correct", true_text, example.right_score, "true")]


def _file(name: str) -> Markup:
    """Return a file's name without its folders and its middle, with the full name as a tooltip."""
    return rich('<bdi title="{}">{}</bdi>', name, short_labels([name.rpartition("/")[2]], _LONGEST_FILE)[0])


def _marked(words: Sequence[Word], name: str) -> Markup:
    """Return a text with its changed words inside elements called `name`."""
    marked = [rich(f"<{name}>{{}}</{name}>", word.text) if word.is_changed else rich("{}", word.text) for word in words]
    return Markup(" ").join(marked)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def compare_words(first: str, second: str) -> tuple[list[Word], list[Word]]:
    """Split both captions into words and mark those that differ; different sentences stay unmarked.

    Case and punctuation do not count as a difference, because altered captions often lose both.

    >>> [word.text for word in compare_words("A red cat.", "a blue cat")[1] if word.is_changed]
    ['blue']
    """
    words, other_words = first.split(), second.split()
    keys, other_keys = [_key(word) for word in words], [_key(word) for word in other_words]
    matcher = difflib.SequenceMatcher(None, keys, other_keys, autojunk=False)
    if matcher.ratio() < _SAME_SENTENCE:
        return [Word(word, False) for word in words], [Word(word, False) for word in other_words]
    common, other_common = set(), set()
    for start, other_start, length in matcher.get_matching_blocks():
        common.update(range(start, start + length))
        other_common.update(range(other_start, other_start + length))
    return _compared(words, keys, common), _compared(other_words, other_keys, other_common)


def _key(word: str) -> str:
    return "".join(letter for letter in word.casefold() if letter.isalnum())


def _compared(words: Sequence[str], keys: Sequence[str], common: set[int]) -> list[Word]:
    return [Word(word, bool(keys[index]) and index not in common) for index, word in enumerate(words)]
