"""Balanced sets of altered captions as annotations: with every caption's alteration a true rewording of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions
from rococo_jax.benchmarks.rococo.generate import AlteredSet
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.perturb.text.balance import BalancedAlteration, BalancedAlterer
from rococo_jax.perturb.text.rewording import reword
from rococo_jax.storage import hash_json

NOT_BALANCED = "no two alterations of opposite gain, or too telling ones"
SURPLUS = "left out, so that as many altered captions are more probable as less"


@dataclass(frozen=True)
class BalancedSet(AlteredSet):
    """An `AlteredSet` with hard positives.

    Attributes:
        positives: rewordings, aligned with the items' originals; None where no rule applies.
    """

    positives: tuple[tuple[str | None, ...], ...] = ()

    def extra(self) -> list[dict[str, Any]]:
        """Further entries of the annotation's items."""
        return [{"positives": list(each)} for each in self.positives]


def balance_captions(
    images: Sequence[CaptionedImage], alterer: BalancedAlterer, on_progress: Callable[[int], None] | None = None
) -> BalancedSet:
    """Alters every caption once, and rewords every original once.

    Args:
        images: the images with their captions.
        alterer: the variant and operation.
        on_progress: called with the number of captions that are done.
    """
    items, alterations, positives, unaltered, all_made = [], [], [], Counter(), []
    for image in images:
        all_made.append([next(iter(alterer.alter(caption, image.captions)), None) for caption in image.captions])
        unaltered[NOT_BALANCED] += all_made[-1].count(None)
        if on_progress is not None:
            on_progress(len(all_made[-1]))
    unaltered[SURPLUS] = _halve(images, all_made)
    for image, made in zip(images, all_made, strict=True):
        altered = tuple(None if each is None else each.caption for each in made)
        items.append(AlteredCaptions(image.image, image.captions, altered))
        alterations.append(tuple(made))
        reworded = (reword(caption, alterer.reference.lexicon, alterer.seed) for caption in image.captions)
        positives.append(tuple(each[0].caption if each else None for each in reworded))
    return BalancedSet(alterer.variant, tuple(items), tuple(alterations), dict(+unaltered), tuple(positives))


def _halve(images: Sequence[CaptionedImage], made: list[list[BalancedAlteration | None]]) -> int:
    """Takes out, in an order by hash, alterations whose gain has the sign of the most, until one is left over or none.

    Coins fall so by chance in a small set; in a half each, n-gram models of the reference are at 50 %.

    Returns how many are taken out.
    """
    by_sign: dict[bool, list[tuple[str, int, int]]] = {True: [], False: []}
    for row, (image, alterations) in enumerate(zip(images, made, strict=True)):
        for place, (caption, each) in enumerate(zip(image.captions, alterations, strict=True)):
            if each is not None:
                by_sign[each.gain[0] > 0].append((hash_json([caption, each.caption]), row, place))
    few, many = sorted(by_sign.values(), key=len)
    surplus = max(0, len(many) - len(few) - 1)
    for _, row, place in sorted(many)[:surplus]:
        made[row][place] = None
    return surplus
