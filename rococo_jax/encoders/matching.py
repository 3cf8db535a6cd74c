"""Runs pairs of images and texts through the matching head, in groups of one image and a fixed number of texts.

The head's keys and values of an image are most of the work of a pair, and a group shares them. The texts of a group
have one padded length. Every step has a static shape, so a pair's logits depend on no other pair.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.encoders.programs import bucket_length, one_ahead, pad_rows
from rococo_jax.encoders.protocol import OnProgress
from rococo_jax.runtime import AXES

# Images whose tokens are on every device at once: 1.8 MB each for BLIP-base at 384 pixels.
_IMAGES_PLACED = 256


# Texts of a group: with more of them the image's part weighs less (a third of BLIP-base's work at 16), and more of the
# last group of an image is filled up.
TEXTS = 16
# Every length makes groups of its own, so those of short captions share one.
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
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
    """Groups pairs of `images` and `texts`, places in `token_counts`, by length and image, shortest first.

    `tokens_per_device` is groups x texts x length on one device, as near as whole groups allow; `devices` share the
    groups of a step.
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


@dataclasses.dataclass(frozen=True)
class Matcher:
    """A model with a matching head, split, on its devices; `tokens_per_device` are of texts, in one step."""

    graph: Any
    state: Any
    tokenizer: Tokenizer
    context_length: int
    mesh: Mesh
    tokens_per_device: int

    def logits(
        self,
        image_tokens: Float[np.ndarray, "images tokens width"],
        ids: Sequence[Sequence[int]],
        pairs: tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]],
        on_progress: OnProgress | None = None,
    ) -> Float[np.ndarray, "pairs 2"]:
        """Logits of no match and of a match; see `Encoder.matching_logits`."""
        output = np.empty((len(pairs[0]), 2), np.float32)
        for start in range(0, len(image_tokens), _IMAGES_PLACED):
            placed = image_tokens[start : start + _IMAGES_PLACED]
            here = np.flatnonzero((pairs[0] >= start) & (pairs[0] < start + len(placed)))
            output[here] = self._logits(placed, ids, pairs[0][here] - start, pairs[1][here], on_progress)
        return output

    def _logits(self, image_tokens, ids, images, texts, on_progress) -> np.ndarray:
        # Few shapes of what lies on the devices, since each is a program to compile: powers of two.
        tokens = pad_rows(image_tokens, 1 << (len(image_tokens) - 1).bit_length())
        tokens = jax.device_put(tokens, NamedSharding(self.mesh, PartitionSpec()))
        counts = list(map(len, ids))
        batches = pair_batches(images, texts, counts, self.context_length, self.tokens_per_device, self.mesh.size)

        def run(batch: PairBatch) -> tuple[jax.Array, np.ndarray]:
            inputs = self._inputs(batch, ids, images, texts)
            return _matching_logits(self.graph, self.state, tokens, *inputs), batch.pairs

        output = np.empty((len(images), 2), np.float32)
        for logits, pairs in one_ahead(map(run, batches)):
            real = pairs >= 0
            output[pairs[real]] = np.asarray(logits)[: len(pairs)][real]
            if on_progress is not None:
                on_progress(int(real.sum()))
        return output

    def _inputs(self, batch: PairBatch, ids, images, texts) -> list[jax.Array]:
        """The image of each group, and the ids and masks of its texts; a group that is not full repeats its first."""
        pairs = np.where(batch.pairs < 0, batch.pairs[:, :1], batch.pairs)
        padded, mask = self.tokenizer.pad([ids[text] for text in texts[pairs.ravel()]], batch.length)
        rows = images[pairs[:, 0]].astype(np.int32), padded.reshape(*pairs.shape, -1), mask.reshape(*pairs.shape, -1)
        groups = NamedSharding(self.mesh, PartitionSpec(AXES))
        return [jax.device_put(pad_rows(part, batch.rows), groups) for part in rows]


@partial(jax.jit, static_argnums=0)
def _matching_logits(graph, state, tokens, images, ids, mask) -> jax.Array:
    return nnx.merge(graph, state).matching_logits(tokens[images], ids, mask)
