"""Task variants, described by typed fields; a variant's name in results is rendered from them, and never parsed.

    danger    replace_rel    fog_3    replace_rel/fog_3    corruptions_3    uncorrupted    danger/unseen    mean
    swap_att/bindings_both_known

The fields are columns of `per_query.parquet` and stand in the part `variants` of `results.json`.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

CLEAN, CONTROL, MEAN, UNCORRUPTED, UNSEEN = "clean", "control", "mean", "uncorrupted", "unseen"
# The variant over the items of all parts.
ALL = "all"
# The corruption of a variant that is the mean over kinds.
ALL_KINDS = "corruptions"


@dataclasses.dataclass(frozen=True)
class Variant:
    """Variant of a task.

    Attributes:
        part: part of the benchmark; empty where the benchmark has no parts, or all of it is meant.
        alteration: what is altered; `clean` for nothing, empty for parts and on corrupted images.
        corruption: kind; `corruptions` for the mean over kinds, `uncorrupted` for their baseline, empty on other
            images.
        severity: 1 to 5, 0 without a corruption.
        unseen: whether images are left out that the model was trained on.
        pooled: name of a variant that is made of several parts, such as `mean`; empty for the others.
        bindings: class of the items that are counted alone (`benchmarks.bindings`); empty for all items.
    """

    part: str = ""
    alteration: str = ""
    corruption: str = ""
    severity: int = 0
    unseen: bool = False
    pooled: str = ""
    bindings: str = ""

    @property
    def name(self) -> str:
        """The name in results.

        >>> Variant("swap_att", corruption="fog", severity=3, unseen=True).name
        'swap_att/fog_3/unseen'
        """
        images = f"{self.corruption}_{self.severity}" if self.severity else self.corruption
        bindings = self.bindings and f"bindings_{self.bindings}"
        names = (self.part, self.alteration, self.pooled, images, bindings, UNSEEN * self.unseen)
        return "/".join(filter(None, names))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that say something, as JSON values.

        >>> Variant("swap_att", corruption="fog", severity=3).fields
        {'part': 'swap_att', 'corruption': 'fog', 'severity': 3}
        """
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Variant":
        """Return the variant with these fields; others, and values of another type, are left out.

        >>> Variant.of({"corruption": "fog", "severity": 3, "baseline": "uncorrupted"}).name
        'fog_3'
        """
        types = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        return cls(**{name: fields[name] for name, kind in types.items() if type(fields.get(name)) is kind})

    @property
    def is_attack(self) -> bool:
        """Whether something is altered on purpose: not clean, the control, on corrupted images, or a second count."""
        return not self.unseen and self.alteration not in ("", CLEAN, CONTROL)

    @property
    def is_altered(self) -> bool:
        """Whether captions or galleries may be altered: neither clean nor the same on corrupted images."""
        return not self.is_clean and not self.corruption

    @property
    def whole(self) -> str:
        """The name over all items, those on seen images among them."""
        return dataclasses.replace(self, unseen=False, bindings="").name

    @property
    def is_subset(self) -> bool:
        """Whether only some of its items are counted: those on unseen images, or of one class of bindings."""
        return self.unseen or bool(self.bindings)

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
