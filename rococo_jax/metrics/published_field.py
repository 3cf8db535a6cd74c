"""The field: published figures of 202 CLIP checkpoints, as the backdrop of a model's own.

    line        Huber regression of a benchmark's score on R@1 of COCO, image to text (k = 1.345, scale from the median
                absolute residual), by iterated reweighting (Huber 1964)
    above       score - line, in points, with the 95 % interval of the line over bootstrap draws of checkpoints

The table is made by `tools/build_published_field.py` and names its source. Its scores average the parts of a benchmark
as their authors did, so only large differences say something.
"""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
from jaxtyping import Float

from rococo_jax.errors import unknown_name

FORMAT = "rococo_jax.published_field 1"
FIELD = Path(__file__).parent / "assets" / "published_field.json"
RECOGNITION = "coco_i2t"
COLUMNS = (
    *("aro", "colorswap", "crepe", "eqben", "imagecode", "mmvp_vlm", "sugarcrepe", "svo_probes", "valse", "whatsup"),
    *("winoground", RECOGNITION, "coco_t2i", "imagenet"),
)
# Column -> task, variant and metric of ours.
MEASURED = {
    **{name: (name, "mean", "ota") for name in ("aro", "crepe", "sugarcrepe", "valse", "whatsup")},
    **{name: (name, "mean", "group_score") for name in ("colorswap", "eqben", "winoground")},
    **{name: (name, "mean", "image_score") for name in ("imagecode", "svo_probes")},
    "mmvp_vlm": ("mmvp", "mean", "image_score"),
    RECOGNITION: ("image_to_text", "clean", "r1"),
    "coco_t2i": ("text_to_image", "clean", "r1"),
}
_HUBER, _ROUNDS, _DRAWS = 1.345, 30, 200


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """Published figures in percent.

    Attributes:
        source: where they are from.
        names: of the checkpoints, architecture and data.
        figures: by column.
    """

    source: str
    names: tuple[str, ...]
    figures: dict[str, Float[np.ndarray, " checkpoints"]]

    def of(self, name: str) -> dict[str, float]:
        """The figures of one checkpoint. Raises InputError: it is not known; the nearest is suggested."""
        known = {each.lower(): place for place, each in enumerate(self.names)}
        requested = " ".join(name.replace("/", " ").lower().split())
        if requested not in known:
            raise unknown_name("against", "checkpoint", name, self.names)
        return {column: float(values[known[requested]]) for column, values in self.figures.items()}


@functools.cache
def published_field() -> Field:
    """The table that comes with the package."""
    value = json.loads(FIELD.read_text(encoding="utf-8"))
    names, *columns = zip(*value["rows"], strict=True)
    figures = {name: np.array(column) for name, column in zip(value["columns"][1:], columns, strict=True)}
    return Field(value["source"], names, figures)


def huber_line(x: Float[np.ndarray, " points"], y: Float[np.ndarray, " points"]) -> tuple[float, float]:
    """Slope and intercept of the robust line."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    weights, line = np.ones(len(x)), np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        line = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        residual = np.abs(y - design @ line)
        scale = max(np.median(residual) / 0.6745, 1e-9)
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(residual, 1e-12))
    return float(line[0]), float(line[1])


def above_the_line(column: str, recognition: float, score: float) -> tuple[float, float, float]:
    """`(points above the line, low, high)` of a model; the interval is that of the line at its place."""
    field, rng = published_field(), np.random.default_rng(0)
    x, y = field.figures[RECOGNITION], field.figures[column]
    slope, intercept = huber_line(x, y)
    drawn = []
    for _ in range(_DRAWS):
        rows = rng.integers(0, len(x), len(x))
        each = huber_line(x[rows], y[rows])
        drawn.append(score - each[0] * recognition - each[1])
    low, high = np.percentile(drawn, [2.5, 97.5])
    return score - slope * recognition - intercept, float(low), float(high)
