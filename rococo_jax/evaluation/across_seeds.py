"""Runs of several seeds beside each other, from the `per_query.parquet` of each: values, and on draws of images.

Images are drawn with replacement as in `metrics.intervals`; the queries of an image come and go together, and all runs
are drawn with the same images. So an interval of a mean over runs says what other images would have given, and the
spread over runs what other seeds would have.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.metrics.intervals import RESAMPLES, image_draws

METRICS = ("r1", "fr1")

# Task and variant.
Question = tuple[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class PerImage:
    """One run's hits, summed over the queries of each image.

    Attributes:
        images: their names, sorted.
        hits: task and variant -> metric -> hits of each image times 100.
        queries: task and variant -> queries of each image.
    """

    images: tuple[str, ...]
    hits: Mapping[Question, Mapping[str, Float[np.ndarray, " images"]]]
    queries: Mapping[Question, Float[np.ndarray, " images"]]


def read_per_image(folder: str | Path) -> PerImage:
    """R@1 and FR@1, or OTA, of every image, from the `per_query.parquet` in a folder."""
    import pyarrow.parquet as pq

    path = Path(folder) / PER_QUERY
    counted = [name for name in ("rank", "top1_kind", "chosen") if name in pq.read_schema(path).names]
    table = pq.read_table(path, columns=["task", "variant", "image", *counted])
    task, variant, image = (np.array(table[name].to_pylist()) for name in ("task", "variant", "image"))
    values = {}
    if "rank" in counted:
        # Items of a choice have no rank.
        rank = np.array(table["rank"].to_pylist(), float)
        kind = np.array([each or "" for each in table["top1_kind"].to_pylist()])
        values["r1"], values["fr1"] = (rank <= 1, ~np.isnan(rank)), (np.char.endswith(kind, "altered"), kind != "")
    if "chosen" in counted:
        chosen = np.array([each or "" for each in table["chosen"].to_pylist()])
        values["ota"] = (chosen == "right", chosen != "")
    names, place = np.unique(image, return_inverse=True)
    hits, queries = {}, {}
    for key in dict.fromkeys(zip(task.tolist(), variant.tolist(), strict=True)):
        rows = (task == key[0]) & (variant == key[1])
        queries[key] = np.bincount(place[rows], minlength=len(names)).astype(float)
        hits[key] = {
            name: 100 * np.bincount(place[rows], hit[rows], len(names))
            for name, (hit, applies) in values.items()
            if applies[rows].all()
        }
    return PerImage(tuple(names.tolist()), hits, queries)


def draws_of(runs: Sequence[PerImage], question: Question | None = None) -> Float[np.ndarray, "draws images"]:
    """How often each image is in each draw; with a question, its images alone are drawn.

    Raises:
        InputError: the runs were evaluated on different images.
    """
    if any(run.images != runs[0].images for run in runs):
        sizes = sorted({len(run.images) for run in runs})
        raise InputError("runs", "images", f"different ones ({sizes} of them)", "runs evaluated on the same images")
    asked = np.ones(len(runs[0].images), bool) if question is None else runs[0].queries[question] > 0
    draws = np.zeros((RESAMPLES, len(asked)))
    draws[:, asked] = image_draws(int(asked.sum()))
    return draws


def over_draws(
    runs: Sequence[PerImage], question: Question, metric: str, draws: Float[np.ndarray, "draws images"]
) -> tuple[Float[np.ndarray, " runs"], Float[np.ndarray, "draws runs"]]:
    """A metric of each run in per cent, and the same on every draw."""
    sums = np.stack([run.hits[question][metric] for run in runs], axis=1)
    counts = runs[0].queries[question]
    return sums.sum(0) / counts.sum(), draws @ sums / (draws @ counts)[:, None]


def interval(drawn: Float[np.ndarray, " draws"]) -> list[float]:
    """The 95 % interval of values over draws."""
    return [float(value) for value in np.percentile(drawn, [2.5, 97.5])]


def spread(each: Float[np.ndarray, " runs"]) -> float | None:
    """The sample standard deviation over runs; None of a single one."""
    return float(each.std(ddof=1)) if len(each) > 1 else None
