"""Pairs of images and texts in groups of one image and a fixed number of texts, as the matching head takes them.

The head's keys and values of an image are most of the work of a pair, and a group shares them. The texts of a group
have one padded length. Every step has a static shape, so a pair's logits depend on no other pair.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from PIL import Image

from rococo_jax.data.tokenizers import Tokenizer, TokenRows
from rococo_jax.encoders.device_steps import Rows
from rococo_jax.encoders.programs import bucket_length
from rococo_jax.encoders.protocol import OnProgress, PairPlaces, PairScorer

# Images whose tokens are on every device at once: 1.8 MB each for BLIP-base at 384 pixels.
IMAGES_PLACED = 256
# Texts of a group: with more of them the image's part weighs less (a third of BLIP-base's work at 16), and more of the
# last group of an image is filled up.
TEXTS = 16
# Every length makes groups of its own, so those of short captions share one.
_SHORTEST = 16


class MatchingHead(PairScorer):
    """The matching head of an `Encoder`, as BLIP's (arXiv 2201.12086): a pair's score is the logit of a match.

    Candidates are ranked by logit + cosine, as the published evaluation does.
    """

    adds_cosine, decides_by = True, "matching head's logit + cosine"

    def __init__(self, encoder: Any):
        self.encoder = encoder

    name = property(lambda self: self.encoder.name)
    images_at_once = property(lambda self: self.encoder.images_at_once)
    training_images = property(lambda self: self.encoder.training_images)

    def prepare(self, image: Image.Image) -> Any:
        """As the encoder does."""
        return self.encoder.prepare(image)

    def score(
        self, images: Iterable[Any], texts: Sequence[str], pairs: PairPlaces, on_progress: OnProgress
    ) -> Float[np.ndarray, " pairs"]:
        """See `PairScorer`. The tokens of an image are computed once. Raises InputError: as `encode_text`."""
        return self.encoder.matching_logits(self.encoder.image_tokens(images), texts, pairs, on_progress)[:, 1]

    def token_rows(self, texts: Sequence[str]) -> TokenRows | None:
        """Rows of the encoder's tokenizer."""
        return self.encoder.token_rows(texts)

    def describe(self) -> dict[str, Any]:
        """The encoder's description."""
        return self.encoder.describe()

    def facts(self) -> dict[str, Any]:
        """Facts of the encoder."""
        return self.encoder.facts()


class PairGroups(NamedTuple):
    """Groups of pairs, each of one image and one padded length of its texts.

    Attributes:
        pairs: the place of each pair; -1 where a group is not full.
        images, texts: of the pairs, of which a group that is not full repeats its first.
        lengths: to which the texts are padded.
    """

    pairs: Int[np.ndarray, "groups texts"]
    images: Int[np.ndarray, " groups"]
    texts: Int[np.ndarray, "groups texts"]
    lengths: Int[np.ndarray, " groups"]


def group_pairs(
    images: Int[np.ndarray, " pairs"], texts: Int[np.ndarray, " pairs"], ids: Sequence[Sequence[int]], context: int
) -> PairGroups:
    """Groups pairs (at least one) of images and of texts, which are places in `ids`; `context` is the tower's."""
    lengths = np.array([bucket_length(max(len(row), _SHORTEST), context) for row in ids], np.int64)[texts]
    order = np.lexsort((texts, images, lengths))
    # Where the image or the length changes a run begins; a run is cut into groups.
    ordered = np.stack([lengths[order], images[order]])
    begins = np.flatnonzero(np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)]))
    within = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    group = np.cumsum(within % TEXTS == 0) - 1
    pairs = np.full((group[-1] + 1, TEXTS), -1, np.int64)
    pairs[group, within % TEXTS] = order
    filled = np.where(pairs < 0, pairs[:, :1], pairs)
    first = pairs[:, 0]
    return PairGroups(pairs, images[first].astype(np.int32), texts[filled], lengths[first])


def group_rows(
    groups: PairGroups, ids: Sequence[Sequence[int]], tokenizer: Tokenizer, tokens_per_device: int, devices: int
) -> Iterator[Rows]:
    """The groups as rows of steps, shortest first; a device takes about `tokens_per_device`, in whole groups."""
    for length in np.unique(groups.lengths).tolist():
        unit, members = max(1, tokens_per_device // (TEXTS * length)), np.flatnonzero(groups.lengths == length)
        for start in range(0, len(members), unit * devices):
            index = members[start : start + unit * devices]
            texts = groups.texts[index]
            padded = tokenizer.pad([ids[text] for text in texts.ravel()], length)
            arrays = groups.images[index], *(each.reshape(*texts.shape, -1) for each in padded)
            yield Rows(index, arrays, unit, TEXTS * length)
