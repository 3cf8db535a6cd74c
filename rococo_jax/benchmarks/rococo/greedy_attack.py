"""Choose altered captions against a model: of all allowed replacements of one noun, the one that it prefers most.

For a caption c of an image with embedding I, and its allowed alterations A(c):

    altered caption = argmax over a in A(c) of cos(I, embedding of a)

RoCOCO's captions are the same for every model. These are the worst ones, within the same rules, for the model that they
are evaluated on: an adaptive attack, as adversarial examples are for images [ours; a greedy search over one word].
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.rococo.generate import AlteredSet, collect_set
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.perturb.text.replacement import Alteration, CaptionAlterer

# Similarities are rounded before comparison, and ties go to the first alteration: last bits differ between machines.
_DECIMALS = 5
# Number of alterations that are embedded together.
_TEXTS_AT_ONCE = 8192


@dataclass(frozen=True)
class Attack:
    """The result of an attack on one variant.

    Attributes:
        altered: the altered captions.
        tried: number of alterations whose similarity was computed.
        preferred: number of altered captions that are more similar to their image than every caption of that image.
    """

    altered: AlteredSet
    tried: int
    preferred: int


@dataclass(frozen=True)
class _CaptionToAttack:
    """A caption as the index of its image, with the alterations to try."""

    image: int
    alterations: list[Alteration]


def attack_captions(
    model: LoadedModel,
    images: Sequence[CaptionedImage],
    image_embeddings: Float[np.ndarray, "images dim"],
    alterer: CaptionAlterer,
    budget: int,
    on_progress: Callable[[int], None] | None = None,
) -> Attack:
    """Alter every caption of every image by the alteration that is most similar to the image.

    The result depends on the model, the captions of an image and the alterer's seed, not on the other images.

    Args:
        model: a model that embeds texts.
        images: images with captions.
        image_embeddings: unit embeddings of the images by the same model.
        alterer: makes the alterations. Its `select` is not used: all nouns of a caption are tried.
        budget: largest number of alterations of a caption that are tried; the alterer's seed draws them.
        on_progress: called with the number of captions that were attacked.
    """
    tried = preferred = 0
    chosen: list[Alteration | None] = []
    for captions in _batches(images, alterer, budget):
        true_texts = {text for each in captions for text in images[each.image].captions}
        altered_texts = {alteration.caption for each in captions for alteration in each.alterations}
        texts = sorted(true_texts | altered_texts)
        embeddings = dict(zip(texts, model.encode_text(texts), strict=True))
        for each in captions:
            image = image_embeddings[each.image].astype(np.float64)
            if not each.alterations:
                chosen.append(None)
                continue
            altered = np.stack([embeddings[alteration.caption] for alteration in each.alterations])
            true = np.stack([embeddings[text] for text in images[each.image].captions])
            similarities = np.round(altered.astype(np.float64) @ image, _DECIMALS)
            best = int(np.argmax(similarities))
            chosen.append(each.alterations[best])
            tried += len(each.alterations)
            preferred += bool(similarities[best] > np.round(true.astype(np.float64) @ image, _DECIMALS).max())
        if on_progress is not None:
            on_progress(len(captions))
    alterations = iter(chosen)
    by_image = ((image, [next(alterations) for _ in image.captions]) for image in images)
    return Attack(collect_set(alterer, by_image), tried, preferred)


def _batches(
    images: Sequence[CaptionedImage], alterer: CaptionAlterer, budget: int
) -> Iterator[list[_CaptionToAttack]]:
    """Yield captions with their alterations, in order, so many at once that the device is busy."""
    numbered = ((index, image, caption) for index, image in enumerate(images) for caption in image.captions)
    attacks = (
        _CaptionToAttack(index, alterer.alter_in_turn(caption, image.captions, budget))
        for index, image, caption in numbered
    )
    size = max(1, _TEXTS_AT_ONCE // budget)
    while batch := list(itertools.islice(attacks, size)):
        yield batch
