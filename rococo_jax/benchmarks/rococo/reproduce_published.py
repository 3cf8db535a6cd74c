"""Results of OpenAI's CLIP ViT-B/32 beside the published ones, line by line: is this installation the benchmark's?

A published line without a variant's name is set beside the variant whose figures come nearest, each variant taken once.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.rococo.published_figures import (
    ALTERED,
    CAPTIONS,
    IMAGES,
    LINES,
    METRICS,
    PROTOCOL,
    PublishedLine,
)
from rococo_jax.errors import InputError

TOLERANCE = 0.1  # points, as the figures are printed
# A difference of binary fractions: 50.22 - 50.12 is a little above 0.1.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class ComparedLine:
    """A published line, and what the results say of the variant it was set beside.

    Attributes:
        line: as published.
        variant: None where the results have none that it could be.
        found: metric -> percentage; empty without a variant.
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
    """Every published line with its counterpart.

    Args:
        results: the contents of a `results.json`.
        path: of it, for the error line.

    Raises:
        InputError: the results are of another protocol, of a smaller gallery or of other sizes than the published.
    """
    refuse_other_conditions(results, path)
    compared = []
    for key, group in itertools.groupby(LINES, key=lambda line: (line.task, line.variants)):
        task, variants = key
        there = {name: results["tasks"][task][name] for name in variants if name in results["tasks"].get(task, {})}
        compared += _nearest(list(group), there)
    return compared


def _nearest(lines: Sequence[PublishedLine], there: Mapping[str, Mapping[str, Any]]) -> list[ComparedLine]:
    """The assignment of variants to lines with the most matches, among these with the least distance."""
    choices = [*there, *[None] * len(lines)]

    def compared(line: PublishedLine, variant: str | None) -> ComparedLine:
        found = {} if variant is None else {name: float(there[variant][name]) for name in METRICS}
        return ComparedLine(line, variant, found)

    def cost(assigned: Sequence[ComparedLine]) -> tuple[int, int, float]:
        without = sum(each.variant is None for each in assigned)
        away = sum((abs(points) for each in assigned for points in each.differences.values()), 0.0)
        return without, -sum(each.matches for each in assigned), away

    # At most four variants and three lines.
    found = itertools.permutations(choices, len(lines))
    return list(min(([compared(*pair) for pair in zip(lines, order, strict=True)] for order in found), key=cost))


def refuse_other_conditions(results: Mapping[str, Any], path: Path) -> None:
    """Raises InputError where the results cannot be those that were published, whatever the model."""
    if results["protocol"] != PROTOCOL:
        raise InputError(path, "protocol", results["protocol"], f"{PROTOCOL}: the published figures are of no other")
    data = (results.get("data") or {}).get("rococo") or {}
    coverage = data.get("coverage") if isinstance(data.get("coverage"), dict) else {}
    if coverage.get("complete") is False or data.get("image_count", IMAGES) != IMAGES:
        found = f"{data.get('image_count')} of {coverage.get('wanted', IMAGES)} images"
        raise InputError(path, "gallery", found, f"all {IMAGES:,}: recall in a smaller gallery is another figure")
    sizes = results.get("sizes")
    if not isinstance(sizes, dict):
        raise InputError(path, "sizes", "nothing", "sizes of the galleries, as `rococo evaluate` writes them")
    for line in LINES:
        for variant in line.variants:
            said = sizes.get(line.task, {}).get(variant)
            wanted = _sizes(line.task, variant)
            if said is not None and {name: said.get(name) for name in wanted} != wanted:
                found = ", ".join(f"{said.get(name)} {name}" for name in wanted)
                told = ", ".join(f"{size} {name}" for name, size in wanted.items())
                raise InputError(path, f"sizes: {line.task}: {variant}", found, f"{told}, as published")


def _sizes(task: str, variant: str) -> dict[str, int]:
    if task == "text_to_image":
        return {"queries": CAPTIONS, "gallery": IMAGES if variant == "clean" else 2 * IMAGES}
    return {"queries": IMAGES, "gallery": CAPTIONS if variant == "clean" else CAPTIONS + ALTERED}
