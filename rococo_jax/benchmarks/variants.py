"""What the name of a variant says, parsed once for all readers of results.

    danger    replace_rel    fog_3    replace_rel/fog_3    corruptions_3    uncorrupted    danger/unseen

Names of parts and of own variants may be anything, `fog_3` and `a/b` too. A name is that of a corruption only beside
what it was made of and its baseline (`clean` and `uncorrupted`, or `PART` and `PART/uncorrupted`), and that of unseen
images only beside the variant over all.
"""

import dataclasses
import re
from collections.abc import Iterable

from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES

CLEAN, CONTROL, MEAN, UNCORRUPTED, UNSEEN = "clean", "control", "mean", "uncorrupted", "unseen"
# The variant over the items of all parts.
ALL = "all"
ALL_KINDS = "corruptions"
_IMAGES = {UNCORRUPTED: (UNCORRUPTED, 0)}
_IMAGES |= {f"{kind}_{severity}": (kind, severity) for kind in (ALL_KINDS, *CORRUPTIONS) for severity in SEVERITIES}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One variant of a task.

    Attributes:
        part: of a benchmark on corrupted images; empty where all of it is meant.
        alteration: what is altered, or the part on its own images; `clean` for nothing, empty on corrupted images.
        corruption: kind, ALL_KINDS for the mean over kinds, UNCORRUPTED for their baseline; empty on other images.
        severity: 1 to 5, 0 without a corruption.
        unseen: whether images are left out that the model was trained on.
    """

    part: str = ""
    alteration: str = ""
    corruption: str = ""
    severity: int = 0
    unseen: bool = False

    @property
    def name(self) -> str:
        """The name in results.

        >>> Variant("swap_att", corruption="fog", severity=3, unseen=True).name
        'swap_att/fog_3/unseen'
        """
        images = f"{self.corruption}_{self.severity}" if self.severity else self.corruption
        return "/".join(filter(None, (self.part, self.alteration, images, UNSEEN * self.unseen)))

    @property
    def is_attack(self) -> bool:
        """Whether something is altered on purpose: not clean, the control, on corrupted images, or a second count."""
        return not self.unseen and self.alteration not in ("", CLEAN, CONTROL)

    @property
    def whole(self) -> str:
        """The name over all images, seen ones among them."""
        return dataclasses.replace(self, unseen=False).name

    @property
    def is_clean(self) -> bool:
        """Whether nothing is altered, of all images or of the unseen ones."""
        return self.alteration == CLEAN

    @property
    def mixing(self) -> tuple[str, float] | None:
        """Method and ratio of a mixed gallery; None for other alterations.

        >>> Variant(alteration="patch_0.9").mixing, Variant(alteration="mix_danger").mixing
        (('patch', 0.9), None)
        """
        match = re.fullmatch(r"(mix|patch)_(\d*\.?\d+)", self.alteration)
        return (match[1], float(match[2])) if match else None


def parse_variants(names: Iterable[str]) -> dict[str, Variant]:
    """The variants of one task by their names, which are told apart by one another.

    >>> parse_variants(["clean", "uncorrupted", "fog_3"])["fog_3"]
    Variant(part='', alteration='', corruption='fog', severity=3, unseen=False)
    >>> parse_variants(["mean", "fog_3"])["fog_3"].alteration
    'fog_3'
    """
    names = list(names)
    return {name: _parse(name, frozenset(names)) for name in names}


def _parse(name: str, names: frozenset[str]) -> Variant:
    whole = name.removesuffix(f"/{UNSEEN}")
    if whole != name and whole in names:
        return dataclasses.replace(_parse(whole, names), unseen=True)
    part, _, images = name.rpartition("/")
    if images in _IMAGES and {part or CLEAN, Variant(part, corruption=UNCORRUPTED).name} <= names:
        return Variant(part, "", *_IMAGES[images])
    return Variant(alteration=name)
