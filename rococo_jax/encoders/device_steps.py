"""Runs a tower over batches: every device encodes a unit of one static shape in a step, or nothing.

    step     up to `unit` rows for each device; `unit` is fixed, so the same program runs for every item
    idle     a device without rows skips its unit (a conditional), and goes on with the next step at once
    balance  where a step has fewer units than devices, those that have had least work take them

Where the mesh spans processes, since parameters are sharded over several, each process brings rows of its own, and all
run the same programs in the same order: a process without rows of a shape takes part with none (`in_step`).

So at most one unit of each shape is padding, whatever the number of devices, and a vector's bits depend neither on the
other items nor on the number of devices.

Batches are made ahead in a thread, and several steps are under way before the first is fetched. A step that does not
fit into the devices' memory is cut into smaller ones.
"""

import collections
import contextlib
import dataclasses
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from rococo_jax.errors import InputError
from rococo_jax.processes import gather
from rococo_jax.runtime import AXES

T = TypeVar("T")
Program = Callable[..., jax.Array]
BatchFeatures = tuple[Int[np.ndarray, " rows"], Float[np.ndarray, "rows *features"]]

_MADE_AHEAD = 2
# Of an item that does not tell, such as a photograph as it was opened.
_UNKNOWN_BYTES = 2**20
# Beside one for each device, so that a device without rows is never waited for.
STEPS_UNDER_WAY = 2


@dataclass(frozen=True)
class Rows:
    """Rows of one step, as they are on the host.

    Attributes:
        index: places of the rows among the items.
        arrays: of the program's inputs, one row each.
        unit: how many of them a device encodes at once.
        cost: of a row, in any unit of work.
    """

    index: Int[np.ndarray, " rows"]
    arrays: tuple[np.ndarray, ...]
    unit: int
    cost: int = 1

    @property
    def shape(self) -> tuple[Any, ...]:
        """What decides the program that encodes the rows."""
        return self.cost, self.unit, tuple((array.shape[1:], array.dtype.str) for array in self.arrays)


@dataclass
class DeviceSteps:
    """Steps over the devices of a mesh.

    Attributes:
        name: what errors call the program's owner.
        devices: how many of the mesh this process has, which its rows go to.
        on_halved: called with a batch that did not fit and the unit in which it is tried again.
        load: work that each device has had: rows times cost, padding included.
        asked: the same of the rows alone, without padding.
    """

    name: str
    mesh: Mesh
    on_halved: Callable[[Rows, int], None]
    devices: int = field(init=False)
    load: Int[np.ndarray, " devices"] = field(init=False)
    asked: int = 0

    def __post_init__(self):
        self.devices = len(self.mesh.local_devices)
        self.load = np.zeros(self.devices, np.int64)

    def run(self, batches: Iterable[Rows], program: Program) -> Iterator[BatchFeatures]:
        """The features of all rows, batch by batch, in order.

        Args:
            batches: of at most `unit` rows for each device.
            program: (active, *arrays) -> features, over the mesh; see `on_active_devices`.
        """
        waiting: collections.deque[tuple[Rows, np.ndarray, jax.Array | None]] = collections.deque()
        if self.mesh.is_multi_process:
            ahead = MadeAhead(iter(batches))
            placed = map(self._placed, in_step(self.name, ahead))
        else:
            placed = ahead = MadeAhead(map(self._placed, batches))
        with contextlib.closing(ahead):
            for batch, slots, inputs in placed:
                waiting.append((batch, slots, _or_none(program, inputs)))
                if len(waiting) >= STEPS_UNDER_WAY + self.mesh.size - 1:
                    yield from self._fetched(*waiting.popleft(), program)
            while waiting:
                yield from self._fetched(*waiting.popleft(), program)

    def _fetched(
        self, batch: Rows, slots: np.ndarray, features: jax.Array | None, program: Program
    ) -> Iterator[BatchFeatures]:
        found = None if features is None else _or_none(_own_rows, [features])
        if found is not None:
            of_units = found.reshape(self.devices, batch.unit, *found.shape[1:])
            yield batch.index, of_units[slots].reshape(-1, *found.shape[1:])[: len(batch.index)]
            return
        unit = 0 if self.mesh.is_multi_process else batch.unit // 2
        if unit == 0:
            device = self.mesh.devices.flat[0].device_kind
            items = "one item" if batch.unit == 1 else f"{batch.unit} items"
            raise InputError(self.name, "memory of the device", f"no room for {items} on {device}", "a larger device")
        self.on_halved(batch, unit)
        for start in range(0, len(batch.index), unit * self.mesh.size):
            here = slice(start, start + unit * self.mesh.size)
            smaller = dataclasses.replace(
                batch, index=batch.index[here], arrays=tuple(array[here] for array in batch.arrays), unit=unit
            )
            smaller, slots, inputs = self._placed(smaller)
            yield from self._fetched(smaller, slots, _or_none(program, inputs), program)

    def _placed(self, batch: Rows) -> tuple[Rows, np.ndarray, list[jax.Array]]:
        count, devices = len(batch.index), self.devices
        units = -(-count // batch.unit)
        if units > devices:
            raise ValueError(f"{count} rows in units of {batch.unit} for {devices} devices")
        slots = np.sort(np.argsort(self.load, kind="stable")[:units])
        work = batch.unit * batch.cost
        self.load[slots] += work
        self.asked += count * batch.cost
        active = np.zeros(devices, bool)
        active[slots] = True
        padded = (_in_slots(array, slots, batch.unit, devices) for array in batch.arrays)
        sharding = NamedSharding(self.mesh, PartitionSpec(AXES))
        if not self.mesh.is_multi_process:
            return batch, slots, [jax.device_put(array, sharding) for array in (active, *padded)]
        return batch, slots, [jax.make_array_from_process_local_data(sharding, each) for each in (active, *padded)]


def in_step(name: str, batches: Iterator[Rows]) -> Iterator[Rows]:
    """Batches of this process, and between them empty ones in the shapes of other processes' batches, so that all run
    the same programs: of the shapes that are due, the smallest comes first. All processes must call it.

    Raises Exception: what making a batch raised on any process, on all of them.
    """
    due: list[Rows] = []

    def shape_due() -> tuple[Any, ...] | None:
        due.extend(itertools.islice(batches, 1 - len(due)))
        return due[0].shape if due else None

    while shapes := [shape for shape in gather(f"{name}: a step", shape_due) if shape is not None]:
        first = min(shapes)
        if due and due[0].shape == first:
            yield due.pop()
        else:
            cost, unit, arrays = first
            empty = tuple(np.zeros((0, *of_row), dtype) for of_row, dtype in arrays)
            yield Rows(np.zeros(0, np.int64), empty, unit, cost)


def _own_rows(features: jax.Array) -> np.ndarray:
    """The rows on this process's devices, in order."""
    if features.is_fully_addressable:
        return np.asarray(features)
    shards = sorted(features.addressable_shards, key=lambda shard: shard.index[0].start)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error of torch, XLA or Python says that memory ran out."""
    words = ("out of memory", "OutOfMemory", "RESOURCE_EXHAUSTED")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


def _or_none(run: Callable[..., T], inputs: Sequence[Any]) -> T | None:
    """What `run` gives; None where it does not fit into memory."""
    try:
        return run(*inputs)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None


def _in_slots(array: np.ndarray, slots: np.ndarray, unit: int, devices: int) -> np.ndarray:
    """The rows on the devices `slots`, in order. Padding repeats the first row: real content, which makes no NaN."""
    if len(array) == unit * devices:
        return array
    padded = np.empty((len(slots) * unit, *array.shape[1:]), array.dtype)
    padded[: len(array)], padded[len(array) :] = array, array[:1]
    if len(slots) == devices:
        return padded
    placed = np.zeros((devices, unit, *array.shape[1:]), array.dtype)
    placed[slots] = padded.reshape(len(slots), unit, *array.shape[1:])
    return placed.reshape(devices * unit, *array.shape[1:])


def on_active_devices(mesh: Mesh, encode: Program, state: Any, active: Bool[jax.Array, " devices"], *rows) -> jax.Array:
    """`encode(state, *rows)` on each device's rows where `active`, zeros elsewhere. To be called inside `jit`.

    Where parameters are sharded, all devices gather them together, and so all encode.
    """
    if mesh.shape["fsdp"] > 1 or mesh.is_multi_process:
        return jax.lax.with_sharding_constraint(encode(state, *rows), NamedSharding(mesh, PartitionSpec(AXES)))

    def local(state: Any, active: jax.Array, *rows: jax.Array) -> jax.Array:
        made = jax.eval_shape(encode, state, *rows)
        return jax.lax.cond(active[0], encode, lambda *_: jnp.zeros(made.shape, made.dtype), state, *rows)

    split = PartitionSpec(AXES)
    specs = (PartitionSpec(), split, *(split for _ in rows))
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(state, active, *rows)


def collected(
    name: str, what: str, batches: Iterator[BatchFeatures], on_progress: Callable[[int], None] | None = None
) -> Float[np.ndarray, "items *features"]:
    """All features in the order of the items; `name` and `what` say in the error of what there are none."""
    places, features = [], []
    for index, rows in batches:
        places.append(index)
        features.append(rows)
        if on_progress is not None:
            on_progress(len(index))
    if not features:
        raise InputError(name, what, "nothing to encode", "at least one item")
    together, order = np.concatenate(features), np.concatenate(places)
    in_order = np.empty_like(together)
    in_order[order] = together
    return in_order


class MadeAhead(Iterator[T]):
    """Items that a thread makes ahead of their use, from now on. What making an item raised is raised where it is due.

    Args:
        ahead: how many may wait, at least.
        most_bytes: as many more as together take so many bytes, by the first.
    """

    def __init__(self, items: Iterator[T], ahead: int = _MADE_AHEAD, most_bytes: int = 0):
        self._items, self._most_bytes, self._closed = items, most_bytes, False
        self._made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._room = threading.Semaphore(ahead)
        self._thread = threading.Thread(target=self._make, daemon=True, name="batches")
        self._thread.start()

    def _make(self) -> None:
        end: BaseException = StopIteration()
        closes = hasattr(self._items, "close")
        try:
            with contextlib.closing(self._items) if closes else contextlib.nullcontext():
                for number, item in enumerate(self._items):
                    if not number and (more := self._most_bytes // (getattr(item, "nbytes", _UNKNOWN_BYTES) or 1)):
                        self._room.release(more)
                    self._made.put((item, None))
                    self._room.acquire()
                    if self._closed:
                        break
        except BaseException as error:
            end = error
        self._made.put((None, end))

    def __next__(self) -> T:
        item, end = self._made.get()
        if end is not None:
            self._made.put((None, end))  # for whoever asks again
            raise end
        self._room.release()
        return item

    def close(self) -> None:
        """Ends the thread, after the item that it makes."""
        self._closed = True
        self._room.release()
        self._thread.join()
