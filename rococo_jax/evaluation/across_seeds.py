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
from rococo_jax.metrics.intervals import image_draws

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
    """R@1 and FR@1 of every image, from the `per_query.parquet` in a folder."""
    import pyarrow.parquet as pq

    columns = ["task", "variant", "image", "rank", "top1_kind"]
    table = pq.read_table(Path(folder) / PER_QUERY, columns=columns)
    task, variant, image, rank, kind = (np.array(table[name].to_pylist()) for name in columns)
    names, place = np.unique(image, return_inverse=True)
    values = {"r1": rank <= 1, "fr1": np.char.endswith(kind.astype(str), "altered")}
    hits, queries = {}, {}
    for key in dict.fromkeys(zip(task.tolist(), variant.tolist(), strict=True)):
        rows = (task == key[0]) & (variant == key[1])
        queries[key] = np.bincount(place[rows], minlength=len(names)).astype(float)
        hits[key] = {name: 100 * np.bincount(place[rows], value[rows], len(names)) for name, value in values.items()}
    return PerImage(tuple(names.tolist()), hits, queries)


def draws_of(runs: Sequence[PerImage]) -> Float[np.ndarray, "draws images"]:
    """How often each image is in each draw.

    Raises:
        InputError: the runs were evaluated on different images.
    """
    if any(run.images != runs[0].images for run in runs):
        sizes = sorted({len(run.images) for run in runs})
        raise InputError("runs", "images", f"different ones ({sizes} of them)", "runs evaluated on the same images")
    return image_draws(len(runs[0].images)).astype(float)


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
