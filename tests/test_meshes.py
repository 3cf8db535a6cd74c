"""Meshes put devices that exchange most next to each other, in their slice; batches keep their rows."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rococo_jax.runtime import AXES, device_array, make_mesh, rows_of


@dataclasses.dataclass(frozen=True)
class Chip:
    """Attributes of a TPU device in JAX."""

    id: int
    device_kind: str
    coords: tuple[int, int, int]
    slice_index: int
    process_index: int
    platform: str = "tpu"
    core_on_chip: int = 0


def chips(kind: str, shape: tuple[int, int, int], slices: int = 1) -> list[Chip]:
    """Return devices in the order of `jax.devices()`: slice by slice, host by host of 2 x 2 chips."""
    hosts = itertools.product(range(slices), range(shape[2]), range(0, shape[1], 2), range(0, shape[0], 2))
    places = [(each, (x + i, y + j, z)) for each, z, y, x in hosts for j in range(2) for i in range(2)]
    return [Chip(number, kind, at, each, number // 4) for number, (each, at) in enumerate(places)]


def steps(line: list[Chip], shape: tuple[int, int, int], torus: bool) -> list[int]:
    """Links between neighbours on a line of devices that is closed to a ring."""
    found = []
    for one, other in zip(line, [*line[1:], line[0]], strict=True):
        apart = [abs(a - b) for a, b in zip(one.coords, other.coords, strict=True)]
        found.append(sum(min(d, size - d) if torus else d for d, size in zip(apart, shape, strict=True)))
    return found


@pytest.mark.parametrize(("kind", "shape", "fsdp"), [
    ("TPU v4", (4, 4, 4), 4), ("TPU v4", (4, 4, 4), 16), ("TPU v5", (4, 4, 8), 8), ("TPU v5 lite", (4, 4, 1), 4),
])  # fmt: skip
def test_devices_that_share_parameters_are_neighbours(kind, shape, fsdp):
    devices, torus = chips(kind, shape), kind != "TPU v5 lite"  # a v5e slice of 4 x 4 has no links around
    mesh = device_array(devices, fsdp)
    assert mesh.shape == (len(devices) // fsdp, fsdp) and set(mesh.flat) == set(devices)
    in_order = np.asarray(devices).reshape(mesh.shape)
    links, before = (np.mean([np.mean(steps(list(row), shape, torus)) for row in each]) for each in (mesh, in_order))
    assert links <= before
    if fsdp == shape[-1]:
        assert links == 1


@pytest.mark.parametrize(("fsdp", "slices_of_a_group"), [(1, 1), (4, 1), (16, 1), (32, 2), (64, 4)])
def test_parameters_are_sharded_within_a_slice_if_it_has_enough_devices(fsdp, slices_of_a_group):
    devices = chips("TPU v5 lite", (4, 4, 1), slices=4)
    mesh = device_array(devices[::-1], fsdp)
    assert set(mesh.flat) == set(devices)
    assert {len({chip.slice_index for chip in row}) for row in mesh} == {slices_of_a_group}
    # Along `data`, slices come one after the other, so that a reduction has a part in each.
    first = [row[0].slice_index for row in mesh]
    assert first == sorted(first)


def test_devices_that_do_not_form_a_cuboid_keep_their_order():
    devices = chips("TPU v4", (2, 2, 2))
    some = [*devices[:3], *devices[5:]]
    assert device_array(some, 2).tolist() == np.asarray(some).reshape(-1, 2).tolist()
    assert device_array(devices, 1).shape == (8, 1)
    three_slices = [dataclasses.replace(chip, slice_index=min(number // 3, 2)) for number, chip in enumerate(devices)]
    assert device_array(three_slices, 4).tolist() == np.asarray(three_slices).reshape(-1, 4).tolist()


def test_devices_of_one_host_keep_their_order():
    assert make_mesh(fsdp=2).devices.ravel().tolist() == jax.devices()


def test_rows_of_a_device_are_the_ones_that_jax_places_there():
    devices = np.random.default_rng(0).permutation(np.asarray(jax.devices()))
    mesh, batch = make_mesh(list(devices), fsdp=2), np.arange(24)
    placed = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(AXES)))
    own = list(devices[[3, 0, 6]])
    wanted = np.concatenate([shard.data for shard in placed.addressable_shards if shard.device in own])
    assert rows_of(own, mesh, 24).tolist() == sorted(wanted.tolist())
    assert rows_of(mesh.local_devices, mesh, 24).tolist() == list(range(24))
