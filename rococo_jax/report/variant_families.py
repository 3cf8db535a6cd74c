"""What a variant's name says about it: a corrupted image set, the mean over them, a mixed gallery, or the control.

    fog_3           images under one corruption at one severity
    uncorrupted     the same cut without one, their baseline
    corruptions_3   the mean over all kinds of severity 3
    mix_0.9, patch_0.9, control

Any other name stands for altered captions.
"""

import re

from rococo_jax.benchmarks.image_sets import UNCORRUPTED
from rococo_jax.benchmarks.rococo.mixed_galleries import parse_mix
from rococo_jax.benchmarks.settings import CONTROL
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES

_NUMBERED = re.compile(r"(\w+)_(\d)")
_POOLED = "corruptions"


def corruption_of(variant: str) -> tuple[str, int] | None:
    """Kind and severity of a corrupted image set.

    >>> corruption_of("fog_3"), corruption_of("fog_7"), corruption_of("corruptions_3"), corruption_of("danger")
    (('fog', 3), None, None, None)
    """
    kind, severity = _numbered(variant)
    return (kind, severity) if kind in CORRUPTIONS else None


def pooled_severity(variant: str) -> int | None:
    """The severity over whose kinds the variant is the mean.

    >>> pooled_severity("corruptions_3"), pooled_severity("fog_3")
    (3, None)
    """
    kind, severity = _numbered(variant)
    return severity if kind == _POOLED else None


def pooled(severity: int) -> str:
    """The variant that is the mean over all kinds of that severity."""
    return f"{_POOLED}_{severity}"


def _numbered(variant: str) -> tuple[str | None, int]:
    found = _NUMBERED.fullmatch(variant)
    if found is None or int(found[2]) not in SEVERITIES:
        return None, 0
    return found[1], int(found[2])


def is_about_corruption(variant: str) -> bool:
    """Whether the variant belongs to the corruptions, their means and their baseline included."""
    return variant == UNCORRUPTED or corruption_of(variant) is not None or pooled_severity(variant) is not None


def mix_of(variant: str) -> tuple[str, float] | None:
    """Method and ratio of a mixed gallery, the control included: it is a blend of ratio 1.

    >>> mix_of("patch_0.9"), mix_of("control"), mix_of("danger")
    (('patch', 0.9), ('mix', 1.0), None)
    """
    if variant == CONTROL:
        return "mix", 1.0
    try:
        return parse_mix(variant)
    except InputError:
        return None


def variant_note(variant: str) -> str | None:
    """What a reader must know of a variant of images; None for captions, whose names say it."""
    if variant == CONTROL:
        return (
            "every image once more, squashed to a square and compressed only, nothing mixed in: what preprocessing "
            "alone does. It shows the same as its original, so the first place between the two is close to chance, and "
            "a mixed variant says something about mixing only beside it"
        )
    if (mix := mix_of(variant)) is not None:
        method, ratio = mix
        other = f"{1 - ratio:.10g}"
        if method == "mix":
            return (
                f"every image once more, {ratio:.10g} of it blended with {other} of another image, beside the originals"
            )
        return (
            f"every image once more with a box of another image, {other} of the area before it is clipped at the "
            "border, beside the originals"
        )
    return None
