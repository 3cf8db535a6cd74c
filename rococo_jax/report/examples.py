"""Examples of errors as cards, from the `examples.parquet` that the evaluation writes; words that differ are marked."""

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
_WON_KINDS = {"won_blind": "won blind", "won_looking": "won by looking"}
WON_TOLD = (
    "Examples of originals that won",
    "Won blind: almost everything prefers the original to its altered copy, whether it shows it or not. Won by "
    "looking: what shows the original prefers it more than anything else does, while others as often prefer the copy.",
)
_KINDS = {
    ("own_altered", "text"): "own caption, altered",
    ("other_altered", "text"): "another image's caption, altered",
    ("own_altered", "image"): "its own image, with another mixed in",
    ("other_altered", "image"): "another image, mixed",
    ("wrong", "text"): "the wrong text",
}


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of a caption, and whether it differs from the caption it is compared with."""

    text: str
    changed: bool


def choose_examples(examples: Iterable[Example], task: str, roles: Sequence[str], count: int) -> list[Example]:
    """The first `count` examples of a task and of some roles in the order of choice, role by role, by variant."""
    found = [each for each in examples if each.role in roles and each.task == task]
    chosen = sorted(found, key=lambda each: each.order)[:count]
    variants = order_variants(each.variant for each in chosen)
    return sorted(chosen, key=lambda each: (roles.index(each.role), variants.index(each.variant)))


def example_cards(examples: Sequence[Example], model: str = "") -> Cards:
    """Return the examples side by side.

    Args:
        model: name of the model that made the errors; empty where a heading names it.
    """
    return Cards([_card(example, model) for example in examples])


def _card(example: Example, model: str) -> Card:
    if example.role in WON:
        return _won_card(example)
    chosen = "image" if example.wrong.image else "text"
    kind = _KINDS.get((example.kind, chosen), example.kind.replace("_", " "))
    seed = f" (seed {example.seed})" if example.seed is not None else ""
    pictures = [
        Picture(side.jpeg, side.image, f"{told}: {side.image}", label)
        for side, told, label in (
            (example.query, "the query", ""),
            (example.right, "the true image", "true"),
            (example.wrong, "the chosen image", "chosen"),
        )
        if side.image
    ]
    if len(pictures) == 1:
        pictures = [dataclasses.replace(pictures[0], label="")]
    lines = [] if not example.query.text else [Line("caption", _cut(example.query.text), None, "query")]
    if chosen == "image":
        note = f" {example.wrong.note}" if example.wrong.note else ""
        wrong = rich("{}<bdi>{}</bdi>", _file(example.wrong.image), note)
        lines.append(Line(f"chosen{seed}", wrong, example.wrong_score, "chosen file"))
        lines.append(Line("true", _file(example.right.image), example.right_score, "true file"))
    else:
        lines += _text_lines(example, seed)
    head = rich("<b>{}</b> · {}", variant_label(example.variant), kind)
    if model:
        head = rich("<b>{}</b> prefers {}<br>{}", model, _preferred(example, chosen), head)
    return Card(head, pictures, lines)


def _preferred(example: Example, chosen: str) -> str:
    """Name the item that ranked first."""
    if "altered" not in example.kind:
        return f"a wrong {chosen}"
    return "the mixed image" if chosen == "image" else "the altered caption"


def _won_card(example: Example) -> Card:
    """A pair of which the original won: what was asked, the two, and how many others agree."""
    kind = _WON_KINDS[example.role]
    sides = ((example.query, ""), (example.right, "original"), (example.wrong, "altered"))
    pictures = [Picture(side.jpeg, side.image, f"{label or 'asked'}: {side.image}", label) for side, label in sides
                if side.image]  # fmt: skip
    lines = [Line("caption", _cut(example.query.text), None, "query")] if example.query.text else []
    if example.right.text:
        original, altered = compare_words(_cut(example.right.text), _cut(example.wrong.text))
        lines += [Line("original", _marked(original, "del"), None, "true")]
        lines += [Line("altered", _marked(altered, "mark"), None, "chosen")]
    lines.append(Line("others", example.query.note, None, "made-from"))
    return Card(rich("<b>{}</b> · {}", variant_label(example.variant), kind), pictures, lines)


def _text_lines(example: Example, seed: str) -> list[Line]:
    """The chosen text with its changed words, what it was altered from, and the true one."""
    note, true = example.wrong.note, example.right.text
    source = note.removeprefix(_ORIGINAL) if note.startswith(_ORIGINAL) else ""
    # Where nothing tells which original was altered, the true text is the best guess; unlike ones stay unmarked.
    compared, chosen = compare_words(_cut(source or true), _cut(example.wrong.text))
    lines = [Line(f"chosen{seed}", _marked(chosen, "mark"), example.wrong_score, "chosen")]
    if source and source != true:
        whose = "altered from another image's caption" if example.kind == "other_altered" else "altered from"
        lines.append(Line(whose, _marked(compared, "del"), None, "made-from"))
        shown: Text = _cut(true)
    else:
        shown = _marked(compared, "del")
        if note and not source:
            lines.append(Line("note", _cut(note), None, "made-from"))
    shown = shown if true else Markup("<i>the best of its own captions</i>")
    return [*lines, Line("true", shown, example.right_score, "true")]


def _file(name: str) -> Markup:
    """A file's name without its folders and its middle; its title holds the whole name."""
    return rich('<bdi title="{}">{}</bdi>', name, short_labels([name.rpartition("/")[2]], _LONGEST_FILE)[0])


def _marked(words: Sequence[Word], name: str) -> Markup:
    """A text with its changed words inside elements called `name`."""
    marked = [rich(f"<{name}>{{}}</{name}>", word.text) if word.changed else rich("{}", word.text) for word in words]
    return Markup(" ").join(marked)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def compare_words(first: str, second: str) -> tuple[list[Word], list[Word]]:
    """Both captions as words, those marked that differ; nothing is marked where the two are different sentences.

    Case and punctuation do not count as a difference, since altered captions often lose both.

    >>> [word.text for word in compare_words("A red cat.", "a blue cat")[1] if word.changed]
    ['blue']
    """
    words, others = first.split(), second.split()
    keys, other_keys = [_key(word) for word in words], [_key(word) for word in others]
    matcher = difflib.SequenceMatcher(None, keys, other_keys, autojunk=False)
    if matcher.ratio() < _SAME_SENTENCE:
        return [Word(word, False) for word in words], [Word(word, False) for word in others]
    same, other_same = set(), set()
    for start, other_start, length in matcher.get_matching_blocks():
        same.update(range(start, start + length))
        other_same.update(range(other_start, other_start + length))
    return _compared(words, keys, same), _compared(others, other_keys, other_same)


def _key(word: str) -> str:
    return "".join(letter for letter in word.casefold() if letter.isalnum())


def _compared(words: Sequence[str], keys: Sequence[str], same: set[int]) -> list[Word]:
    return [Word(word, bool(keys[index]) and index not in same) for index, word in enumerate(words)]
