"""Accuracy and calibration of class probabilities.

    top-K            the right class is among the K most probable, ties against it
    ties             the right class and another one are most probable, for example because the tokenizer maps both to
                     the same tokens; an error in top-1
    mean per class   mean over classes of their accuracy; over 64 classes or more, intervals weigh images by the whole
                     set's class sizes
    ECE              sum_b |sum_{i in b} (1[right] - confidence)| / N over 15 bins of confidence: of equal width,
                     (lo, hi] (Guo et al., arXiv 1706.04599), or of equal numbers of images (Nixon et al., 1904.01685)
    if calibrated    the mean ECE over 200 draws of the labels from the confidences: what so few images show by chance
    scaled           after temperature scaling with a temperature fitted on the other half of the images, which never
                     changes the predicted class
    majority class   always predicting the most frequent class, without looking at the image
    guessing         choosing at random among the K options of a question: the mean of 1 / K
    shape bias       N_shape / (N_shape + N_texture) over images whose outline and texture are of two classes;
                     predictions of neither class are excluded (Geirhos et al. 2019, arXiv 1811.12231)

Other formulas: `class_statistics`. The interval of ECE is that of `intervals.distance_interval`.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.metrics.choice import TIES
from rococo_jax.metrics.class_statistics import ClassStatistics
from rococo_jax.metrics.counts import Binned, Column
from rococo_jax.metrics.intervals import SEED
from rococo_jax.metrics.metric import Metric, Shares, percent, raw_mean

BINS = 15
_MANY = 64


_SHAPE_COLUMNS = ("saw_shape", "saw_texture")


def _per_class(shares: Shares) -> Float[np.ndarray, "*draws"]:
    if "per_class" in shares:
        return np.asarray(np.minimum(shares["per_class"], 100.0))
    counts = np.stack([shares[name] for name in shares if name.startswith("of_class_")])
    hits = np.stack([shares[name] for name in shares if name.startswith("hit_class_")])
    accuracies = np.where(counts > 0, 100.0 * hits / np.where(counts > 0, counts, 1.0), 0.0)
    return np.asarray(accuracies.sum(axis=0) / (counts > 0).sum(axis=0))


def _gaps(name: str) -> Callable[[Shares], Float[np.ndarray, "*draws"]]:
    return lambda shares: np.asarray(sum(np.abs(shares[f"{name}_{place}"]) for place in range(BINS)))


def _bias(shares: Shares) -> np.ndarray:
    return np.asarray(100.0 * shares["saw_shape"] / (shares["saw_shape"] + shares["saw_texture"]))


# Not a function of shares; it has no interval.
CALIBRATED = "ece_calibrated"
_LABEL_DRAWS = 200

SHAPE = (
    Metric(
        "shape_bias",
        "Shape bias",
        None,
        "%",
        "share of predictions by shape among predictions by shape or texture, where the two differ",
        "benchmark",
        _bias,
    ),
    percent(
        "saw_texture",
        "Texture",
        None,
        "the predicted class is that of the texture, where shape and texture differ",
        "benchmark",
    ),
)
METRICS = (
    percent("top1", "Top-1", "higher", "the right class is strictly the most probable", "benchmark"),
    *SHAPE,
    percent("top5", "Top-5", "higher", "the right class is among the five most probable", "benchmark"),
    Metric("per_class", "Mean per class", "higher", "%", "mean over classes of their top-1", "benchmark", _per_class),
    percent(
        "prior", "Majority class", None, "top-1 of always predicting the most frequent class, without the image", "ours"
    ),
    percent("guessing", "Guessing", None, "expected top-1 of a random option: the mean of 1 / K for K options", "ours"),
    percent("confidence", "Confidence", None, "mean probability of the most probable class", "benchmark"),
    Metric(
        "ece",
        "ECE",
        "lower",
        "%",
        "expected calibration error, 15 bins (lo, hi] of equal width",
        "benchmark",
        _gaps("ece"),
        is_distance=True,
    ),
    Metric(
        CALIBRATED,
        "ECE if calibrated",
        None,
        "%",
        "mean ECE of a model with these confidences that is perfectly calibrated: what so few images show by chance",
        "ours",
    ),
    Metric(
        "ece_mass",
        "ECE, equal mass",
        "lower",
        "%",
        "expected calibration error, 15 bins with equal numbers of images",
        "paper",
        _gaps("ece_mass"),
        is_distance=True,
    ),
    Metric(
        "ece_scaled",
        "ECE, scaled",
        "lower",
        "%",
        "ECE after temperature scaling, fitted on the other half of the images",
        "benchmark",
        _gaps("ece_scaled"),
        is_distance=True,
    ),
    Metric(
        "nll",
        "NLL",
        "lower",
        "",
        "mean negative log probability of the right class, in nats",
        "benchmark",
        raw_mean("nll"),
    ),
    Metric(
        "nll_scaled",
        "NLL, scaled",
        "lower",
        "",
        "NLL after temperature scaling, fitted on the other half of the images",
        "benchmark",
        raw_mean("nll_scaled"),
    ),
    Metric(
        "brier",
        "Brier",
        "lower",
        "",
        "mean squared distance of the probabilities from the one-hot label, 0 to 2",
        "benchmark",
        raw_mean("brier"),
    ),
    TIES,
)


def constants(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the ECE that a calibrated model with these confidences would have."""
    return {CALIBRATED: calibrated_ece(columns["confidence"], equal_width_bins(columns["confidence"]))}


def calibrated_ece(confidence: Float[np.ndarray, " images"], place: Int[np.ndarray, " images"]) -> float:
    """Return the mean ECE of a perfectly calibrated model, in percent: labels are drawn from the confidences.

    Args:
        place: bin of each image.

    >>> calibrated_ece(np.full(3, 1.0), np.zeros(3, int)), round(calibrated_ece(np.full(100, 0.5), np.zeros(100, int)))
    (0.0, 4)
    """
    if not len(confidence):
        return 0.0
    generator = np.random.default_rng(SEED)
    sums = [
        np.abs(np.bincount(place, (generator.random(len(confidence)) < confidence) - confidence)).sum()
        for _ in range(_LABEL_DRAWS)
    ]
    return float(100.0 * np.mean(sums) / len(confidence))


def equal_width_bins(confidence: Float[np.ndarray, " images"]) -> Int[np.ndarray, " images"]:
    """Return the bin (lo, hi] of each confidence.

    >>> equal_width_bins(np.array([0.0, 1 / 15, 0.07, 1.0])).tolist()
    [0, 0, 1, 14]
    """
    return np.clip(np.searchsorted(np.linspace(0, 1, BINS + 1), confidence, side="left") - 1, 0, BINS - 1)


def equal_mass_bins(confidence: Float[np.ndarray, " images"]) -> Int[np.ndarray, " images"]:
    """Return the bin of each confidence, with equal numbers of images per bin; equal confidences share a bin."""
    if not len(confidence):
        return np.zeros(0, int)
    edges = np.sort(confidence)[(np.arange(1, BINS) * len(confidence)) // BINS]
    return np.searchsorted(edges, confidence, side="right")


def reliability(columns: Mapping[str, np.ndarray]) -> dict[str, list[list[float | int]]]:
    """Return `[images, mean confidence, top-1]` of each bin of equal width, uncalibrated and after temperature scaling.

    Args:
        columns: as `image_counts` returns them.
    """
    curves = {}
    for name, confidence in (("as it is", columns["confidence"]), ("scaled", columns["scaled_confidence"])):
        place = equal_width_bins(confidence)
        count = np.bincount(place, minlength=BINS)
        sums = [np.bincount(place, values, BINS) for values in (confidence, columns["top1"].astype(float))]
        curves[name] = [[int(n), *(float(s / n) if n else 0.0 for s in each)]
                      for n, each in zip(count, np.stack(sums, 1), strict=True)]  # fmt: skip
    return curves


def image_counts(statistics: ClassStatistics, classes: int) -> dict[str, np.ndarray]:
    """Return the counted columns of each image; `label` is the index of its class, `classes` the number of classes."""
    columns = {"label": statistics.label, "classes": np.full(len(statistics), classes), **prediction_counts(statistics)}
    return columns | ({"top5": statistics.rank <= 5} if classes > 5 else {})


def prediction_counts(statistics: ClassStatistics) -> dict[str, np.ndarray]:
    """Return the counted columns that do not depend on whether all images have the same classes."""
    return {
        "top1": statistics.right,
        "confidence": statistics.confidence,
        "nll": statistics.nll,
        "brier": statistics.brier,
        "scaled_confidence": statistics.scaled_confidence,
        "scaled_nll": statistics.scaled_nll,
        "ties": statistics.tied,
    }


def shape_counts(
    statistics: ClassStatistics, texture: Int[np.ndarray, " images"]
) -> dict[str, Bool[np.ndarray, " images"]]:
    """Return whether each image was classified by shape and by texture, by column."""
    return dict(zip(_SHAPE_COLUMNS, shape_texture_hits(statistics, texture), strict=True))


def class_columns(columns: Mapping[str, np.ndarray]) -> dict[str, Column]:
    """Return the columns that `METRICS` are functions of.

    Bins of equal mass, class sizes and the majority class are those of these images.

    Args:
        columns: as `image_counts` returns them, and `shape_counts` where classes of texture are known; or as
            `prediction_counts` does, without the metrics of classes.
    """
    right = columns["top1"].astype(np.float64)
    gap, scaled_gap = right - columns["confidence"], right - columns["scaled_confidence"]
    present = {name: columns[name] for name in ("top5", "guessing", *_SHAPE_COLUMNS) if name in columns}
    return {
        "top1": right,
        **present,
        **(_columns_of_classes(columns, right) if "classes" in columns else {}),
        **{name: columns[name] for name in ("confidence", "nll", "brier", "ties")},
        "nll_scaled": columns["scaled_nll"],
        "ece": Binned(BINS, equal_width_bins(columns["confidence"]), gap),
        "ece_mass": Binned(BINS, equal_mass_bins(columns["confidence"]), gap),
        "ece_scaled": Binned(BINS, equal_width_bins(columns["scaled_confidence"]), scaled_gap),
    }


def metrics_of(columns: Mapping[str, Column], leads: Collection[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics that are functions of these columns."""
    names = {*columns, *(["per_class"] if "hit_class" in columns else [])}
    if any(np.any(columns[name]) for name in _SHAPE_COLUMNS if name in columns):
        names.add(SHAPE[0].name)
    return tuple(metric for metric in METRICS if metric.name in names)


def _columns_of_classes(columns: Mapping[str, np.ndarray], right: Float[np.ndarray, " images"]) -> dict[str, Column]:
    """Return the columns of the mean per class and of the majority class."""
    label, classes = columns["label"], int(columns["classes"].max(initial=0))
    of_class = np.bincount(label, minlength=classes)
    prior = {"prior": label == of_class.argmax()}
    if classes >= _MANY:
        present = max(1, int((of_class > 0).sum()))
        return {"per_class": right * len(label) / (present * np.maximum(of_class, 1)[label]), **prior}
    hits, ones = Binned(classes, label, right), Binned(classes, label, np.ones(len(label)))
    return {**prior, "hit_class": hits, "of_class": ones}


def shape_texture_hits(
    statistics: ClassStatistics, texture: Int[np.ndarray, " images"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images classified by shape and by texture, where the two differ."""
    conflict = statistics.label != texture
    return conflict & statistics.right, conflict & ~statistics.right & (statistics.predicted == texture)


def shape_shares(columns: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the numbers of images classified by shape and by texture, for each class of shape.

    Args:
        columns: as `image_counts` and `shape_counts` return them.
        classes: names, in the order of labels.
    """
    counts = [np.bincount(columns["label"][columns[name]], minlength=len(classes)) for name in _SHAPE_COLUMNS]
    return {name: [int(shape), int(texture)] for name, shape, texture in zip(classes, *counts, strict=True)}
