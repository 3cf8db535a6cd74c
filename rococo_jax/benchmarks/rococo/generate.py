"""A benchmark's altered captions from a model: influence of the candidates once, then every variant from it."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.rococo.annotations import write_annotation
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import VARIANTS, AlteredSet, CaptionAlterer, alter_images, find_candidates
from rococo_jax.perturb.text.vocabulary import vocabulary_words
from rococo_jax.perturb.text.words import split_words
from rococo_jax.version import __version__

Advance = Callable[[int], None]


def candidate_influence(
    encoder: Encoder,
    images: Sequence[CaptionedImage],
    lexicon: Lexicon,
    *,
    method: str = "remove",
    advance: Advance | None = None,
) -> list[np.ndarray]:
    """For every caption the influence of its candidates, NaN for the other words."""
    captions = [caption for image in images for caption in image.captions]
    wanted = ([each.index for each in find_candidates(split_words(caption), lexicon)] for caption in captions)
    # Without sharing, since a caption has to be altered alike to the last digit whatever captions stand beside it.
    return list(word_influence(encoder, captions, method=method, wanted=wanted, share_prefix=False, advance=advance))


def alter_captions(
    encoder: Encoder,
    images: Sequence[CaptionedImage],
    variants: Iterable[str] = VARIANTS,
    *,
    lexicon: Lexicon | None = None,
    seed: int = 0,
    select: str = "lowest",
    style: str = "plain",
    method: str = "remove",
    any_number: bool = False,
    fit_article: bool = False,
    influences: Sequence[np.ndarray] | None = None,
    advance: Advance | None = None,
) -> dict[str, AlteredSet]:
    """Every caption altered in every variant, the influence of its words computed once.

    Args:
        encoder: a model with a text tower.
        images: the images' captions.
        variants: of same_concept, diff_concept, rand_voca and danger.
        lexicon: the concept groups; the shipped ones by default.
        seed, select, style, any_number, fit_article: see `CaptionAlterer`.
        method: how a word is taken away; see `word_influence`.
        influences: of every caption's words, where they are known already.
        advance: called with the number of captions whose influence is done.
    """
    lexicon = shipped_lexicon() if lexicon is None else lexicon
    variants = list(variants)
    if influences is None and select == "random":
        influences = [None] * sum(len(image.captions) for image in images)
    elif influences is None:
        influences = candidate_influence(encoder, images, lexicon, method=method, advance=advance)
    vocabulary = vocabulary_words(encoder.tokenizer) if "rand_voca" in variants else ()
    choices = {"seed": seed, "select": select, "style": style, "vocabulary": vocabulary}
    choices |= {"any_number": any_number, "fit_article": fit_article}
    return {
        variant: alter_images(images, influences, CaptionAlterer(variant, lexicon, **choices)) for variant in variants
    }


def write_altered(
    path: str | os.PathLike, altered: AlteredSet, made_by: Mapping[str, Any], evaluated: Mapping[str, Any] | None = None
) -> None:
    """Writes a variant as an annotation file, with who made it and how many captions were left unaltered."""
    made_by = {"version": __version__, **made_by, **(evaluated or {}), "unaltered": dict(altered.unaltered)}
    write_annotation(Path(path), altered.variant, altered.items, made_by=made_by, changes=altered.records())
