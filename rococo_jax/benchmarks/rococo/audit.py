"""Audit benchmark annotations: count quirks and show examples, without correcting anything.

The published RoCOCO files have quirks that affect scores: altered captions equal to their original, captions shared by
two images, full stops that only originals have (so that punctuation alone identifies the altered caption), a word
replaced inside a longer word ("background" -> "backfrance"). `inspect_annotations` counts them for any folder.

Texts are compared in three readings, each coarser than the one before:

    exact        the string itself; equal strings tie in every ranking
    normalised   `normalise_caption`, as in the `strict` protocol
    words        lower case, punctuation removed everywhere

The words of an audit are plain runs of letters, digits and underscores (`alphanumeric_runs`), not those of
`split_words`: published altered captions are split at punctuation and clitics and their originals are not, so "man's"
and "man 's" must read alike.
"""

import collections
import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.rococo.annotations import Annotation, AnnotationSet, no_ops, normalise_caption
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.image_files import find_images
from rococo_jax.progress import progress
from rococo_jax.storage import hash_file

EXAMPLES = 5
_WORD = re.compile(r"\w+")


def alphanumeric_runs(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation; `man's` gives two."""
    return _WORD.findall(text.lower())


READINGS: dict[str, Callable[[str], str]] = {
    "exact": str,
    "normalised": normalise_caption,
    "words": lambda text: " ".join(alphanumeric_runs(text)),
}


def inspect_annotations(annotations: AnnotationSet, images: str | os.PathLike | None = None) -> dict[str, Any]:
    """Audit a set of annotations, and count missing images where a folder is given. Returns a JSON value.

    It has `files` (name, role, form, bytes, sha256), `clean`, `variants` by name, and `images` where a folder was
    given. Raises InputError where that folder is missing.
    """
    report: dict[str, Any] = {"files": _describe_files(annotations), "clean": inspect_clean(annotations.clean)}
    report["variants"] = {}
    with progress("comparing captions", sum(map(_count_altered, annotations.variants.values())), "captions") as advance:
        for name, annotation in annotations.variants.items():
            report["variants"][name] = inspect_variant(annotation)
            advance(_count_altered(annotation))
    if images is not None:
        report["images"] = inspect_images(annotations.clean, images)
    return report


def _describe_files(annotations: AnnotationSet) -> list[dict[str, Any]]:
    roles = [(annotations.clean_source, "clean", None)] if annotations.clean_source else []
    roles += [(each.source, "variant", each.form) for each in annotations.variants.values()]
    roles += [(path, "ignored", None) for path in annotations.ignored]
    return [
        {"name": path.name, "role": role, "form": form, "bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path, role, form in roles
    ]


def inspect_clean(clean: Sequence[CaptionedImage]) -> dict[str, Any]:
    """Counts over the original captions."""
    captions = [(caption, item.image) for item in clean for caption in item.captions]
    per_image = collections.Counter(len(item.captions) for item in clean)
    lengths = [len(alphanumeric_runs(caption)) for caption, _ in captions]
    return {
        "images": len(clean),
        "captions": len(captions),
        "captions_per_image": {str(count): per_image[count] for count in sorted(per_image)},
        "words_per_caption": {"fewest": min(lengths), "mean": sum(lengths) / len(lengths), "most": max(lengths)},
        **_surface([caption for caption, _ in captions]),
        "duplicates": {name: _duplicates(captions, reading) for name, reading in READINGS.items()},
    }


def _surface(texts: Sequence[str]) -> dict[str, int]:
    return {
        "ending_with_full_stop": sum(text.rstrip().endswith(".") for text in texts),
        "ending_with_space_and_full_stop": sum(text.rstrip().endswith(" .") for text in texts),
        "with_capital_letters": sum(text != text.lower() for text in texts),
        "with_spaces_at_the_ends": sum(text != text.strip() for text in texts),
        "without_words": sum(not alphanumeric_runs(text) for text in texts),
    }


def _duplicates(captions: Iterable[tuple[str, str]], reading: Callable[[str], str]) -> dict[str, Any]:
    """Texts that are equal in a reading: repetitions, texts shared by several images, texts twice in one image."""
    images: dict[str, list[str]] = collections.defaultdict(list)
    for caption, image in captions:
        images[reading(caption)].append(image)
    repeated = {text: named for text, named in images.items() if len(named) > 1}
    shared = [text for text, named in repeated.items() if len(set(named)) > 1]
    return {
        "repetitions": sum(len(named) - 1 for named in repeated.values()),
        "texts_of_several_images": len(shared),
        "texts_twice_in_one_image": sum(len(set(named)) < len(named) for named in repeated.values()),
        "examples": shared[:EXAMPLES],
    }


def _count_altered(annotation: Annotation) -> int:
    return sum(altered is not None for item in annotation.items for altered in item.altered)


def inspect_variant(annotation: Annotation) -> dict[str, Any]:
    """Counts over one variant's altered captions."""
    pairs = [
        (item.image, original, altered)
        for item in annotation.items
        for original, altered in zip(item.originals, item.altered, strict=True)
        if altered is not None
    ]
    originals = {
        name: {reading(text) for item in annotation.items for text in item.originals} for name, reading in _TIES
    }
    edits = [(image, original, altered, find_edits(original, altered)) for image, original, altered in pairs]
    lengths = collections.Counter(
        len(item.originals) + sum(text is not None for text in item.altered) for item in annotation.items
    )
    return {
        "form": annotation.form,
        "images": len(annotation.items),
        "altered": len(pairs),
        "originals_without_altered": sum(altered is None for item in annotation.items for altered in item.altered),
        "captions_per_image": {str(count): lengths[count] for count in sorted(lengths)},
        **_surface([altered for _, _, altered in pairs]),
        "no_ops": _no_ops(annotation, normalised=False),
        "no_ops_normalised": _no_ops(annotation, normalised=True),
        "same_as_some_original": {
            name: sum(reading(altered) in originals[name] for _, _, altered in pairs) for name, reading in _TIES
        },
        "duplicates": _duplicates(((altered, image) for image, _, altered in pairs), READINGS["exact"]),
        "replaced_inside_words": _quirk(edits, lambda edit: edit.inside_words),
        "replaced_several_times": _quirk(edits, lambda edit: edit.several_times),
    }


_TIES = [(name, READINGS[name]) for name in ("exact", "normalised")]


def _no_ops(annotation: Annotation, *, normalised: bool) -> dict[str, Any]:
    places = no_ops(annotation, normalised=normalised)
    items = [(annotation.items[number], place) for number, place in places]
    examples = [_example(item.image, item.originals[place], item.altered[place]) for item, place in items[:EXAMPLES]]
    return {"count": len(places), "examples": examples}


def _quirk(edits: Iterable[tuple[str, str, str, "Edits"]], has_it: Callable[["Edits"], bool]) -> dict[str, Any]:
    examples = [_example(image, original, altered) for image, original, altered, edit in edits if has_it(edit)]
    return {"count": len(examples), "examples": examples[:EXAMPLES]}


def _example(image: str, original: str, altered: str | None) -> dict[str, str | None]:
    return {"image": image, "original": original, "altered": altered}


@dataclasses.dataclass(frozen=True)
class Edits:
    """Differences between the words of an altered caption and its original.

    Attributes:
        replaced: (old words, new words) of each place, in order.
        several_times: the same replacement was made in two places or more.
        inside_words: a replacement made in one place was also made inside a longer word in another. A single
            `plates` -> `weapons` does not count: it could be a replacement of the whole word.
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
    """(old words, new words) where two lists of words differ."""
    start = _shared_start(old, new)
    old, new = old[start:], new[start:]
    end = _shared_start(old[::-1], new[::-1])
    old, new = old[: len(old) - end], new[: len(new) - end]
    if len(old) <= 1 or len(new) <= 1:
        # The usual case: one word was replaced and no alignment is needed.
        yield from [(" ".join(old), " ".join(new))] if old or new else []
        return
    for step, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new, False).get_opcodes():
        if step != "equal":
            yield " ".join(old[old_start:old_end]), " ".join(new[new_start:new_end])


def _shared_start(one: list[str], other: list[str]) -> int:
    """Length of the common prefix of two lists of words."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def inspect_images(clean: Sequence[CaptionedImage], folder: str | os.PathLike) -> dict[str, Any]:
    """Count the named images in `folder`. Images are not opened."""
    present, missing = find_images([item.image for item in clean], folder)
    return {
        "folder": str(Path(folder)),
        "named": len(clean),
        "present": len(present),
        "missing": len(missing),
        "examples": missing[:EXAMPLES],
    }
