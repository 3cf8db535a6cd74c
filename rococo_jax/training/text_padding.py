"""Texts of a step, padded to the bucket of the longest text in the global batch.

Under a causal or an attention mask padding changes no vector and no gradient beyond the order of sums; every bucket is
a program to compile, so they are coarse. The input pads to `data.text_length` and this cuts what no text reaches:

    length = the first bucket that holds the longest text of the batch, at most text_length

It is a function of the global batch, so all processes must know its longest text. Several processes take the maximum
on their devices, a step ahead: it is asked for before the step of the batch before is started, and read after.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rococo_jax.runtime import AXES
from rococo_jax.training.batch import Batch, Texts

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# From the longest text of this process to a function that gives that of all processes.
Agree = Callable[[int], Callable[[], int]]


def bucket_of(tokens: int, most: int) -> int:
    """The padded length for texts of at most `tokens` tokens."""
    return next((bucket for bucket in BUCKETS if tokens <= bucket < most), most)


def buckets_to(most: int) -> tuple[int, ...]:
    """All lengths that `bucket_of` gives."""
    return (*(bucket for bucket in BUCKETS if bucket < most), most)


def longest_text(batch: Batch) -> int:
    """Tokens of the longest text of this process's rows, in any field."""
    masks = [texts.mask for texts in _texts(batch)]
    return max(int(np.flatnonzero(mask.reshape(-1, mask.shape[-1]).any(0)).max(initial=-1)) + 1 for mask in masks)


def cut_texts(batch: Batch, length: int) -> Batch:
    """The batch with its texts cut to `length` tokens."""
    texts = {id(each): Texts(each.ids[..., :length], each.mask[..., :length]) for each in _texts(batch)}
    fields = {name: texts.get(id(each), each) for name, each in batch.fields.items()}
    return Batch(batch.images, texts.get(id(batch.texts), batch.texts), batch.image_id, fields, batch.valid)


def shape_at(batch: Batch, length: int) -> Batch:
    """The shapes of a batch on devices, were its texts padded to `length` tokens (0: as they are)."""

    def shape(array: jax.Array, tail: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        shape = (*array.shape[: array.ndim - len(tail)], *tail)
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=array.sharding)

    padded = {id(array) for texts in _texts(batch) for array in (texts.ids, texts.mask)} if length else ()
    return jax.tree.map(lambda array: shape(array, (length,) if id(array) in padded else ()), batch)


def text_tokens(batch: Batch) -> int:
    """The length that the batch's texts are padded to, 0 where it holds features."""
    return 0 if batch.texts.ids is None else batch.texts.ids.shape[-1]


def _texts(batch: Batch) -> list[Texts]:
    every = (batch.texts, *batch.fields.values())
    return [each for each in every if isinstance(each, Texts) and each.ids is not None]


def agree_on_devices(mesh: Mesh) -> Agree:
    """The largest of all processes' numbers, by a reduction that their devices make in turn with their steps."""
    rows = NamedSharding(mesh, PartitionSpec(AXES))
    largest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def agree(longest: int) -> Callable[[], int]:
        own = np.full(len(mesh.local_devices), longest, np.int32)
        found = largest(jax.make_array_from_process_local_data(rows, own, (mesh.size,)))
        return lambda: int(jax.device_get(found))

    return agree


class CutTexts:
    """An input whose texts are cut to the bucket of the longest one.

    `lengths` are those that its texts may be padded to.

    Args:
        batches: texts padded to `most` tokens.
        agree: with other processes; None where this is the only one.
    """

    def __init__(self, batches: Any, most: int, agree: Agree | None = None):
        self.batches, self.most, self.agree, self.lengths = batches, most, agree, buckets_to(most)
        self.close, self.counts = batches.close, batches.counts
        # The batch that was read ahead, or the error in its place, and the input's state before it.
        self._ahead: tuple[Batch | Exception, Callable[[], int], Mapping[str, int]] | None = None
        self._state: dict[str, Any] | None = None

    def __next__(self) -> Batch:
        """The next batch. All processes must call it."""
        if self.agree is None:
            batch = next(self.batches)
            self.counts = self.batches.counts
            return cut_texts(batch, bucket_of(longest_text(batch), self.most))
        batch, longest, self.counts = self._ahead or self._read()
        if isinstance(batch, Exception):
            raise batch
        self._state = self.batches.get_state()
        self._ahead = self._read()
        return cut_texts(batch, bucket_of(longest(), self.most))

    def _read(self) -> tuple[Batch | Exception, Callable[[], int], Mapping[str, int]]:
        try:
            batch = next(self.batches)
        except Exception as error:  # raised when its batch is due
            return error, lambda: 0, self.batches.counts
        return batch, self.agree(longest_text(batch)), self.batches.counts

    def get_state(self) -> dict[str, Any]:
        """The input's state after the batch that was handed out last."""
        return self.batches.get_state() if self._state is None else self._state

    def set_state(self, state: dict[str, Any]) -> None:
        """Resumes as the input does."""
        self._ahead = self._state = None
        self.batches.set_state(state)
