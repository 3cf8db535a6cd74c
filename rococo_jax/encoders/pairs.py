"""Which pairs of images and texts are matched together: groups of one image and a fixed number of texts.

What the matching head asks of an image alone, its keys and values, is most of the work of a pair, and a group shares
it. The texts of a group have one padded length. As with `buckets`, every step has a static shape and a text's length
is its own affair, so a pair's logits depend on no other pair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from rococo_jax.encoders.buckets import bucket_length

# Texts of a group: with more of them the image's part weighs less (a third of BLIP-base's work at 16), and more of the
# last group of an image is filled up.
TEXTS = 16
# Every length makes groups of its own, so those of short captions share one.
_SHORTEST = 16


@dataclass(frozen=True)
class PairBatch:
    """Groups that are matched in one step, `rows` of them with those that only fill up.

    Attributes:
        pairs: the place of each pair among those asked for, one row a group; -1 where a group is not full.
        length: to which the texts are padded.
        rows: groups of the step, over all devices.
    """

    pairs: Int[np.ndarray, "groups texts"]
    length: int
    rows: int


def pair_batches(
    images: Int[np.ndarray, " pairs"],
    texts: Int[np.ndarray, " pairs"],
    token_counts: Sequence[int],
    context_length: int,
    tokens_per_device: int,
    devices: int = 1,
) -> Iterator[PairBatch]:
    """Groups pairs by length and image, shortest first.

    Args:
        images, texts: whose pairs; texts as places in `token_counts`.
        token_counts: how many tokens each text has.
        context_length: the most tokens the tower takes.
        tokens_per_device: groups x texts x length on one device, as near as whole groups allow.
        devices: how many devices share the groups of a step.
    """
    if not len(images):
        return
    lengths = np.array([bucket_length(max(count, _SHORTEST), context_length) for count in token_counts], np.int64)
    lengths = lengths[texts]
    order = np.lexsort((texts, images, lengths))
    # Where the image or the length changes a run begins; a run is cut into groups.
    ordered = np.stack([lengths[order], images[order]])
    begins = np.flatnonzero(np.concatenate([[True], (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)]))
    runs = np.diff(np.append(begins, len(order)))
    within = np.arange(len(order)) - np.repeat(begins, runs)
    group = np.cumsum(within % TEXTS == 0) - 1
    pairs = np.full((group[-1] + 1, TEXTS), -1, np.int64)
    pairs[group, within % TEXTS] = order
    of_group = lengths[pairs[:, 0]]
    for length in np.unique(of_group).tolist():
        rows = max(1, tokens_per_device // (TEXTS * length)) * devices
        members = pairs[of_group == length]
        for start in range(0, len(members), rows):
            yield PairBatch(members[start : start + rows], length, rows)
