"""Pairs of a right and a wrong text in a file of its own, whichever benchmark it is from; no images are needed.

[{"image", "caption" | "originals", "altered"}, ...]              RoCOCO's annotations, published form and ours
{ID: {"caption", ["caption2",] "negative_caption"}, ...}          SugarCrepe, SugarCrepe++
[{"true_caption", "false_caption", ...}, ...]                     REPLACE of The Hard Positive Truth, VL-CheckList
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from rococo_jax.benchmarks.rococo.annotations import Annotation, annotation_from_json
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json

_FORMS = (("caption", "negative_caption"), ("caption2", "negative_caption"), ("true_caption", "false_caption"))
_IMAGES = ("filename", "image_id", "image")


@dataclasses.dataclass(frozen=True, eq=False)
class TextPairs:
    """Texts, and which are compared.

    Attributes:
        texts: each once.
        right, wrong: rows of `texts`, one a pair.
        image: number of the image of each pair.
    """

    texts: tuple[str, ...]
    right: Int[np.ndarray, " pairs"]
    wrong: Int[np.ndarray, " pairs"]
    image: Int[np.ndarray, " pairs"]


def read_text_pairs(path: str | os.PathLike) -> TextPairs:
    """The pairs of a file.

    Raises:
        InputError: it is in no form that is known, or has no pair.
    """
    path = Path(path)
    value = read_json(path, "a file of right and wrong texts")
    own_form = isinstance(value, dict) and "format" in value
    items = list(value.values()) if isinstance(value, dict) and not own_form else value
    if own_form:
        return _gather(_of_annotation(annotation_from_json(value, path)), path)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise InputError(path, "file", f"a JSON {type(value).__name__}", "items with a right and a wrong text")
    forms = [form for form in _FORMS if all(name in items[0] for name in form)]
    pairs = _of_annotation(annotation_from_json(value, path)) if not forms else _of_items(items, forms, path)
    return _gather(pairs, path)


def _gather(pairs: list[tuple[Any, str, str]], path: Path) -> TextPairs:
    if not pairs:
        raise InputError(path, "pairs", "none", "at least one pair of an original and an altered text")
    rows: dict[str, int] = {}
    images: dict[Any, int] = {}
    numbers = [
        (rows.setdefault(right, len(rows)), rows.setdefault(wrong, len(rows)), images.setdefault(image, len(images)))
        for image, right, wrong in pairs
    ]
    return TextPairs(tuple(rows), *np.array(numbers, int).T)


def _of_annotation(annotation: Annotation) -> list[tuple[Any, str, str]]:
    return [
        (item.image, original, altered)
        for item in annotation.items
        for original, altered in zip(item.originals, item.altered, strict=True)
        if altered is not None
    ]


def _of_items(items: list[dict[str, Any]], forms: list[tuple[str, str]], path: Path) -> list[tuple[Any, str, str]]:
    pairs = []
    for place, item in enumerate(items):
        image = next((item[name] for name in _IMAGES if name in item), place)
        for form in forms:
            texts = [item.get(name) for name in form]
            for name, text in zip(form, texts, strict=True):
                if not isinstance(text, str) or not text.strip():
                    raise InputError(path, f"item {place}: {name}", repr(text)[:80], "a non-empty string")
            pairs.append((image, *texts))
    return pairs
