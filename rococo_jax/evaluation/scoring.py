"""Scores embeddings or similarities of any model.

`score_similarities` and `score_embeddings` are `rococo score`: arrays in `.npy` files beside one annotation file, rows
in file order.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.rococo.annotations import Annotation, annotation_from_json
from rococo_jax.benchmarks.rococo.benchmark import CaptionTasks, tasks_of_file
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import Outcome, RankTask
from rococo_jax.benchmarks.tasks.pairs import AlteredPairs
from rococo_jax.benchmarks.tasks.rank import RankOutcome
from rococo_jax.data.captions import CaptionedImage, captions_from_json
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import make_fingerprint, make_results, per_query_table
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.similarity import (
    DifferenceStatistics,
    difference_statistics_of_matrix,
    rank_statistics_of_matrix,
)
from rococo_jax.storage import hash_file, read_json

# Vectors this near to length 1 are taken as they are: float32 rounding of a normalised vector is a thousand times less.
_UNIT_TOLERANCE = 1e-4
_ROWS_AT_ONCE = 4096


def rank_by_similarities(
    tasks: Iterable[RankTask],
    similarities: Float[np.ndarray, "images captions"],
    source: str = "similarities",
    place: Callable[[Rows], np.ndarray] = lambda rows: rows.index,
) -> list[Outcome]:
    """The outcomes of tasks from a matrix with one row an image and one column a caption of their tables.

    `place` gives the rows or columns of some of the tasks' rows; by default their index in their table.

    Raises:
        InputError: as `rank_statistics_of_matrix`.
    """
    outcomes = []
    for task in tasks:
        scores = similarities if task.asks_for_texts else similarities.T
        statistics = rank_statistics_of_matrix(
            scores,
            query_rows=place(task.queries),
            gallery_columns=place(task.gallery),
            query_group=task.query_group,
            gallery_group=task.gallery_group,
            gallery_altered=task.gallery_altered,
            source=source,
        )
        differences = None if task.pairs is None else _differences(task.pairs, scores, place)
        outcomes.append(RankOutcome(task, statistics, differences))
    return outcomes


def _differences(pairs: AlteredPairs, scores: np.ndarray, place: Callable[[Rows], np.ndarray]) -> DifferenceStatistics:
    return difference_statistics_of_matrix(
        scores,
        query_rows=place(pairs.queries),
        right_columns=place(pairs.right),
        wrong_columns=place(pairs.wrong),
        query_group=pairs.query_group,
        pair_group=pairs.group,
        also_shown_in=pairs.also_shown_in,
    )


def score_similarities(
    similarities: str | os.PathLike, annotation: str | os.PathLike, protocol: str, name: str | None = None
) -> tuple[dict[str, Any], Any]:
    """The contents of `results.json` and the per-query table, from a matrix of images by captions in a `.npy` file.

    The matrix is memory-mapped, and its numbers compared in the precision they have.

    Args:
        similarities: the file; higher is more similar.
        annotation: the captions file that the columns follow: image by image, originals, then altered captions.
        protocol: `paper` or `strict`.
        name: what to call the model; the file's stem by default.

    Raises:
        InputError: a file is missing or not what it should be, shapes disagree, or a score is NaN or infinite.
    """
    asked = tasks_of_file(read_score_annotation(annotation), protocol)
    matrix = read_array(similarities)
    _check_shape(matrix, similarities, (len(asked.images), len(asked.texts)), "images, captions")
    outcomes = rank_by_similarities(asked.tasks, matrix, str(similarities))
    files = {"similarities": similarities}
    return _results(name or Path(similarities).stem, protocol, files, annotation, asked, outcomes, [])


def score_embeddings(
    image_embeddings: str | os.PathLike,
    text_embeddings: str | os.PathLike,
    annotation: str | os.PathLike,
    protocol: str,
    name: str | None = None,
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> tuple[dict[str, Any], Any]:
    """The same from embeddings in two `.npy` files: one row an image, one row a caption in file order.

    Embeddings that are not of unit length are normalised, with a note in the results.
    """
    asked = tasks_of_file(read_score_annotation(annotation), protocol)
    images, texts = read_array(image_embeddings), read_array(text_embeddings)
    _check_shape(images, image_embeddings, (len(asked.images), None), "images, width")
    _check_shape(texts, text_embeddings, (len(asked.texts), images.shape[1]), "captions, width of the images'")
    notes = []
    images, texts = to_unit_length(images, image_embeddings, notes), to_unit_length(texts, text_embeddings, notes)
    embeddings = Embeddings({ORIGINALS: images, TEXTS: texts})
    outcomes = [task.score(embeddings, mesh) for task in asked.tasks]
    files = {"image_embeddings": image_embeddings, "text_embeddings": text_embeddings}
    return _results(name or Path(image_embeddings).stem, protocol, files, annotation, asked, outcomes, notes)


def read_score_annotation(path: str | os.PathLike) -> Annotation | list[CaptionedImage]:
    """An annotation in the published form or our own, or plain captions in the Karpathy form.

    The published form is recognised by its name, or by most of its lists having 10 or 11 captions.

    Raises:
        InputError: it cannot be read, or a list has a length that its form does not know.
    """
    path = Path(path)
    value = read_json(path, "an annotation or captions file")
    if not isinstance(value, list) or any(isinstance(item, Mapping) and "originals" in item for item in value):
        return annotation_from_json(value, path)
    items = captions_from_json(value, path)
    published = sum(len(item.captions) in (10, 11) for item in items)
    if path.stem in VARIANTS or published * 2 > len(items):
        return annotation_from_json(value, path)
    return items


def read_array(path: str | os.PathLike) -> np.ndarray:
    """Memory-maps a two-dimensional `.npy` file of floating-point numbers. Nothing is ever unpickled.

    Raises:
        InputError: it is missing, no whole `.npy` file, or holds something else.
    """
    path, wanted = Path(path), "a .npy file of float16, float32 or float64"
    if not path.is_file():
        raise InputError(path, "file", "a folder" if path.is_dir() else "nothing there", wanted)
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # NumPy evaluates the header as Python, and lets its errors through
        found = "Python objects" if "object" in str(error).lower() else f"something else ({error})"[:200]
        raise InputError(path, "contents", found, f"{wanted}, whole") from None
    if array.dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise InputError(path, "numbers", array.dtype, wanted)
    if array.ndim != 2:
        raise InputError(path, "shape", array.shape, "two dimensions")
    return array


def _check_shape(array: np.ndarray, path: str | os.PathLike, wanted: tuple[int, int | None], axes: str) -> None:
    if any(length not in (size, None) for size, length in zip(array.shape, wanted, strict=True)):
        lengths = ", ".join("any" if length is None else str(length) for length in wanted)
        raise InputError(path, "shape", array.shape, f"({lengths}) for ({axes}) of the annotation")


def to_unit_length(rows: np.ndarray, path: str | os.PathLike, notes: list[str]) -> np.ndarray:
    """The rows with length 1 in float32; the memory map itself where they have it already.

    Raises InputError for a row of zeros, or one that is not finite.
    """
    blocks = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.concatenate([np.linalg.norm(rows[block].astype(np.float64), axis=1) for block in blocks])
    if not np.isfinite(norms).all():
        raise InputError(path, f"row {np.flatnonzero(~np.isfinite(norms))[0]}", "NaN or infinite values", "numbers")
    if not norms.all():
        raise InputError(path, f"row {np.flatnonzero(norms == 0)[0]}", "a vector of zeros", "a vector with a direction")
    if np.abs(norms - 1).max() <= _UNIT_TOLERANCE:
        return rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("="))
    notes.append(
        f"{Path(path).name}: embeddings of length {norms.min():.4g} to {norms.max():.4g} were brought to length 1"
    )
    unit = np.empty(rows.shape, np.float32)
    for block in blocks:
        unit[block] = rows[block].astype(np.float64) / norms[block, None]
    return unit


def _results(
    name: str,
    protocol: str,
    files: Mapping[str, str | os.PathLike],
    annotation: str | os.PathLike,
    asked: CaptionTasks,
    outcomes: list[Outcome],
    notes: list[str],
) -> tuple[dict[str, Any], Any]:
    fingerprint = make_fingerprint(
        model={kind: hash_file(path) for kind, path in files.items()},
        data={"rococo": {"annotation": hash_file(annotation)}},
        protocol=protocol,
    )
    if protocol == "strict":
        notes = [*notes, "strict: captions were read by the model as the file has them; only no-ops could be left out"]
    results = make_results(name, protocol, fingerprint, outcomes, [*asked.notes, *notes])
    return results, per_query_table(outcome.rows(asked) for outcome in outcomes)
