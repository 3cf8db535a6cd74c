"""RoCOCO's altered captions as annotations, chosen by a model: the influence of the candidates is computed once."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import Alteration, CaptionAlterer, find_candidates, vocabulary_words
from rococo_jax.perturb.text.words import split_words
from rococo_jax.version import __version__

NO_CANDIDATE, NO_REPLACEMENT = "no noun of the lexicon", "no replacement that is not in the image's captions"
NO_PLACE = "no single noun that a detail can be added to"
HALF_TRUTH = "half_truth"


@dataclass(frozen=True)
class AlteredSet:
    """One variant of a benchmark.

    Attributes:
        items: the images with originals and altered captions, None where a caption was left unaltered.
        alterations: aligned with the items' originals.
        unaltered: reason -> number of captions left unaltered for it.
    """

    variant: str
    items: tuple[AlteredCaptions, ...]
    alterations: tuple[tuple[Alteration | None, ...], ...]
    unaltered: Mapping[str, int]

    def records(self) -> list[list[dict[str, Any] | None]]:
        """The annotation's `changes`."""
        return [[None if each is None else each.record() for each in item] for item in self.alterations]


def alter_images(
    images: Iterable[CaptionedImage], influences: Iterable[Sequence[float] | np.ndarray | None], alterer: CaptionAlterer
) -> AlteredSet:
    """Alter every caption of every image once.

    `influences` has the influence of its words for every caption in this order, None where `select` is random.
    """
    items, alterations, unaltered = [], [], Counter()
    influences = iter(influences)
    for image in images:
        chosen = []
        for caption in image.captions:
            altered_captions = alterer.alter(caption, image.captions, next(influences))
            chosen.append(altered_captions[0] if altered_captions else None)
            if not altered_captions:
                candidates = find_candidates(split_words(caption), alterer.lexicon)
                unaltered[NO_REPLACEMENT if candidates else NO_CANDIDATE] += 1
        altered = tuple(None if each is None else each.caption for each in chosen)
        items.append(AlteredCaptions(image.image, image.captions, altered))
        alterations.append(tuple(chosen))
    return AlteredSet(alterer.variant, tuple(items), tuple(alterations), dict(unaltered))


def add_details(images: Iterable[CaptionedImage], lexicon: Lexicon, seed: int = 0) -> AlteredSet:
    """Half-truths: every caption against the same with one wrong detail added, an object or an attribute [ours].

    As in arXiv 2602.23906 the shorter caption is the right one. The detail is in none of the image's captions; whether
    it is false is not checked against the image. `concept` of an alteration says which detail it is.
    """
    alterer, items, alterations = KindAlterer("addition", lexicon, seed), [], []
    for image in images:
        found = [next(iter(alterer.alter(caption, image.captions)), None) for caption in image.captions]
        kinds = ["object" if each and each.new.startswith(" and ") else "attribute" for each in found]
        pairs = zip(found, kinds, strict=True)
        alterations.append(tuple(each and dataclasses.replace(each, concept=kind) for each, kind in pairs))
        items.append(AlteredCaptions(image.image, image.captions, tuple(each and each.caption for each in found)))
    left = sum(each is None for item in alterations for each in item)
    return AlteredSet(HALF_TRUTH, tuple(items), tuple(alterations), {NO_PLACE: left} if left else {})


def candidate_influence(
    encoder: Encoder,
    images: Sequence[CaptionedImage],
    lexicon: Lexicon,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """For every caption the influence of its candidates, NaN for the other words."""
    captions = [caption for image in images for caption in image.captions]
    candidates = ([each.index for each in find_candidates(split_words(caption), lexicon)] for caption in captions)
    # Without shared prefixes: a caption's influence must not depend, in its last digit, on the captions beside it.
    return list(word_influence(encoder, captions, wanted=candidates, share_prefix=False, on_progress=on_progress))


def alter_captions(
    encoder: Encoder | None,
    images: Sequence[CaptionedImage],
    variants: Iterable[str] = VARIANTS,
    *,
    lexicon: Lexicon | None = None,
    influences: Sequence[np.ndarray] | None = None,
    on_progress: Callable[[int], None] | None = None,
    **choices: Any,
) -> dict[str, AlteredSet]:
    """Alter every caption in every variant; the influence of its words is computed once.

    Args:
        encoder: a model with a text tower; None where words are chosen at random. The words of rand_voca are those of
            its vocabulary, or else the nouns of the lexicon.
        images: the images' captions.
        variants: of same_concept, diff_concept, rand_voca and danger.
        lexicon: the concept groups; the shipped ones by default.
        influences: the influence of every caption's words, where already known.
        on_progress: called with the number of captions whose influence is done.
        choices: `seed`, `select` and `fit_article` of `CaptionAlterer`.

    Raises:
        InputError: an unknown variant or choice.
    """
    lexicon = shipped_lexicon() if lexicon is None else lexicon
    variants = list(variants)
    if encoder is None and choices.get("select") != "random":
        raise InputError("altered captions", "select", repr(choices.get("select")), "random, where there is no model")
    choices["vocabulary"] = ()
    if "rand_voca" in variants:
        nouns = sorted({noun.name for noun in lexicon.nouns})
        choices["vocabulary"] = tuple(nouns) if encoder is None else vocabulary_words(encoder.tokenizer)
    alterers = [CaptionAlterer(variant, lexicon, **choices) for variant in variants]
    if influences is None and choices.get("select") == "random":
        influences = [None] * sum(len(image.captions) for image in images)
    elif influences is None:
        influences = candidate_influence(encoder, images, lexicon, on_progress=on_progress)
    return {alterer.variant: alter_images(images, influences, alterer) for alterer in alterers}


def made_by_of(altered: AlteredSet, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """What made a variant, with the version of this package and how many captions were left unaltered."""
    return {"version": __version__, **made_by, "unaltered": dict(altered.unaltered)}


def write_altered(path: str | os.PathLike, altered: AlteredSet, made_by: Mapping[str, Any]) -> None:
    """Write a variant as an annotation file, by rename."""
    made_by, changes = made_by_of(altered, made_by), altered.records()
    write_annotation(Path(path), altered.variant, altered.items, made_by=made_by, changes=changes)
