"""Orders are pure functions of the position, also by shard and by weight, and give every image and source its share."""

import pickle
from fractions import Fraction
from pathlib import Path

import grain.python as grain
import numpy as np
import pytest

from rococo_jax.data import sample_order
from rococo_jax.data.sample_order import MixtureOrder, SampleOrder, is_object_storage, lane_count, read_weights
from tests.support.refusals import refused

SHARDS = (400, 1, 130, 333, 250, 90)
IMAGES = sum(SHARDS)


def drawn(order, count: int) -> np.ndarray:
    return np.array([order.image(position) for position in range(count)])


@pytest.mark.parametrize(("images", "batch_size"), [(10, 7), (10, 10), (11, 10), (20, 13), (100, 32)])
def test_an_epoch_has_full_batches_of_distinct_images_and_random_access(images, batch_size):
    order = SampleOrder(images, batch_size, seed=3)
    whole = images - images % batch_size
    epochs = drawn(order, 50 * whole).reshape(50, whole)
    assert all(len(set(epoch)) == whole for epoch in epochs.tolist())
    assert len(np.unique(epochs, axis=0)) > 45  # two of ten images' orders may agree by chance
    # Every image is left out by chance, the same for all: within 5 standard deviations.
    counts = np.bincount(epochs.ravel(), minlength=images)
    assert np.abs(counts - 50 * whole / images).max() <= 5 * np.sqrt(50 * whole / images * (1 - whole / images))
    assert [order.epoch(position) for position in (0, whole - 1, whole, 2 * whole)] == [0, 0, 1, 2]
    for position in np.random.default_rng(0).integers(0, epochs.size, 100).tolist():
        image = epochs.ravel()[position]
        assert order.image(position) == SampleOrder(images, batch_size, seed=3).image(position) == image


def test_the_order_of_very_many_images_is_a_permutation(monkeypatch):
    monkeypatch.setattr(sample_order, "_MAX_IMAGES_IN_MEMORY", 1000)
    epochs = drawn(SampleOrder(20_000, 64, seed=1), 2 * 19_968).reshape(2, 19_968)
    assert all(len(np.unique(epoch)) == 19_968 and epoch.max() < 20_000 for epoch in epochs)
    assert (epochs[0] == epochs[1]).sum() < 20  # one is expected


def test_every_image_is_equally_often_at_every_position():
    # 400 epochs of 8 images: each image stands at each place 50 times, give or take; chi-square on 49 degrees of
    # freedom stays below 85 with 99.9 %.
    epochs = np.array([drawn(SampleOrder(8, 1, seed), 8) for seed in range(400)])
    counts = np.stack([np.bincount(column, minlength=8) for column in epochs.T])
    assert ((counts - 50) ** 2 / 50).sum() < 85


def test_lanes_divide_the_batch_and_have_32_rows_if_it_is_large_enough():
    assert {size: lane_count(size) for size in (1, 32, 63, 64, 96, 256, 32768, 2**20)} == {
        1: 1, 32: 1, 63: 1, 64: 2, 96: 2, 256: 8, 32768: 1024, 2**20: 1024,
    }  # fmt: skip


@pytest.mark.parametrize("batch_size", [64, 96, 7])
def test_every_lane_reads_shards_from_front_to_back_and_no_image_comes_twice(batch_size):
    order = SampleOrder(IMAGES, batch_size, 1, SHARDS)
    steps = IMAGES // batch_size
    images = drawn(order, 3 * steps * batch_size).reshape(3, steps, batch_size)
    ends = np.cumsum(SHARDS)
    for epoch in images:
        assert len(np.unique(epoch)) == epoch.size > IMAGES - batch_size
        lanes = epoch.reshape(steps, order.lanes, -1).swapaxes(0, 1).reshape(order.lanes, -1)
        for lane in lanes:
            jumps = np.flatnonzero(np.diff(lane) != 1)
            # Only from the end of a shard to the start of another.
            assert all(lane[place] + 1 in ends and lane[place + 1] in (*ends, 0) for place in jumps)
            assert len(jumps) < len(SHARDS)
    assert not np.array_equal(images[0], images[1]) and not np.array_equal(images[1], images[2])
    assert [order.epoch(step * batch_size) for step in (0, steps - 1, steps, 2 * steps)] == [0, 0, 1, 2]
    again = pickle.loads(pickle.dumps(order))
    for position in np.random.default_rng(0).integers(0, images.size, 50).tolist():
        assert again.image(position) == images.ravel()[position]


HALVES = (Fraction(1, 2),) * 2


@pytest.mark.parametrize(
    ("path", "request_each"),
    [("gs://bucket/cc12m-00000.tar", True), ("/data/gcs/cc12m", True), ("/data/gcs", True), ("/data/gcsx", False),
     ("/data/gcs/disk/cc12m", False), ("cc12m", False), ("/data/my data/a.tar", True)],
)  # fmt: skip
def test_data_behind_gcsfuse_is_recognised(path, request_each, tmp_path):
    rows = ("/dev/sda / ext4 rw 0 0", "bucket /data/gcs fuse.gcsfuse rw 0 0", "/dev/sdb /data/gcs/disk xfs rw 0 0",
            r"b /data/my\040data fuse.gcsfuse rw 0 0")  # fmt: skip
    (tmp_path / "mounts").write_text("\n".join(rows) + "\n")
    assert is_object_storage(path, tmp_path / "mounts") == request_each


def test_mounts_are_read_once_for_all_tars(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text("".join(f"d /mnt/{number} ext4 rw 0 0\n" for number in range(100)))
    resolved, resolve = [], Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path: resolved.append(path) or resolve(path))
    assert not any(is_object_storage(f"/data/{number}.tar", tmp_path / "mounts") for number in range(50))
    assert len(resolved) == 50  # of the tars, and not again for each mount


def test_orders_by_shard_refuse_the_same_settings_as_other_orders():
    refused("batch_size: found 11; wanted 1 to 10", SampleOrder, 10, 11, 0, (4, 6))
    refused("batch_size: found 11; wanted 1 to 10", MixtureOrder, (4, 6), HALVES, 11, 0)
    assert MixtureOrder((4, 6), HALVES, 10, 0).images == 10
    assert SampleOrder(2**31 - 1, 8, 0).images == 2**31 - 1
    refused("images: found 2147483648; wanted at most 2147483647", SampleOrder, 2**31, 8, 0)


def test_sources_have_their_shares_and_independent_epochs():
    sizes = (700, 64, 300)
    weights = read_weights("0.5, 0.2,0.3", 3)
    order = MixtureOrder(sizes, weights, 128, 9)
    count = 128 * 96
    images = drawn(order, count)
    source = np.searchsorted(np.cumsum(sizes), images, side="right")
    for number, share in enumerate((0.5, 0.2, 0.3)):
        assert np.abs(np.cumsum(source == number) - share * np.arange(1, count + 1)).max() < 2
    # Every image of a source comes as often as any other, but for the epochs that are under way.
    for number, (first, size) in enumerate(zip((0, 700, 764), sizes, strict=True)):
        own = np.bincount(images[source == number] - first, minlength=size)
        assert own.max() - own.min() <= 1 <= own.min()
    epochs = np.array([order.epoch(position) for position in range(count)])
    for number, size in enumerate(sizes):
        assert abs(int(epochs[source == number].max()) - (source == number).sum() // size) <= 1
    assert (np.diff(epochs[source == 0]) >= 0).all()
    again = pickle.loads(pickle.dumps(order))
    for position in np.random.default_rng(0).integers(0, count, 50).tolist():
        assert again.image(position) == images[position]
    assert (drawn(MixtureOrder(sizes, weights, 128, 8), 500) != images[:500]).mean() > 0.9


def test_every_epoch_of_a_source_has_another_order():
    order = MixtureOrder((64, 64), (Fraction(1, 2), Fraction(1, 2)), 16, 3)
    images = drawn(order, 16 * 24)
    for source in (0, 1):
        first, second = images[images // 64 == source][:128].reshape(2, 64)
        np.testing.assert_array_equal(np.sort(first), np.sort(second))
        assert (first != second).mean() > 0.5


@pytest.mark.parametrize("parts", [(7000, 2000, 1000), (9995, 5), (500,) * 20, (1, 333, 3333, 6333)])
def test_samples_of_sources_are_mixed_as_grain_mixes_datasets(parts):
    """Return weights that Grain's own rounding, to hundredths of the smallest one, does not change."""
    parents = [
        grain.MapDataset.range(10**6).map(lambda count, source=source: (source, count)) for source in range(len(parts))
    ]
    mixed = grain.MapDataset.mix(parents, [float(part) for part in parts])
    order = MixtureOrder((10**6,) * len(parts), [Fraction(part, 10_000) for part in parts], 1, 0)
    images = [(source, epoch * 10**6 + place) for source, epoch, place in map(order._place, range(10_000))]
    assert images == [mixed[number] for number in range(10_000)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5,0.4", "found 0.5,0.4, whose sum is 0.9; wanted weights that sum to 1"),
        ("0.5,0.5,0", "3 weights for 2 sources"),
        ("1", "1 weights for 2 sources"),
        ("1,0", "wanted weights of 0.0001 and more"),
        ("1.5,-0.5", "wanted weights of 0.0001 and more"),
        ("a,b", "numbers with commas between them"),
    ],
)
def test_weights_that_do_not_match_the_sources_are_refused(text, message):
    refused(rf"config\.data\.weights: .*{message}", read_weights, text, 2)


def test_rounded_thirds_are_valid_weights():
    for thirds in ("0.333333,0.333333,0.333334", "0.3333333,0.3333333,0.3333333"):
        assert sum(read_weights(thirds, 3)) == 1


def test_a_mixture_of_many_sources_shuffles_each_source_once_per_epoch(monkeypatch):
    """Five sources drove each other's permutations out of a cache of four: 1,605 us a sample."""
    order = MixtureOrder([200] * 12, [Fraction(1, 12)] * 12, 64, 0)
    shuffled, philox = [], np.random.Philox
    monkeypatch.setattr(np.random, "Philox", lambda seed: shuffled.append(seed) or philox(seed))
    images = [order.image(position) for position in range(12 * 150)]
    assert len(set(images)) > 1500 and len(shuffled) < 40
