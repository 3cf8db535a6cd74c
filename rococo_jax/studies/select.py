"""Select discriminative images from the answers of several evaluated models, with the reasons for each.

They are images on which corruption changes what models say, no two of them alike:

    v(i) = mean over models and corruptions of [the answer changed];  images with v = 0 are left out
    next = argmax over the others of  a v(i) + (1 - a) d(i),  d(i) the cosine distance to the nearest chosen one

The rule is this project's; Bench-C (arXiv 2511.19032) selects by inconsistency, then by diversity.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.variants import UNCORRUPTED, Variant
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PER_QUERY, described_variants, read_results
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.storage import load_arrays

# Where a row of the kinds of tasks has the answer, and the text that won where that says only whether it was right.
_ANSWERS = ("predicted", "top1_text", "chosen")
_WRONG_TEXT = "wrong_caption"
_KEYS = ("image", "item", "query")


@dataclasses.dataclass(frozen=True)
class Answers:
    """One model's answers on one task: condition (`fog_3`) -> (image, place) -> answer."""

    model: str
    base: dict[tuple, Any]
    changed: dict[str, dict[tuple, Any]]


def select(
    results: Sequence[Path], task: str | None, count: int, weight: float, embeddings: str | None = None
) -> dict[str, Any]:
    """The contents of the list: `chosen` has image, inconsistency, distance, nearest and what changed for whom.

    Args:
        results: paths of `results.json`, with `per_query.parquet` beside them.
        task: which; the first that all have with corrupted images by default.
        count: how many images at most.
        weight: of inconsistency against distance, from 0 to 1.
        embeddings: what `rococo embed` wrote of the images; without it inconsistency decides alone.

    Raises:
        InputError: fewer than two models, no corruption in common, no image whose answer changed, or an image without
            a vector.
    """
    if not 0 <= weight <= 1:
        raise InputError("select", "weight", weight, "a number from 0 to 1")
    if count < 1:
        raise InputError("select", "count", count, "1 or more")
    if len(results) < 2:
        raise InputError("select", "results", len(results), "those of two models or more")
    told = [read_results(path) for path in results]
    task = task or next((name for name in told[0]["tasks"] if all(_corrupted(each, name) for each in told)), None)
    if task is None or not all(task in each["tasks"] for each in told):
        raise InputError("select", "task", task or "none with corrupted images", "one that all results have")
    answers = [_answers(path, each["model"], task) for path, each in zip(results, told, strict=True)]
    conditions = sorted(set.intersection(*(set(each.changed) for each in answers)))
    if not conditions:
        raise InputError("select", task, "no corruption that all results have", "results with corruptions")
    keys = sorted(set.intersection(*(set(each.base) for each in answers)))
    images = sorted({key[0] for key in keys})
    row = {image: place for place, image in enumerate(images)}
    sums, total, reasons = np.zeros(len(images)), np.zeros(len(images)), [{} for _ in images]
    for each in answers:
        for condition in conditions:
            for key in keys:
                other = each.changed[condition].get(key)
                if other is None:
                    continue
                place = row[key[0]]
                total[place] += 1
                if other != each.base[key]:
                    sums[place] += 1
                    reasons[place].setdefault(each.model, {})[condition] = [each.base[key], other]
    inconsistency = sums / np.maximum(total, 1)
    vectors = None if embeddings is None else _vectors(embeddings, images)
    chosen, distances, nearest = select_greedily(inconsistency, vectors, count, weight)
    if not len(chosen):
        raise InputError("select", task, "no image whose answer any corruption changes", "at least one")
    listed = [
        {
            "image": images[one],
            "inconsistency": round(float(inconsistency[one]), 6),
            "distance": None if not np.isfinite(far) else round(float(far), 6),
            "nearest": None if near < 0 else images[near],
            "changed": reasons[one],
        }
        for one, far, near in zip(chosen.tolist(), distances.tolist(), nearest.tolist(), strict=True)
    ]
    about = {"task": task, "models": [each.model for each in answers], "corruptions": conditions, "weight": weight}
    about |= {"images": len(images), "inconsistent": int((inconsistency > 0).sum())}
    return {"format": "rococo_jax.selection", "version": 1, **about, "chosen": listed}


def _corrupted(results: dict[str, Any], task: str) -> bool:
    return task in results["tasks"] and any(each.corruption for each in described_variants(results, task).values())


def _answers(path: Path, model: str, task: str) -> Answers:
    import pyarrow.compute

    file = path.parent / PER_QUERY
    table = read_rows(file, "the rows that `rococo evaluate` writes")
    table = table.filter(pyarrow.compute.field("task") == task)
    answer = next((name for name in _ANSWERS if name in table.column_names
                   and table.column(name).null_count < table.num_rows), None)  # fmt: skip
    if answer is None:
        raise InputError(file, "answers", f"none of {task}", f"a column {' or '.join(_ANSWERS)}")
    names = [name for name in _KEYS if name in table.column_names]
    found: dict[str, dict[tuple, Any]] = {}
    wrong_text = _WRONG_TEXT if answer == "chosen" and _WRONG_TEXT in table.column_names else answer
    fields = ("part", "corruption", "severity")
    absent = [None] * len(table)
    columns = [
        table.column(name).to_pylist() if name in table.column_names else absent
        for name in (*names, wrong_text, *fields, answer)
    ]
    for *key, wrong, part, corruption, severity, said in zip(*columns, strict=True):
        if corruption:
            said = f"wrong: {wrong}" if said == "wrong" and wrong != said else said
            images = Variant(corruption=corruption, severity=severity or 0).name
            found.setdefault(images, {})[(*key, part or "")] = said
    if UNCORRUPTED not in found:
        raise InputError(file, task, "no uncorrupted images", "results with corruptions")
    return Answers(model, found.pop(UNCORRUPTED), found)


def _vectors(path: str, images: Sequence[str]) -> np.ndarray:
    wanted = "what `rococo embed` writes"
    arrays = load_arrays(path, wanted)
    if not isinstance(arrays, dict) or not {"image_names", "image_embeddings"} <= arrays.keys():
        raise InputError(path, "arrays", "others than image_names and image_embeddings", wanted)
    names, vectors = arrays["image_names"].tolist(), arrays["image_embeddings"]
    place = {name: row for row, name in enumerate(names)}
    missing = [image for image in images if image not in place]
    if missing:
        raise InputError(path, "images", f"no vector of {missing[0]}", f"one of each of {len(images)} images")
    return np.asarray(vectors[[place[image] for image in images]], np.float64)


def select_greedily(
    inconsistency: Float[np.ndarray, " images"],
    vectors: Float[np.ndarray, "images width"] | None,
    count: int,
    weight: float,
) -> tuple[Int[np.ndarray, " chosen"], Float[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]:
    """The chosen images in order, the distance of each to the nearest before it, and which that is (-1 for none).

    Ties go to the earlier image. Without vectors, and for the first image, inconsistency decides alone.

    Args:
        inconsistency: v, from 0 to 1.
        vectors: of the images, any length.
        count: how many at most.
        weight: a, from 0 to 1.
    """
    left = inconsistency > 0
    unit = None
    if vectors is not None:
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit = vectors / np.where(norms > 0, norms, 1.0)
    distance, nearest = np.full(len(inconsistency), np.inf), np.full(len(inconsistency), -1)
    chosen, distances, before = [], [], []
    while left.any() and len(chosen) < count:
        spread = distance if chosen and unit is not None else np.zeros(len(inconsistency))
        # Rounded, so that sums in another order do not decide between equals.
        score = np.where(left, np.round(weight * inconsistency + (1 - weight) * spread, 12), -np.inf)
        one = int(score.argmax())
        left[one] = False
        chosen.append(one)
        distances.append(distance[one])
        before.append(nearest[one])
        if unit is not None:
            to_chosen = 1.0 - unit @ unit[one]
            nearest = np.where(to_chosen < distance, one, nearest)
            distance = np.minimum(to_chosen, distance)
    return np.array(chosen, int), np.array(distances), np.array(before, int)
