"""Out-of-distribution detection: how well a score separates images of the classes (in) from other images (out).

    mcm        max softmax(z / T), T = 1 on cosines (arXiv 2211.13445)
    max_logit  max z
    energy     T ln sum exp(z / T), T = 1 (arXiv 2010.03759)
    entropy    minus the entropy of softmax(z)

AUROC counts ties one half. AUPR is average precision with the in-images, or the out-images, as positives. FPR95 is the
share of out-images above the highest threshold that 95 % of the in-images reach. Intervals resample both sets.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from rococo_jax.metrics.class_statistics import ClassStatistics
from rococo_jax.metrics.intervals import RESAMPLES, SEED, Interval, draw_blocks, percentile_ends
from rococo_jax.metrics.metric import Metric

_SCORES = {"mcm": "MCM", "max_logit": "max logit", "energy": "energy", "entropy": "entropy"}
_MEASURES = (
    ("auroc", "AUROC", "higher", "how often an in-image scores higher than an out-image; 50 is chance"),
    ("aupr_in", "AUPR in", "higher", "average precision for in-images; chance is their share"),
    ("aupr_out", "AUPR out", "higher", "average precision for out-images; chance is their share"),
    ("fpr95", "FPR95", "lower", "out-images above the threshold that 95 % of the in-images reach"),
)
METRICS = tuple(
    Metric(
        f"{name}_{score}",
        f"{label}, {score_label}",
        better,
        "%",
        f"{definition}, by {score_label}",
        "benchmark",
        lambda shares: shares,
    )
    for score, score_label in _SCORES.items()
    for name, label, better, definition in _MEASURES
)
_RECALL = 0.95
# Draws times images; larger sets have fewer draws, but at least 200.
_MAX_DRAWS_TIMES_IMAGES = 5 * 10**7
_AT_ONCE = 2**22


def scores_of(statistics: ClassStatistics) -> dict[str, Float[np.ndarray, " images"]]:
    """Return the scores of each image; a higher score means more likely an image of the classes."""
    scores = {"mcm": statistics.mcm, "max_logit": statistics.max_logit, "energy": statistics.energy}
    return scores | {"entropy": -statistics.raw_entropy}


def count_sides(columns: Mapping[str, np.ndarray]) -> "OodScores":
    """Return the scores of both sides from columns of scores and the column `inside`."""
    inside = columns["inside"].astype(bool)
    ins, outs = ({name: columns[name][side] for name in _SCORES} for side in (inside, ~inside))
    return OodScores(ins, outs)


def separation(
    score: Float[np.ndarray, " both"],
    weight_in: Float[np.ndarray, "draws both"],
    weight_out: Float[np.ndarray, "draws both"],
) -> dict[str, Float[np.ndarray, " draws"]]:
    """Return the four measures, from 0 to 1, of weighted images."""
    order = np.argsort(-score, kind="stable")
    begins = np.flatnonzero(np.diff(score[order], prepend=np.nan) != 0)
    ins, outs = (np.add.reduceat(each[:, order], begins, axis=1) for each in (weight_in, weight_out))
    true, false = ins.cumsum(axis=1), outs.cumsum(axis=1)
    total_in, total_out = true[:, -1:], false[:, -1:]
    below = total_out - false
    reached = (true >= _RECALL * total_in - 1e-9 * total_in).argmax(axis=1)
    # The same from the lowest score upwards, for the out-images.
    out_of, in_of = below + outs, total_in - true + ins
    with np.errstate(invalid="ignore"):
        precision = np.where(true + false > 0, true / (true + false), 0.0)
        other = np.where(out_of + in_of > 0, out_of / (out_of + in_of), 0.0)
    return {
        "auroc": (ins * (below + outs / 2)).sum(axis=1) / (total_in * total_out)[:, 0],
        "aupr_in": (ins * precision).sum(axis=1) / total_in[:, 0],
        "aupr_out": (outs * other).sum(axis=1) / total_out[:, 0],
        "fpr95": false[np.arange(len(false)), reached] / total_out[:, 0],
    }


@dataclasses.dataclass(frozen=True, eq=False)
class OodScores:
    """Scores of in- and out-images: counts whose metrics are no functions of sums (`metrics.counts`).

    Attributes:
        ins, outs: scores of the in-images and of the out-images, by name of the score.
    """

    ins: Mapping[str, Float[np.ndarray, " ins"]]
    outs: Mapping[str, Float[np.ndarray, " outs"]]

    metrics = types.MappingProxyType({metric.name: metric for metric in METRICS})
    primary = METRICS[0].name

    def __len__(self) -> int:
        return sum(len(next(iter(each.values()))) for each in (self.ins, self.outs))

    def values(self, baseline: "OodScores | None" = None, *, over_seeds: bool = False) -> dict[str, float]:
        """Return every measure of every score, in percent; these have neither a drop nor seeds."""
        sizes = [len(next(iter(each.values()))) for each in (self.ins, self.outs)]
        return {name: float(each[0]) for name, each in self._measured(*(np.ones((1, size)) for size in sizes)).items()}

    def intervals(
        self, baseline: "OodScores | None" = None, *, resamples: int = RESAMPLES, seed: int = SEED
    ) -> dict[str, Interval]:
        """Return `[low, high]` of each metric, in percent."""
        return {name: percentile_ends(values) for name, values in self.bootstrap(resamples, seed).items()}

    def with_unit_names(self, names: Any) -> "OodScores":
        """Return the scores: each image is a unit, and none is shared with another model."""
        return self

    def draws_of(self, resamples: int) -> int:
        """Return the number of draws: `resamples`, or fewer for many images."""
        return max(200, min(resamples, _MAX_DRAWS_TIMES_IMAGES // len(self)))

    @property
    def resamples(self) -> dict[str, int]:
        """Number of draws of the interval of each metric."""
        return dict.fromkeys(self.metrics, self.draws_of(RESAMPLES))

    def bootstrap(self, resamples: int, seed: int) -> dict[str, Float[np.ndarray, " draws"]]:
        """Return the same for each bootstrap draw; in- and out-images are drawn separately."""
        sizes = [len(next(iter(each.values()))) for each in (self.ins, self.outs)]
        resamples = self.draws_of(resamples)
        step = max(1, _AT_ONCE // sum(sizes))
        sides = [draw_blocks(size, resamples, seed + side, step) for side, size in enumerate(sizes)]
        parts = [self._measured(*(each.astype(np.float64) for each in draws)) for draws in zip(*sides, strict=True)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _measured(self, weight_in: np.ndarray, weight_out: np.ndarray) -> dict[str, Float[np.ndarray, " draws"]]:
        no_in, no_out = np.zeros_like(weight_in), np.zeros_like(weight_out)
        ins, outs = np.concatenate([weight_in, no_out], axis=1), np.concatenate([no_in, weight_out], axis=1)
        return {
            f"{name}_{score}": 100.0 * value
            for score in self.ins
            for name, value in separation(np.concatenate([self.ins[score], self.outs[score]]), ins, outs).items()
        }

    def roc(self) -> dict[str, list[list[float]]]:
        """Return `[false positive rate, true positive rate]` along each score's curve, thinned."""
        curves = {}
        for score, ins in self.ins.items():
            outs = self.outs[score]
            # Thresholds at even steps of both rates, so that steep and flat parts of the curve have similar detail.
            at = np.concatenate([np.quantile(each, np.linspace(0, 1, 101)) for each in (ins, outs)])
            at = np.unique(at)[::-1]
            rates = [1 - np.searchsorted(np.sort(each), at, side="left") / len(each) for each in (outs, ins)]
            curves[score] = [[0.0, 0.0], *np.round(np.stack(rates, 1), 4).tolist()]
        return curves
