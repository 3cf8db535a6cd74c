"""Compare results of OpenAI's CLIP ViT-B/32 with the published figures, line by line, to check an installation.

Source of the figures: the log in the public code of RoCOCO (arXiv 2304.10727, "RoCOCO: Robustness Benchmark of MS-COCO
to Stress-test Image-Text Matching Models") of its run on OpenAI's CLIP ViT-B/32, the 5,000 images of the Karpathy test
split of MS-COCO and the published annotation files. The log names the clean run and the mixed gallery; its three
altered runs of image-to-text carry no variant's name. A line without a name is compared with the variant whose figures
are nearest, each variant used once.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, object_of
from rococo_jax.perturb.text import VARIANTS

MODEL = "OpenAI CLIP ViT-B/32"
PROTOCOL = "paper"
IMAGES, CAPTIONS, ALTERED = 5000, 25_010, 25_000

METRICS = ("r1", "r5", "r10", "fr1")


@dataclasses.dataclass(frozen=True)
class PublishedLine:
    """One line of the log, in percent. `variants`: those it may belong to, several where the log does not name it."""

    task: str
    variants: tuple[str, ...]
    r1: float
    r5: float
    r10: float
    fr1: float


LINES = (
    PublishedLine("image_to_text", ("clean",), 50.12, 74.66, 83.04, 0.0),
    PublishedLine("image_to_text", VARIANTS, 37.00, 66.72, 76.50, 33.48),
    PublishedLine("image_to_text", VARIANTS, 36.88, 66.68, 76.52, 34.34),
    PublishedLine("image_to_text", VARIANTS, 36.98, 66.70, 76.54, 33.48),
    PublishedLine("text_to_image", ("mix_0.9",), 19.84, 46.28, 57.34, 37.02),
)

TOLERANCE = 0.1  # points, as the figures are printed
# A difference of binary fractions: 50.22 - 50.12 is a little above 0.1.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class ComparedLine:
    """A published line and the results of the variant it is compared with, None where there is no candidate.

    `found` is metric -> percentage; empty without a variant.
    """

    line: PublishedLine
    variant: str | None
    found: dict[str, float]

    @property
    def differences(self) -> dict[str, float]:
        """Found minus published, in points."""
        return {name: self.found[name] - getattr(self.line, name) for name in self.found}

    def is_near(self, metric: str) -> bool:
        """Whether that metric is within the tolerance."""
        return abs(self.differences[metric]) <= TOLERANCE + _ROUNDING

    @property
    def matches(self) -> bool:
        """Whether every metric is there and within the tolerance."""
        return bool(self.found) and all(map(self.is_near, self.found))


def compare_with_published(results: Mapping[str, Any], path: Path) -> list[ComparedLine]:
    """Pair every published line with a variant of the results.

    Raises InputError, which names `path`, for results of another protocol or of other sizes than the published.
    """
    refuse_other_conditions(results, path)
    compared = []
    for key, group in itertools.groupby(LINES, key=lambda line: (line.task, line.variants)):
        task, variants = key
        there = {name: results["tasks"][task][name] for name in variants if name in results["tasks"].get(task, {})}
        compared += _nearest(list(group), there)
    return compared


def _nearest(lines: Sequence[PublishedLine], there: Mapping[str, Mapping[str, Any]]) -> list[ComparedLine]:
    """The assignment of variants to most lines, of these with the least total difference."""
    choices = [*there, *[None] * len(lines)]

    def compared(line: PublishedLine, variant: str | None) -> ComparedLine:
        percentages = {} if variant is None else {name: float(there[variant][name]) for name in METRICS}
        return ComparedLine(line, variant, percentages)

    def cost(assigned: Sequence[ComparedLine]) -> tuple[int, float]:
        without = sum(each.variant is None for each in assigned)
        away = sum((abs(points) for each in assigned for points in each.differences.values()), 0.0)
        return without, away

    # At most four variants and three lines.
    orders = itertools.permutations(choices, len(lines))
    return list(min(([compared(*pair) for pair in zip(lines, order, strict=True)] for order in orders), key=cost))


def refuse_other_conditions(results: Mapping[str, Any], path: Path) -> None:
    """Raise InputError where protocol, gallery or sizes differ from the published ones."""
    if results["protocol"] != PROTOCOL:
        raise InputError(path, "protocol", results["protocol"], f"{PROTOCOL}: the published figures are of no other")
    data = (results.get("data") or {}).get("rococo") or {}
    coverage = object_of(data.get("coverage"))
    if coverage.get("complete") is False or data.get("image_count", IMAGES) != IMAGES:
        found = f"{data.get('image_count')} of {coverage.get('wanted', IMAGES)} images"
        raise InputError(path, "gallery", found, f"all {IMAGES:,}: recall in a smaller gallery is another figure")
    sizes = results.get("sizes")
    if not isinstance(sizes, dict):
        raise InputError(path, "sizes", "nothing", "sizes of the galleries, as `rococo evaluate` writes them")
    for line in LINES:
        for variant in line.variants:
            own = sizes.get(line.task, {}).get(variant)
            wanted = _sizes(line.task, variant)
            if own is not None and {name: own.get(name) for name in wanted} != wanted:
                found = ", ".join(f"{own.get(name)} {name}" for name in wanted)
                published = ", ".join(f"{size} {name}" for name, size in wanted.items())
                raise InputError(path, f"sizes: {line.task}: {variant}", found, f"{published}, as published")


def _sizes(task: str, variant: str) -> dict[str, int]:
    if task == "text_to_image":
        return {"queries": CAPTIONS, "gallery": IMAGES if variant == "clean" else 2 * IMAGES}
    return {"queries": IMAGES, "gallery": CAPTIONS if variant == "clean" else CAPTIONS + ALTERED}
