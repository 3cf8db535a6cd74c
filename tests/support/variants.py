"""The part `variants` of results that tests write by hand, from names that follow the usual forms."""

from collections.abc import Iterable
from typing import Any

from rococo_jax.benchmarks.variants import ALL_KINDS, UNCORRUPTED, Variant
from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES

_IMAGES = {UNCORRUPTED: Variant(corruption=UNCORRUPTED)} | {
    variant.name: variant
    for kind in (ALL_KINDS, *CORRUPTIONS)
    for variant in (Variant(corruption=kind, severity=severity) for severity in SEVERITIES)
}


def describe(names: Iterable[str], parts: Iterable[str] = (), **pooled: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return fields of each variant by name.

    Args:
        names: of variants, such as `clean`, `fog_3`, `PART/fog_3` and `danger/unseen`.
        parts: names that are parts; the others are alterations.
        pooled: name of a mean over parts -> these parts.
    """
    parts, described = list(parts), {}
    for name in names:
        base = name.removesuffix("/unseen")
        part, _, images = base.rpartition("/")
        fields = (
            dict(_IMAGES[images].fields) if images in _IMAGES and base not in parts and part in ("", *parts) else {}
        )
        if fields and part:
            fields["part"] = part
        if not fields:
            fields = {"part" if base in parts else "alteration": base}
        if base in pooled:
            fields = {"pooled": base, "pooling": "parts", "of": list(pooled[base])}
        described[name] = fields | ({"unseen": True, "of": [base]} if base != name else {})
    return described
