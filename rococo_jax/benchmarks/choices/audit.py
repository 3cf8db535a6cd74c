"""Audit the items of a benchmark of choices: quirks are counted and shown, never corrected.

Texts are compared word for word, and as bags of words without case and punctuation: a model without word order can at
best tie on two texts of one bag.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import BenchmarkInfo
from rococo_jax.benchmarks.choices.items import Item, shape_of
from rococo_jax.data.image_files import find_images
from rococo_jax.perturb.text.words import plain, split_words

_EXAMPLES = 3
_BAG_NOTE = "a right and a wrong text have the same words in another order"


def _bag(text: str) -> tuple[str, ...]:
    return tuple(sorted(plain(word.text) for word in split_words(text)))


def _collide(item: Item, reading: Callable[[str], Any]) -> bool:
    """Whether two texts that are right for different images are the same in a reading."""
    right_for = [frozenset(image for image, text in item.match if text == place) for place in range(len(item.texts))]
    readings: dict[Any, frozenset[int]] = {}
    return any(readings.setdefault(reading(text), own) != own for text, own in zip(item.texts, right_for, strict=True))


QUIRKS: dict[str, tuple[str, Callable[[Item], bool]]] = {
    "tie": ("a right and a wrong text are equal: a tie for every model",
            lambda item: _collide(item, str)),
    "text_twice": ("a text comes twice among an item's", lambda item: len(set(item.texts)) < len(item.texts)),
    "image_twice": ("an image comes twice among an item's", lambda item: len(set(item.images)) < len(item.images)),
    "same_bag": (_BAG_NOTE, lambda item: _collide(item, _bag)),
    "white_space": ("a text has white space at an end, or twice in a row",
                    lambda item: any(text != " ".join(text.split()) for text in item.texts)),
}  # fmt: skip


def audit_choices(info: BenchmarkInfo, annotations: Path, images: Path | None = None) -> dict[str, Any]:
    """Counts of items, quirks with examples, hashes, and images that are missing, as JSON.

    Raises InputError: the files are not the benchmark's.
    """
    tables, hashes, records = info.reader.read(annotations, info.files)
    parts: dict[str, dict[str, Any]] = {}
    quirks = {name: {"meaning": meaning, "count": 0, "examples": []} for name, (meaning, _) in QUIRKS.items()}
    repeated: Counter = Counter()
    for item in tables.items():
        part = parts.setdefault(item.part, {"items": 0, "asks": shape_of(item), "texts": Counter()})
        part["items"] += 1
        part["texts"][len(item.texts)] += 1
        repeated[item.part, item.images, item.texts] += 1
        for name, (_, is_odd) in QUIRKS.items():
            if is_odd(item):
                quirks[name]["count"] += 1
                if len(quirks[name]["examples"]) < _EXAMPLES:
                    quirks[name]["examples"].append({"part": item.part, "id": item.id, "texts": list(item.texts)})
    for part in parts.values():
        part["texts"] = {str(count): number for count, number in sorted(part["texts"].items())}
    report = {
        "benchmark": info.name,
        "parts": parts,
        "items": sum(part["items"] for part in parts.values()),
        "records": records,
        "images": {"named": len(tables.names)},
        "texts": len(tables.texts),
        "items_that_repeat_another": sum(count - 1 for count in repeated.values()),
        "quirks": quirks,
        "hashes": hashes,
    }
    if images is not None:
        missing = find_images(list(tables.names), images)[1]
        report["images"] |= {"folder": str(images), "missing": len(missing), "examples": missing[:_EXAMPLES]}
    return report


def audit_lines(report: dict[str, Any]) -> Sequence[str]:
    """The report for people."""
    named = report["images"]
    left_out = report["records"] - report["items"]
    lines = [
        f"{report['benchmark']}: {report['items']:,} items, {named['named']:,} images, {report['texts']:,} texts"
        + (f"; {report['records']:,} records" if left_out else "")
    ]
    for name, part in report["parts"].items():
        counts = ", ".join(f"{number:,} with {count}" for count, number in part["texts"].items())
        lines.append(f"  {name}: {part['items']:,} items, {part['asks']}; texts an item: {counts}")
    lines.append(f"  items that repeat another: {report['items_that_repeat_another']:,}")
    for quirk in report["quirks"].values():
        lines.append(f"  {quirk['meaning']}: {quirk['count']:,}")
        lines += [f"    {each['part']} {each['id']}: {' | '.join(each['texts'])}" for each in quirk["examples"][:1]]
    if "folder" in named:
        shown = f", such as {named['examples'][0]}" if named["missing"] else ""
        lines.append(f"  images missing in {named['folder']}: {named['missing']:,} of {named['named']:,}{shown}")
    return [*lines, *(f"  {name}: sha256 {value}" for name, value in report["hashes"].items())]
