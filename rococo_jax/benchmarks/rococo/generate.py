"""Generate RoCOCO's altered captions for any captions. Word influence is computed once for all variants."""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text import VARIANTS
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.kinds import KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import Alteration, CaptionAlterer, find_candidates, vocabulary_words
from rococo_jax.perturb.text.words import split_words
from rococo_jax.progress import progress
from rococo_jax.version import __version__

NO_CANDIDATE, NO_REPLACEMENT = "no noun of the lexicon", "no replacement that is not in the image's captions"
NO_PLACE = "no single noun that a detail can be added to"
HALF_TRUTH = "half_truth"


@dataclass(frozen=True)
class AlteredSet:
    """A variant of a benchmark.

    Attributes:
        items: images with originals and altered captions; None for captions that could not be altered.
        alterations: the alterations, aligned with the items' originals.
        unaltered: number of captions that could not be altered, by reason.
    """

    variant: str
    items: tuple[AlteredCaptions, ...]
    alterations: tuple[tuple[Alteration | None, ...], ...]
    unaltered: Mapping[str, int]

    def records(self) -> list[list[dict[str, Any] | None]]:
        """Return the `changes` of the annotation file."""
        return [[None if each is None else each.record() for each in item] for item in self.alterations]


def alter_images(
    images: Iterable[CaptionedImage], influences: Iterable[Sequence[float] | np.ndarray | None], alterer: CaptionAlterer
) -> AlteredSet:
    """Alter every caption of every image once.

    Args:
        images: images with captions.
        influences: influence of the words of each caption, in the same order; None if `select` is random.
        alterer: alters one caption.
    """
    influences = iter(influences)
    items, all_alterations, unaltered = [], [], Counter()
    for image in images:
        alterations = [
            next(iter(alterer.alter(caption, image.captions, next(influences))), None) for caption in image.captions
        ]
        for caption, alteration in zip(image.captions, alterations, strict=True):
            if alteration is None:
                candidates = find_candidates(split_words(caption), alterer.lexicon)
                unaltered[NO_REPLACEMENT if candidates else NO_CANDIDATE] += 1
        altered = tuple(None if each is None else each.caption for each in alterations)
        items.append(AlteredCaptions(image.image, image.captions, altered))
        all_alterations.append(tuple(alterations))
    return AlteredSet(alterer.variant, tuple(items), tuple(all_alterations), dict(unaltered))


def add_details(images: Iterable[CaptionedImage], lexicon: Lexicon, seed: int = 0) -> AlteredSet:
    """Return half-truths: every caption with one false detail added, an object or an attribute [ours].

    As in arXiv 2602.23906, the shorter caption is the true one. The detail occurs in none of the image's captions, but
    is not checked against the image. `concept` of an alteration is the kind of detail.
    """
    alterer = KindAlterer("addition", lexicon, seed)
    items, alterations = [], []
    for image in images:
        image_alterations = []
        for caption in image.captions:
            alteration = next(iter(alterer.alter(caption, image.captions)), None)
            if alteration is not None:
                kind = "object" if alteration.new.startswith(" and ") else "attribute"
                alteration = dataclasses.replace(alteration, concept=kind)
            image_alterations.append(alteration)
        altered = tuple(None if each is None else each.caption for each in image_alterations)
        alterations.append(tuple(image_alterations))
        items.append(AlteredCaptions(image.image, image.captions, altered))
    unaltered = sum(each is None for item in alterations for each in item)
    return AlteredSet(HALF_TRUTH, tuple(items), tuple(alterations), {NO_PLACE: unaltered} if unaltered else {})


def candidate_influence(encoder: Encoder, images: Sequence[CaptionedImage], lexicon: Lexicon) -> list[np.ndarray]:
    """Return the influence of the candidate words of each caption, NaN for its other words. Shows progress."""
    captions = [caption for image in images for caption in image.captions]
    candidates = ([each.index for each in find_candidates(split_words(caption), lexicon)] for caption in captions)
    # Without shared prefixes: not even the last digit may depend on the other captions of a batch.
    with progress("influence", len(captions), "captions") as advance:
        return list(word_influence(encoder, captions, wanted=candidates, share_prefix=False, on_progress=advance))


def alter_captions(
    encoder: Encoder | None,
    images: Sequence[CaptionedImage],
    variants: Iterable[str] = VARIANTS,
    *,
    lexicon: Lexicon | None = None,
    influences: Sequence[np.ndarray] | None = None,
    **choices: Any,
) -> dict[str, AlteredSet]:
    """Alter every caption in every variant. The influence of words is computed once.

    Args:
        encoder: a model with a text tower, or None to select words at random. rand_voca uses the words of its
            vocabulary, or the nouns of the lexicon without a model.
        images: images with captions.
        variants: any of same_concept, diff_concept, rand_voca and danger.
        lexicon: the concept groups; the shipped ones by default.
        influences: influence of the words of all captions, if already computed.
        choices: `seed`, `select` and `fit_article` of `CaptionAlterer`.

    Raises:
        InputError: an unknown variant or choice.
    """
    lexicon = shipped_lexicon() if lexicon is None else lexicon
    if encoder is None and choices.get("select") != "random":
        raise InputError("altered captions", "select", repr(choices.get("select")), "random, without a model")
    tokenizer = None if encoder is None else encoder.tokenizer
    alterers = make_alterers(variants, lexicon, tokenizer, **choices)
    if influences is None and choices.get("select") == "random":
        influences = [None] * sum(len(image.captions) for image in images)
    elif influences is None:
        influences = candidate_influence(encoder, images, lexicon)
    return {alterer.variant: alter_images(images, influences, alterer) for alterer in alterers}


def make_alterers(
    variants: Iterable[str], lexicon: Lexicon, tokenizer: Tokenizer | None, **choices: Any
) -> list[CaptionAlterer]:
    """Return the alterer of each variant. rand_voca uses the tokenizer's words, or without one the lexicon's nouns.

    Raises InputError for an unknown variant or choice of `CaptionAlterer`.
    """
    variants = list(variants)
    vocabulary: tuple[str, ...] = ()
    if "rand_voca" in variants:
        nouns = sorted({noun.name for noun in lexicon.nouns})
        vocabulary = tuple(nouns) if tokenizer is None else vocabulary_words(tokenizer)
    return [CaptionAlterer(variant, lexicon, vocabulary=vocabulary, **choices) for variant in variants]


def made_by_of(altered: AlteredSet, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a variant was made, with the version of this package and the number of unaltered captions."""
    return {"version": __version__, **made_by, "unaltered": dict(altered.unaltered)}


def write_altered(path: str | os.PathLike, altered: AlteredSet, made_by: Mapping[str, Any]) -> None:
    """Write a variant as an annotation file, atomically."""
    made_by, changes = made_by_of(altered, made_by), altered.records()
    write_annotation(Path(path), altered.variant, altered.items, made_by=made_by, changes=changes)
