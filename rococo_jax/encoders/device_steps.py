"""Run a tower over batches: in every step each device encodes one unit of rows of one static shape.

A unit always has the same number of rows, so the same program runs for every item, and the bits of a vector depend
neither on the other items nor on the number of devices. The last step of each shape is padded.

When the mesh spans several processes, because parameters are sharded over them, each process brings its own rows, and
all run the same programs in the same order; a process without rows of a shape contributes padding
(`synchronised_batches`).

Batches are prepared in a background thread, and several steps run before the first result is fetched. A step that
exceeds the memory of the devices is split into smaller ones.
"""

import collections
import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from rococo_jax.data.images import size_in_memory
from rococo_jax.errors import InputError
from rococo_jax.processes import gather
from rococo_jax.runtime import AXES

T = TypeVar("T")
Program = Callable[..., jax.Array]
BatchFeatures = tuple[Int[np.ndarray, " rows"], Float[np.ndarray, " rows *features"]]

_PREFETCHED_BATCHES = 2
_STEPS_IN_FLIGHT = 2


@dataclass(frozen=True)
class StepBatch:
    """Rows of one step on the host.

    Attributes:
        index: position of each row among the items.
        arrays: the inputs of the program, one row each.
        unit: number of rows that a device encodes at once.
        tokens: padded tokens of a row of text; 0 for images.
    """

    index: Int[np.ndarray, " rows"]
    arrays: tuple[np.ndarray, ...]
    unit: int
    tokens: int = 0

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape and dtype of the inputs, which determine the compiled program."""
        return self.tokens, self.unit, tuple((array.shape[1:], array.dtype.str) for array in self.arrays)


@dataclass(frozen=True)
class DeviceSteps:
    """Steps over the devices of a mesh.

    Attributes:
        name: name of the model, for errors.
        on_halved: called with a batch that exceeded the memory and the smaller unit of the next attempt.
    """

    name: str
    mesh: Mesh
    on_halved: Callable[[StepBatch, int], None]

    @property
    def devices(self) -> int:
        """Number of devices of this process in the mesh."""
        return len(self.mesh.local_devices)

    def run(self, batches: Iterable[StepBatch], program: Program) -> Iterator[BatchFeatures]:
        """Yield the index and the features of each batch, in order.

        Args:
            batches: of at most `unit` rows for each device.
            program: (*arrays) -> features, over the mesh; see `on_each_device`.
        """
        in_flight: collections.deque[tuple[StepBatch, jax.Array | None]] = collections.deque()
        if self.mesh.is_multi_process:
            prefetched = Prefetch(iter(batches))
            with_inputs = map(self._with_inputs, synchronised_batches(self.name, prefetched))
        else:
            with_inputs = prefetched = Prefetch(map(self._with_inputs, batches))
        with contextlib.closing(prefetched):
            for batch, inputs in with_inputs:
                in_flight.append((batch, _none_if_out_of_memory(program, inputs)))
                if len(in_flight) > _STEPS_IN_FLIGHT:
                    yield from self._fetch(*in_flight.popleft(), program)
            while in_flight:
                yield from self._fetch(*in_flight.popleft(), program)

    def _with_inputs(self, batch: StepBatch) -> tuple[StepBatch, list[jax.Array]]:
        return batch, self._place(batch)

    def _place(self, batch: StepBatch) -> list[jax.Array]:
        """Return the inputs of a batch on the devices, padded to one unit for each."""
        rows = batch.unit * self.devices
        if len(batch.index) > rows:
            raise ValueError(f"{len(batch.index)} rows in units of {batch.unit} for {self.devices} devices")
        padded = [pad_rows(array, rows) for array in batch.arrays]
        sharding = NamedSharding(self.mesh, PartitionSpec(AXES))
        if self.mesh.is_multi_process:
            return [jax.make_array_from_process_local_data(sharding, array) for array in padded]
        return [jax.device_put(array, sharding) for array in padded]

    def _fetch(self, batch: StepBatch, features: jax.Array | None, program: Program) -> Iterator[BatchFeatures]:
        """Yield the features of a step, or of smaller steps if it exceeded the memory (None)."""
        on_host = None if features is None else _none_if_out_of_memory(_local_rows, [features])
        if on_host is not None:
            yield batch.index, on_host[: len(batch.index)]
            return
        unit = batch.unit // 2
        if unit == 0 or self.mesh.is_multi_process:
            raise self._out_of_memory(batch)
        self.on_halved(batch, unit)
        rows = unit * self.devices
        for start in range(0, len(batch.index), rows):
            some = slice(start, start + rows)
            arrays = tuple(array[some] for array in batch.arrays)
            smaller = dataclasses.replace(batch, index=batch.index[some], arrays=arrays, unit=unit)
            yield from self._fetch(smaller, _none_if_out_of_memory(program, self._place(smaller)), program)

    def _out_of_memory(self, batch: StepBatch) -> InputError:
        device = self.mesh.devices.flat[0].device_kind
        items = "one item" if batch.unit == 1 else f"{batch.unit} items"
        expected = "a larger device"
        if batch.unit > 1:  # on several processes, whose steps cannot be split
            expected = f"{expected}, or a smaller images_at_once"
        return InputError(self.name, "memory of the device", f"no room for {items} on {device}", expected)


def synchronised_batches(name: str, batches: Iterator[StepBatch]) -> Iterator[StepBatch]:
    """Yield this process's batches, and between them empty ones in the shapes of other processes' batches.

    So all processes run the same programs: of the shapes of all next batches, the smallest comes first. All processes
    must call this. An exception in the preparation of a batch on any process is raised on all of them.
    """
    next_batch: list[StepBatch] = []

    def next_shape() -> tuple[Any, ...] | None:
        next_batch.extend(itertools.islice(batches, 1 - len(next_batch)))
        return next_batch[0].shape if next_batch else None

    while shapes := [shape for shape in gather(f"{name}: a step", next_shape) if shape is not None]:
        smallest = min(shapes)
        if next_batch and next_batch[0].shape == smallest:
            yield next_batch.pop()
        else:
            tokens, unit, inputs = smallest
            empty = tuple(np.zeros((0, *row_shape), dtype) for row_shape, dtype in inputs)
            yield StepBatch(np.zeros(0, np.int64), empty, unit, tokens)


def pad_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Repeat the first row up to `count` rows, so that padding is real content and cannot produce NaN.

    An empty array becomes zeros.
    """
    if len(rows) == count:
        return rows
    padded = np.empty((count, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    padded[len(rows) :] = rows[:1] if len(rows) else 0
    return padded


def on_each_device(mesh: Mesh, encode: Callable[..., Any], state: Any, *rows: jax.Array) -> Any:
    """Call `encode(state, *rows)` with the rows of each device; it returns arrays of rows. Call this inside `jit`.

    Where parameters are sharded, all devices gather them together, and the program is one over the mesh.
    """
    split = PartitionSpec(AXES)
    if mesh.shape["fsdp"] > 1 or mesh.is_multi_process:
        return jax.lax.with_sharding_constraint(encode(state, *rows), NamedSharding(mesh, split))
    specs = (PartitionSpec(), *(split for _ in rows))
    return jax.shard_map(encode, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(state, *rows)


def _local_rows(features: jax.Array) -> np.ndarray:
    """Return the rows on this process's devices, in order."""
    if features.is_fully_addressable:
        return np.asarray(features)
    shards = sorted(features.addressable_shards, key=lambda shard: shard.index[0].start)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error of torch, XLA or Python reports a lack of memory."""
    phrases = ("out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED")
    return isinstance(error, MemoryError) or any(phrase in str(error) for phrase in phrases)


def _none_if_out_of_memory(function: Callable[..., T], inputs: Sequence[Any]) -> T | None:
    """Call a function and return its result, or None if the devices have too little memory."""
    try:
        return function(*inputs)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def gather_in_order(
    name: str, kind: str, batches: Iterator[BatchFeatures], on_progress: Callable[[int], None] | None = None
) -> Float[np.ndarray, " items *features"]:
    """Return all features in the order of the items.

    Raises InputError if there are no items; it contains the model's `name` and the `kind` of the items.
    """
    indices, features = [], []
    for index, rows in batches:
        indices.append(index)
        features.append(rows)
        if on_progress is not None:
            on_progress(len(index))
    if not features:
        raise InputError(name, kind, "nothing to encode", "at least one item")
    unordered = np.concatenate(features)
    ordered = np.empty_like(unordered)
    ordered[np.concatenate(indices)] = unordered
    return ordered


class Prefetch(Iterator[T]):
    """Iterate in a background thread, starting now; exceptions are raised where their item would be returned.

    Args:
        items: the items; they are closed at the end if they can be.
        count: number of items that may wait.
        most_bytes: more items may wait as long as all of them take less memory.
    """

    def __init__(self, items: Iterator[T], count: int = _PREFETCHED_BATCHES, most_bytes: int = 0):
        self._items, self._count, self._most_bytes, self._is_closed = items, count, most_bytes, False
        self._waiting: collections.deque[T] = collections.deque()
        self._bytes, self._end, self._changed = 0, None, threading.Condition()
        self._thread = threading.Thread(target=self._iterate, daemon=True, name="batches")
        self._thread.start()

    def _iterate(self) -> None:
        end: BaseException = StopIteration()
        can_close = hasattr(self._items, "close")
        try:
            with contextlib.closing(self._items) if can_close else contextlib.nullcontext():
                for item in self._items:
                    self._put(item)
                    if self._is_closed:
                        break
        except BaseException as error:
            end = error
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _put(self, item: T) -> None:
        """Add an item, and wait until the next one may be computed."""
        with self._changed:
            self._waiting.append(item)
            self._bytes += size_in_memory(item)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_closed or len(self._waiting) < self._count or self._bytes < self._most_bytes
            )

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._end is not None)
            if not self._waiting:
                raise self._end
            item = self._waiting.popleft()
            self._bytes -= size_in_memory(item)
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """End the thread after its current item."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
