"""Score pairs of images and texts by a matching head (BLIP, arXiv 2201.12086).

Pairs are encoded in groups of one image and a fixed number of texts: the head's keys and values of an image are most of
the work of a pair, and a group shares them. The texts of a group are padded to one length. Every step has a static
shape, so the logits of a pair depend on no other pair.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders import programs
from rococo_jax.encoders.device_steps import DeviceSteps, StepBatch, pad_rows
from rococo_jax.encoders.protocol import OnProgress, PairIndices

# Images whose tokens are on every device at once: 1.8 MB each for BLIP-base at 384 pixels.
_IMAGES_ON_DEVICE = 256
# Texts in a group. With more texts, the image takes a smaller share of the work (a third of BLIP-base's with 16), and
# more of the last group of an image is padding.
_GROUP_TEXTS = 16
# Each padded length makes its own groups, so shorter texts share this one.
_MIN_LENGTH = 16


class PairGroups(NamedTuple):
    """Groups of pairs with one image and one padded length of texts.

    Attributes:
        pairs: the pair at each place of a group; -1 where a group that is not full repeats its first pair.
        batches: the groups as batches of steps, shortest texts first.
    """

    pairs: Int[np.ndarray, "groups texts"]
    batches: Iterator[StepBatch]


def matching_logits(
    model: tuple[Any, Any],
    steps: DeviceSteps,
    image_tokens: Float[np.ndarray, "images tokens width"],
    pairs: PairIndices,
    group_pairs: Callable[[PairIndices], PairGroups],
    on_progress: OnProgress | None,
) -> Float[np.ndarray, "pairs 2"]:
    """Return the head's logits of no match and of a match of each pair, float32.

    Args:
        model: the graph of the module, and its state on the devices.
        steps: runs the batches.
        image_tokens: output of the image tower before pooling.
        pairs: the image and the text of each pair.
        group_pairs: groups some of the pairs, with image indices into the tokens on the devices.
        on_progress: called with the number of finished pairs.
    """
    (graph, state), (images, texts) = model, pairs
    logits = np.empty((len(images), 2), np.float32)
    for start in range(0, len(image_tokens), _IMAGES_ON_DEVICE):
        tokens = image_tokens[start : start + _IMAGES_ON_DEVICE]
        members = np.flatnonzero((images >= start) & (images < start + len(tokens)))
        if not len(members):
            continue
        # A power of two of images, since each number of them is a program to compile.
        padded = pad_rows(tokens, 1 << (len(tokens) - 1).bit_length())
        on_devices = jax.device_put(padded, NamedSharding(steps.mesh, PartitionSpec()))
        program = partial(programs.matching_logits, steps.mesh, graph, (state, on_devices))
        groups = group_pairs((images[members] - start, texts[members]))
        for index, values in steps.run(groups.batches, program):
            is_pair = groups.pairs[index] >= 0
            logits[members[groups.pairs[index][is_pair]]] = values[is_pair]
            if on_progress is not None:
                on_progress(int(is_pair.sum()))
    return logits


def group_pairs(
    pairs: PairIndices,
    ids: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    context_length: int,
    tokens_per_device: int,
    devices: int,
) -> PairGroups:
    """Group pairs (at least one) by image and by padded length of the text, whose tokens are `ids`."""
    images, texts = pairs
    padded_lengths = [programs.bucket_length(max(len(row), _MIN_LENGTH), context_length) for row in ids]
    lengths = np.array(padded_lengths, np.int64)[texts]
    order = np.lexsort((texts, images, lengths))
    # A run of pairs with equal image and length starts where one of the two changes, and is cut into groups.
    keys = np.stack([lengths[order], images[order]])
    is_start = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    starts = np.flatnonzero(is_start)
    position_in_run = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    group = np.cumsum(position_in_run % _GROUP_TEXTS == 0) - 1
    members = np.full((group[-1] + 1, _GROUP_TEXTS), -1, np.int64)
    members[group, position_in_run % _GROUP_TEXTS] = order
    first = members[:, 0]
    filled = np.where(members < 0, members[:, :1], members)

    def batches() -> Iterator[StepBatch]:
        group_lengths = lengths[first].tolist()
        tokens = tokens_per_device // _GROUP_TEXTS
        for batch in programs.text_batches(group_lengths, context_length, tokens, devices):
            index = batch.index
            padded = tokenizer.pad([ids[text] for text in texts[filled[index]].ravel()], batch.length)
            text_arrays = [array.reshape(len(index), _GROUP_TEXTS, -1) for array in padded]
            image_rows = images[first[index]].astype(np.int32)
            yield StepBatch(index, (image_rows, *text_arrays), batch.unit, _GROUP_TEXTS * batch.length)

    return PairGroups(members, batches())
