"""Test corruptions through the public interface: same key, same bytes; checks of names, severities and sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES, find_corruption
from rococo_jax.runtime import make_mesh
from tests.support.cases import further
from tests.support.refusals import refused

# One of each way of working: per value, sampling between pixels, loops until nothing changes.
REPRESENTATIVE = ["gaussian_noise", "elastic_transform", "spatter"]
# Another batch size on another number of devices, beside 64 on one. More of them for elastic_transform, whose many
# products and sums are the first that the compiler rounds differently in a program of another size: two pairs, and all
# sizes and numbers of devices in a thorough run.
EACH_ONCE, MORE = [(7, 8)], [(64, 8)]
ALL = [(1, 1), (1, 2), (2, 2), (7, 1), (7, 4), (7, 8), (64, 2), (64, 8)]


def images(count: int, side: int = 40) -> np.ndarray:
    smooth = np.random.default_rng(0).integers(0, 256, (count, side // 8, side // 8, 3), dtype=np.uint8)
    return smooth.repeat(8, axis=1).repeat(8, axis=2)


def check(name: str, cases: list[tuple[int, int]]) -> None:
    """Compare batches of several sizes on several devices with 64 images on one: the bytes are equal."""
    batch, key = images(64), jax.random.key(11)
    whole = np.asarray(CORRUPTIONS[name](batch, 3, key))
    for count, devices in cases:
        some = np.arange(64)[-count:]  # the last ones of the 64, so that their places differ too
        mesh = None if devices == 1 else make_mesh(jax.devices()[:devices])
        np.testing.assert_array_equal(CORRUPTIONS[name](batch[some], 3, key, ids=some, mesh=mesh), whole[some])


@pytest.mark.slow
@pytest.mark.parametrize("name", further(REPRESENTATIVE, ("elastic_transform",), pytest.mark.thorough))
def test_the_same_key_gives_the_same_bytes_for_any_batch_and_number_of_devices(name):
    check(name, EACH_ONCE + (MORE if name == "elastic_transform" else []))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_key_gives_the_same_bytes_for_any_batch_and_number_of_devices_in_all_kinds(name):
    check(name, ALL if name == "elastic_transform" else [(1, 2), *EACH_ONCE])


def test_another_key_or_id_gives_another_corruption():
    batch = images(2)
    one = np.asarray(CORRUPTIONS["gaussian_noise"](batch, 1, jax.random.key(0)))
    assert (one != np.asarray(CORRUPTIONS["gaussian_noise"](batch, 1, jax.random.key(1)))).mean() > 0.5
    same_picture = np.stack([batch[0], batch[0]])
    twice = np.asarray(CORRUPTIONS["gaussian_noise"](same_picture, 1, jax.random.key(0)))
    assert (twice[0] != twice[1]).mean() > 0.5


def test_there_are_nineteen_kinds_of_corruption_in_four_groups():
    assert len(CORRUPTIONS) == 19
    assert sum(kind.extra for kind in CORRUPTIONS.values()) == 4
    assert {kind.group for kind in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    names = pytest.importorskip("imagecorruptions").get_corruption_names
    assert list(CORRUPTIONS) == names("all")


def test_an_unknown_kind_is_refused_with_the_nearest_name():
    refused("did you mean gaussian_noise", find_corruption, "Gaussian Nois")
    refused("found 'zzz'; wanted one of the 19 that `rococo corrupt-images --help` lists", find_corruption, "zzz")


@pytest.mark.slow
def test_kinds_that_divide_by_brightness_handle_black_images():
    black = np.zeros((1, 32, 32, 3), np.uint8)
    for name in ("brightness", "saturate", "fog"):
        out = np.asarray(CORRUPTIONS[name](black, 3, jax.random.key(0)))
        expected = {"brightness": 76, "saturate": 0, "fog": 0}[name]  # 0.3 of white; no colour; dimmed to nothing
        assert (out == expected).all()


def test_corrupted_images_stay_on_their_devices():
    out = CORRUPTIONS["contrast"](jnp.asarray(images(16)), 2, jax.random.key(0), mesh=make_mesh())
    assert out.sharding.num_devices == jax.device_count()
    assert set(SEVERITIES) == {1, 2, 3, 4, 5}
