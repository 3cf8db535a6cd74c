"""Select diverse images on which corruption changes the answers of several evaluated models, with the reasons.

    v(i) = mean over models and corruptions of [the answer changed];  images with v = 0 are left out
    next = argmax over the other images of  a v(i) + (1 - a) d(i),  d(i) the cosine distance to the nearest selected one

The rule is this project's; Bench-C (arXiv 2511.19032) selects by inconsistency, then by diversity.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.variants import UNCORRUPTED, Variant
from rococo_jax.errors import InputError
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.report.collection import Run
from rococo_jax.storage import load_arrays

# Columns with the answer, by kind of task, and with the text that won if the answer is only right or wrong.
_ANSWERS = ("predicted", "top1_text", "chosen")
_WRONG_TEXT = "wrong_caption"
_KEYS = ("image", "item", "query")


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers of a model on one task, for uncorrupted images and, by corruption (`fog_3`), for corrupted ones."""

    model: str
    base: dict[tuple, Any]
    corrupted: dict[str, dict[tuple, Any]]


def select(
    runs: Sequence[Run], task: str | None, count: int, weight: float, embeddings: str | None = None
) -> dict[str, Any]:
    """Return the selection: `chosen` lists image, inconsistency, distance, nearest image and the changed answers.

    Args:
        runs: the results of each model; see `runs_of_the_same_data`.
        task: the task; by default the first with corrupted images that all results have.
        count: maximum number of images.
        weight: weight of inconsistency against distance, from 0 to 1.
        embeddings: file of `rococo embed` for the images; without it, images are selected by inconsistency only.

    Raises:
        InputError: fewer than two models, no corruption in common, no image whose answer changed, or an image without
            a vector.
    """
    if not 0 <= weight <= 1:
        raise InputError("select", "weight", weight, "a number from 0 to 1")
    if count < 1:
        raise InputError("select", "count", count, "1 or more")
    if len(runs) < 2:
        raise InputError("select", "results", len(runs), "those of two models or more")
    task = task or next((name for name in runs[0].tasks if all(_has_corruptions(run, name) for run in runs)), None)
    if task is None or not all(task in run.tasks for run in runs):
        raise InputError("select", "task", task or "none with corrupted images", "one that all results have")
    answers = [_answers(run, task) for run in runs]
    conditions = sorted(set.intersection(*(set(each.corrupted) for each in answers)))
    if not conditions:
        raise InputError("select", task, "no corruption that all results have", "results with corruptions")
    keys = sorted(set.intersection(*(set(each.base) for each in answers)))
    images = sorted({key[0] for key in keys})
    inconsistency, changed = _changed_answers(answers, conditions, keys, images)
    vectors = None if embeddings is None else _vectors(embeddings, images)
    selected, distances, nearest = select_greedily(inconsistency, vectors, count, weight)
    if not len(selected):
        raise InputError("select", task, "no image whose answer any corruption changes", "at least one")
    chosen = []
    for row, distance, nearest_row in zip(selected.tolist(), distances.tolist(), nearest.tolist(), strict=True):
        chosen.append(
            {
                "image": images[row],
                "inconsistency": round(float(inconsistency[row]), 6),
                "distance": round(float(distance), 6) if np.isfinite(distance) else None,
                "nearest": images[nearest_row] if nearest_row >= 0 else None,
                "changed": changed[row],
            }
        )
    about = {"task": task, "models": [each.model for each in answers], "corruptions": conditions, "weight": weight}
    about |= {"images": len(images), "inconsistent": int((inconsistency > 0).sum())}
    return {"format": "rococo_jax.selection", "version": 1, **about, "chosen": chosen}


def _changed_answers(
    answers: Sequence[Answers], conditions: Sequence[str], keys: Sequence[tuple], images: Sequence[str]
) -> tuple[Float[np.ndarray, " images"], list[dict[str, dict[str, list]]]]:
    """Return the inconsistency of each image, and its changed answers: `[before, after]` by model and corruption.

    Args:
        keys: the answers to compare; the first entry of a key is its image.
    """
    row_of_image = {image: row for row, image in enumerate(images)}
    changes, comparisons = np.zeros(len(images)), np.zeros(len(images))
    changed: list[dict[str, dict[str, list]]] = [{} for _ in images]
    for of_model in answers:
        for condition in conditions:
            for key in keys:
                answer = of_model.corrupted[condition].get(key)
                if answer is None:
                    continue
                row = row_of_image[key[0]]
                comparisons[row] += 1
                if answer != of_model.base[key]:
                    changes[row] += 1
                    changed[row].setdefault(of_model.model, {})[condition] = [of_model.base[key], answer]
    return changes / np.maximum(comparisons, 1), changed


def _has_corruptions(run: Run, task: str) -> bool:
    return any(variant.corruption for variant in run.described.get(task, {}).values())


def _answers(run: Run, task: str) -> Answers:
    import pyarrow.compute

    results = run.file_of(task)
    file = results.table
    table = read_rows(file, "the rows that `rococo evaluate` writes")
    table = table.filter(pyarrow.compute.field("task") == results.tasks[task])
    answer = next((name for name in _ANSWERS if name in table.column_names
                   and table.column(name).null_count < table.num_rows), None)  # fmt: skip
    if answer is None:
        raise InputError(file, "answers", f"none of {task}", f"a column {' or '.join(_ANSWERS)}")
    names = [name for name in _KEYS if name in table.column_names]
    answers: dict[str, dict[tuple, Any]] = {}
    wrong_text = _WRONG_TEXT if answer == "chosen" and _WRONG_TEXT in table.column_names else answer
    fields = ("part", "corruption", "severity")
    absent = [None] * len(table)
    columns = [
        table.column(name).to_pylist() if name in table.column_names else absent
        for name in (*names, wrong_text, *fields, answer)
    ]
    for *key, wrong, part, corruption, severity, given_answer in zip(*columns, strict=True):
        if corruption:
            if given_answer == "wrong" and wrong != given_answer:
                given_answer = f"wrong: {wrong}"
            images = Variant(corruption=corruption, severity=severity or 0).name
            answers.setdefault(images, {})[(*key, part or "")] = given_answer
    if UNCORRUPTED not in answers:
        raise InputError(file, task, "no uncorrupted images", "results with corruptions")
    return Answers(run.label, answers.pop(UNCORRUPTED), answers)


def _vectors(path: str, images: Sequence[str]) -> np.ndarray:
    form = "a file of `rococo embed`"
    arrays = load_arrays(path, form)
    if not isinstance(arrays, dict) or not {"image_names", "image_embeddings"} <= arrays.keys():
        raise InputError(path, "arrays", "other arrays than image_names and image_embeddings", form)
    names, vectors = arrays["image_names"].tolist(), arrays["image_embeddings"]
    place = {name: row for row, name in enumerate(names)}
    missing = [image for image in images if image not in place]
    if missing:
        raise InputError(path, "images", f"no embedding of {missing[0]}", f"one for each of {len(images)} images")
    return np.asarray(vectors[[place[image] for image in images]], np.float64)


def select_greedily(
    inconsistency: Float[np.ndarray, " images"],
    vectors: Float[np.ndarray, "images width"] | None,
    count: int,
    weight: float,
) -> tuple[Int[np.ndarray, " chosen"], Float[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]:
    """Return the selected images in order, their distance to the nearest one selected before, and its index or -1.

    Of equal images the first is selected. Without vectors, and for the first image, only inconsistency counts.

    Args:
        inconsistency: v, from 0 to 1.
        vectors: embeddings of the images, of any length.
        count: maximum number of images.
        weight: a, from 0 to 1.
    """
    is_candidate = inconsistency > 0
    unit = None
    if vectors is not None:
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit = vectors / np.where(norms > 0, norms, 1.0)
    distance, nearest = np.full(len(inconsistency), np.inf), np.full(len(inconsistency), -1)
    selected, distances, nearest_of_selected = [], [], []
    while is_candidate.any() and len(selected) < count:
        spread = distance if selected and unit is not None else np.zeros(len(inconsistency))
        # Rounded, so that the order of summation does not decide between equal scores.
        score = np.where(is_candidate, np.round(weight * inconsistency + (1 - weight) * spread, 12), -np.inf)
        one = int(score.argmax())
        is_candidate[one] = False
        selected.append(one)
        distances.append(distance[one])
        nearest_of_selected.append(nearest[one])
        if unit is not None:
            to_selected = 1.0 - unit @ unit[one]
            nearest = np.where(to_selected < distance, one, nearest)
            distance = np.minimum(to_selected, distance)
    return np.array(selected, int), np.array(distances), np.array(nearest_of_selected, int)
