"""Audit a benchmark's annotations: `rococo verify` counts quirks and shows examples. It corrects nothing.

Quirks affect scores: equal texts tie in every ranking; if only originals end with a full stop, punctuation reveals the
altered captions; a word may be replaced inside a longer one ("background" -> "backfrance"). Texts are compared in four
forms, each coarser than the one before:

    exact        the string itself
    normalised   `normalise_caption`, as in the `strict` protocol
    words        runs of letters, digits and underscores in lower case (not `split_words`: published altered captions
                 are split at punctuation and clitics, so "man's" and "man 's" must be equal)
    bag          the words in any order: a model that ignores word order can at best tie on two texts of one bag
"""

import difflib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rococo_jax.benchmarks.benchmark import BenchmarkInfo, recognise
from rococo_jax.benchmarks.choices.items import Item, question_of
from rococo_jax.benchmarks.rococo.annotations import altered_pairs, is_no_op, normalise_caption, read_annotation_folder
from rococo_jax.data.image_files import find_images
from rococo_jax.progress import progress
from rococo_jax.storage import hash_file

EXAMPLES = 5
_WORD = re.compile(r"\w+")


class Caption(NamedTuple):
    """A caption of an image; an altered one names its original."""

    id: str
    text: str
    original: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """Original and altered text, or the only text."""
        return (self.original, self.text) if self.original else (self.text,)


# Name -> its meaning, and a predicate of an item, which may depend on the items before it.
Quirks = Mapping[str, tuple[str, Callable[[Any], bool]]]


def alphanumeric_runs(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation; `man's` gives two."""
    return _WORD.findall(text.lower())


def _bag(text: str) -> tuple[str, ...]:
    return tuple(sorted(alphanumeric_runs(text)))


def _has_white_space(*texts: str) -> bool:
    return any(text != " ".join(text.split()) for text in texts)


def _repeats(key: Callable[[Any], Any], of_another: bool = False) -> Callable[[Any], bool]:
    """Return a predicate: an earlier item has the same key; `of_another` counts only items of other images."""
    first: dict[Any, Any] = {}

    def repeats(item: Any) -> bool:
        earlier = first.setdefault(key(item), item)
        return earlier is not item and not (of_another and earlier.id == item.id)

    return repeats


_WHITE_SPACE = "white space at an end, or twice in a row"


def _caption_quirks() -> Quirks:
    return {
        "full_stop": ('ends with "."', lambda each: each.text.rstrip().endswith(".")),
        "space_and_full_stop": ('ends with " ."', lambda each: each.text.rstrip().endswith(" .")),
        "capitals": ("has capital letters", lambda each: each.text != each.text.lower()),
        "white_space": (f"has {_WHITE_SPACE}", lambda each: _has_white_space(each.text)),
        "no_words": ("has no word", lambda each: not alphanumeric_runs(each.text)),
        "repeats": ("repeats another one", _repeats(lambda each: each.text)),
        "of_another_image": (
            "repeats the words of another image's",
            _repeats(lambda each: tuple(alphanumeric_runs(each.text)), of_another=True),
        ),
    }


def _altered_quirks(originals: Iterable[str]) -> Quirks:
    exact = set(originals)
    normalised = set(map(normalise_caption, exact))
    return {
        **_caption_quirks(),
        "no_op": ("no-op: has its original's words", lambda each: is_no_op(each.original, each.text)),
        "no_op_normalised": (
            "no-op, case and final punctuation aside",
            lambda each: is_no_op(each.original, each.text, normalised=True),
        ),
        "tie": ("equals some image's original: a tie", lambda each: each.text in exact),
        "tie_normalised": (
            "the same, case and final punctuation aside",
            lambda each: normalise_caption(each.text) in normalised,
        ),
        "several_times": ("word replaced in several places", lambda each: _edits(each).several_times),
        "inside_words": ("word replaced inside a longer word, too", lambda each: _edits(each).inside_words),
    }


class Edits(NamedTuple):
    """Differences between the words of an altered caption and its original.

    Attributes:
        replaced: (old words, new words) of each replacement, in order.
        several_times: the same replacement occurs at least twice.
        inside_words: a replacement of a word also occurs inside a longer word. A single `plates` -> `weapons` does not
            count, because it could be a replacement of the complete word.
    """

    replaced: tuple[tuple[str, str], ...]
    several_times: bool
    inside_words: bool


def find_edits(original: str, altered: str) -> Edits:
    """Align two captions word by word.

    >>> find_edits("The ground in the background.", "the france in the backfrance")
    Edits(replaced=(('ground', 'france'), ('background', 'backfrance')), several_times=False, inside_words=True)
    """
    replaced = tuple(_replacements(alphanumeric_runs(original), alphanumeric_runs(altered)))
    inside = any(
        word and word != longer and word in longer and longer.replace(word, replacement) == result
        for word, replacement in replaced
        for longer, result in replaced
    )
    return Edits(replaced, len(set(replaced)) < len(replaced), inside)


def _replacements(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (old words, new words) for each difference of two lists of words."""
    start = _shared_start(old, new)
    old, new = old[start:], new[start:]
    end = _shared_start(old[::-1], new[::-1])
    old, new = old[: len(old) - end], new[: len(new) - end]
    if len(old) <= 1 or len(new) <= 1:
        # The usual case: one word was replaced, so no alignment is needed.
        yield from [(" ".join(old), " ".join(new))] if old or new else []
        return
    for step, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if step != "equal":
            yield " ".join(old[old_start:old_end]), " ".join(new[new_start:new_end])


def _shared_start(one: list[str], other: list[str]) -> int:
    """Return the length of the common prefix of two lists of words."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@functools.lru_cache(maxsize=1)
def _edits(caption: Caption) -> Edits:
    return find_edits(caption.original, caption.text)


def _choice_quirks() -> Quirks:
    return {
        "tie": ("a right and a wrong text are equal: a tie for every model", lambda item: _collide(item, str)),
        "text_twice": ("a text comes twice", lambda item: len(set(item.texts)) < len(item.texts)),
        "image_twice": ("an image comes twice", lambda item: len(set(item.images)) < len(item.images)),
        "same_bag": ("a right and a wrong text have the same words in some order", lambda item: _collide(item, _bag)),
        "white_space": (f"a text has {_WHITE_SPACE}", lambda item: _has_white_space(*item.texts)),
        "repeats": ("repeats another item", _repeats(lambda item: (item.part, item.images, item.texts))),
    }


def _collide(item: Item, form: Callable[[str], Any]) -> bool:
    """Return whether two texts that match different images become equal in a form."""
    images_of_form: dict[Any, frozenset[int]] = {}
    for place, text in enumerate(item.texts):
        images = frozenset(image for image, matching_text in item.match if matching_text == place)
        if images_of_form.setdefault(form(text), images) != images:
            return True
    return False


def audit(annotations: Path, images: Path | None = None) -> dict[str, Any]:
    """Audit the annotation files of a folder, and count missing images if their folder is given. Returns JSON.

    Raises InputError: the files belong to no benchmark, or the folder of images does not exist.
    """
    info = recognise(annotations)
    return audit_captions(annotations, images) if info.reader is None else audit_choices(info, annotations, images)


def audit_captions(annotations: Path, images: Path | None = None) -> dict[str, Any]:
    """Audit a folder of altered captions. Its parts are the clean captions and the variants."""
    folder = read_annotation_folder(annotations)
    captions = {"clean": [Caption(item.image, text) for item in folder.clean for text in item.captions]}
    quirks = {"clean": _caption_quirks()}
    parts = {"clean": _part("originals", (len(item.captions) for item in folder.clean))}
    for name, variant in folder.variants.items():
        captions[name] = [Caption(image, new, old) for image, old, new in altered_pairs(variant.items)]
        quirks[name] = _altered_quirks(text for item in variant.items for text in item.originals)
        lengths = (2 * len(item.originals) - item.altered.count(None) for item in variant.items)
        parts[name] = _part(f"originals and altered captions, {variant.form} form", lengths)
    with progress("comparing captions", sum(map(len, captions.values())), "captions") as advance:
        counts: dict[str, Any] = {}
        for name, items in captions.items():
            _count(((name, item) for item in items), quirks[name], counts)
            advance(len(items))
    sources = [folder.clean_source, *(each.source for each in folder.variants.values()), *folder.ignored]
    return {
        "benchmark": "rococo",
        "parts": parts,
        "images": _find([item.image for item in folder.clean], images),
        "quirks": counts,
        "ignored": [path.name for path in folder.ignored],
        "hashes": {path.name: hash_file(path) for path in sources if path is not None},
    }


def audit_choices(info: BenchmarkInfo, annotations: Path, images: Path | None = None) -> dict[str, Any]:
    """Audit the items of a multiple-choice benchmark."""
    tables, hashes, records = info.reader.read(annotations, info.files)
    lengths: dict[tuple[str, str], list[int]] = {}
    for item in tables.items():
        lengths.setdefault((item.part, question_of(item)), []).append(len(item.texts))
    return {
        "benchmark": info.name,
        "parts": {part: _part(shape, texts) for (part, shape), texts in lengths.items()},
        "records": records,
        "images": _find(list(tables.names), images),
        "quirks": _count(((item.part, item) for item in tables.items()), _choice_quirks(), {}),
        "ignored": [],
        "hashes": hashes,
    }


def _part(asks: str, lengths: Iterable[int]) -> dict[str, Any]:
    texts = Counter(lengths)
    return {"asks": asks, "items": texts.total(), "texts": {str(count): texts[count] for count in sorted(texts)}}


def _count(items: Iterable[tuple[str, Any]], quirks: Quirks, counts: dict[str, Any]) -> dict[str, Any]:
    """Add the items (part, item) that have each quirk to `counts`."""
    for part, item in items:
        for name, (meaning, has_it) in quirks.items():
            quirk = counts.setdefault(name, {"meaning": meaning, "parts": {}})["parts"]
            entry = quirk.setdefault(part, {"count": 0, "examples": []})
            if has_it(item):
                entry["count"] += 1
                if len(entry["examples"]) < EXAMPLES:
                    entry["examples"].append({"id": item.id, "texts": list(item.texts)})
    return counts


def _find(names: Sequence[str], folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {"named": len(names)}
    missing = find_images(names, folder)[1]
    return {"named": len(names), "folder": str(folder), "missing": len(missing), "examples": missing[:EXAMPLES]}


def audit_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report for the terminal."""
    images = report["images"]
    records = f", {report['records']:,} records" if "records" in report else ""
    yield f"{report['benchmark']}: {images['named']:,} images{records}"
    for name, part in report["parts"].items():
        counts = ", ".join(f"{number:,} with {count}" for count, number in part["texts"].items())
        yield f"  {name}: {part['items']:,} items, {part['asks']}; texts an item: {counts}"
    for quirk in report["quirks"].values():
        having = {name: part for name, part in quirk["parts"].items() if part["count"]}
        counts = ", ".join(f"{name} {part['count']:,}" for name, part in having.items())
        yield f"  {quirk['meaning']}: {counts or 'none'}"
        for name, part in list(having.items())[-1:]:
            example = part["examples"][0]
            yield f"    {name} {example['id']}: {' | '.join(example['texts'])}"
    if "folder" in images:
        example = f", such as {images['examples'][0]}" if images["missing"] else ""
        yield f"  images missing in {images['folder']}: {images['missing']:,} of {images['named']:,}{example}"
    for name, value in report["hashes"].items():
        yield f"  {name}{' (ignored)' if name in report['ignored'] else ''}: sha256 {value}"
