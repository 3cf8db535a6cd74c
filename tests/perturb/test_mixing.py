"""Mixed batches: the published arithmetic, draws that depend on key and id alone, one to eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rococo_jax.perturb.images.mixing import Mixing, apply_mixing, draw_boxes, draw_partners, is_negative, mix_batch
from rococo_jax.runtime import make_mesh
from tests.support.refusals import refused

EVERY_PAIR = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij")).astype(np.uint8)[..., None]


def random_images(count: int, side: int = 24) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def mixed_by_torch(images: np.ndarray, partners: np.ndarray, ratio: float) -> np.ndarray:
    """The published arithmetic: float pixels in [0, 1], two products, floor(255 v + 0.5)."""
    torch = pytest.importorskip("torch")
    pixels = torch.from_numpy(np.array(images)).to(torch.float32).div(255)
    mixed = ratio * pixels + (1 - ratio) * pixels[torch.from_numpy(np.array(partners)).long()]
    return mixed.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8).numpy()


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1 / 3, 0.5, 0.7, 0.9, 0.95, 1.0])
def test_every_pair_of_pixel_values_is_mixed_as_by_torch(ratio):
    no_box = jnp.zeros((2, 4), jnp.int32)
    swapped = np.array([1, 0], np.int32)
    mixed = apply_mixing(jnp.asarray(EVERY_PAIR), jnp.asarray(swapped), ratio, no_box, "mix")
    np.testing.assert_array_equal(mixed.images, mixed_by_torch(EVERY_PAIR, swapped, ratio))


def test_mixing_is_exact_inside_a_jitted_step():
    images, key = jnp.asarray(random_images(16)), jax.random.key(3)
    inside = jax.jit(lambda images, key: mix_batch(images, key, Mixing(ratio=0.9)))(images, key)
    np.testing.assert_array_equal(inside.images, mixed_by_torch(np.asarray(images), np.asarray(inside.partners), 0.9))


def test_float_batches_are_mixed_without_rounding_to_bytes():
    images = jnp.asarray(random_images(6), jnp.float32) / 255
    mixed = mix_batch(images, jax.random.key(0), Mixing(ratio=0.75))
    expected = 0.75 * np.asarray(images) + 0.25 * np.asarray(images)[np.asarray(mixed.partners)]
    np.testing.assert_allclose(mixed.images, expected, atol=2e-7)  # one rounding of float32 near 1


def test_a_patched_image_shows_the_partner_inside_the_box_and_the_image_outside():
    images = random_images(8)
    mixed = mix_batch(jnp.asarray(images), jax.random.key(1), Mixing(method="patch", ratio=0.6))
    for number, (x1, y1, x2, y2) in enumerate(np.asarray(mixed.boxes)):
        expected = images[number].copy()
        expected[x1:x2, y1:y2] = images[int(mixed.partners[number]), x1:x2, y1:y2]
        np.testing.assert_array_equal(mixed.images[number], expected)
        assert float(mixed.ratio[number]) == pytest.approx(1 - (x2 - x1) * (y2 - y1) / 24**2)
        assert float(mixed.ratio[number]) >= 0.6  # int() and the border only ever make the box smaller
    assert len({tuple(box) for box in np.asarray(mixed.boxes).tolist()}) > 1


@pytest.mark.parametrize("group", [None, 2, 4])
def test_partners_are_a_permutation_within_groups_without_fixed_points(group):
    for seed in range(20):
        partners = np.asarray(draw_partners(jax.random.key(seed), 16, group=group))
        assert sorted(partners) == list(range(16))
        assert (partners != np.arange(16)).all()
        if group:
            np.testing.assert_array_equal(partners // group, np.arange(16) // group)


@pytest.mark.slow
def test_random_draws_of_an_image_do_not_depend_on_its_batch():
    ids, ratio, key = jnp.arange(64), jnp.linspace(0.2, 0.9, 64), jax.random.key(2)
    boxes = draw_boxes(key, ids, ratio, 100, 80)
    for part in (slice(3, 11), slice(56, 64)):
        np.testing.assert_array_equal(draw_boxes(key, ids[part], ratio[part], 100, 80), boxes[part])
    partners = draw_partners(key, 64, group=8)
    np.testing.assert_array_equal(draw_partners(key, 16, group=8), partners[:16])


OTHERS = [(count, "mix", group) for count, group in ((1, None), (4, None), (2, 4), (8, 4), (8, 16))]
OTHERS += [(8, "patch", group) for group in (4, 32)]


@pytest.mark.parametrize(
    ("devices", "method", "group"),
    # In the whole batch, within a device, and over two and four devices.
    [(8, "patch", 16)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, "patch", None), (8, "mix", None))]
    + [pytest.param(*case, marks=pytest.mark.thorough) for case in OTHERS],
)
def test_mixing_gives_the_same_bytes_on_one_and_two_and_eight_devices(devices, method, group):
    images, key = jnp.asarray(random_images(64)), jax.random.key(4)
    mesh = make_mesh(jax.devices()[:devices])
    for ratio in (0.37, 0.9):  # a tenth of all pixel pairs is a tie at 0.9
        mixing = Mixing(method=method, ratio=ratio, group=group)
        alone, spread = (mix_batch(images, key, mixing, mesh=used) for used in (None, mesh))
        for one, other in zip(alone, spread, strict=True):
            np.testing.assert_array_equal(one, other)


def test_devices_exchange_no_data_if_partners_stay_in_their_group():
    from rococo_jax.perturb.images.mixing import _mix_over_mesh

    shares = jnp.full(16, 0.9)
    arguments = (jnp.asarray(random_images(16)), jnp.arange(16), shares, 1 - shares, jnp.zeros((16, 4), jnp.int32))
    mesh = make_mesh()
    pairs, every = (_mix_over_mesh(mesh, "mix", span).lower(*arguments).as_text() for span in (2, 8))
    silent = _mix_over_mesh(mesh, "mix", 1).lower(*arguments).compile().as_text()
    # Two devices that share a group gather its images, and no others.
    neighbours = "[[0, 1], [2, 3], [4, 5], [6, 7]]"
    assert neighbours in pairs and "all_gather" in every and neighbours not in every
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in silent


def test_a_mixed_image_without_content_of_another_is_not_a_negative():
    images, ids = jnp.asarray(random_images(4)), jnp.array([0, 0, 1, 2])
    no_box = jnp.zeros((4, 4), jnp.int32)
    boxes = no_box.at[1:].set(jnp.array([2, 3, 8, 9])).at[2].set(0)
    mixed = apply_mixing(images, jnp.array([1, 0, 3, 2]), 0.9, boxes, "patch")
    np.testing.assert_array_equal(is_negative(mixed, ids), [False, False, False, True])
    mixed = apply_mixing(images, jnp.array([1, 0, 3, 2]), 1.0, no_box, "mix")
    assert not is_negative(mixed, ids).any()


def test_invalid_mixings_and_single_images_and_uneven_splits_are_refused():
    for given in ({"method": "blend"}, {"group": 1}):
        refused("mixing", Mixing, **given)
    cases = [(1, None, None, "at least two"), (6, 4, None, "multiple of the group size 4")]
    cases += [
        (count, group, make_mesh(), "a number that 8 devices share evenly")
        for count, group in ((6, None), (24, 2), (48, 4))
    ]
    for count, group, mesh, message in cases:
        images = jnp.asarray(random_images(count))
        refused(message, mix_batch, images, jax.random.key(0), Mixing(group=group), mesh=mesh)


def test_sides_of_a_box_are_rounded_down_and_halved_as_published():
    """CutMix (arXiv 1905.04899): `int(side * sqrt(1 - ratio))`, and half of it, floored, to each side of the centre."""
    height, width, told_apart = 37, 53, 0
    for ratio in (0.5, 0.6, 0.75, 0.9):
        boxes = np.asarray(draw_boxes(jax.random.key(0), jnp.arange(200), jnp.full(200, ratio), height, width))
        for low, high, side in ((boxes[:, 0], boxes[:, 2], height), (boxes[:, 1], boxes[:, 3], width)):
            inside = (low > 0) & (high < side)
            exact = side * np.sqrt(1 - ratio)
            assert inside.any() and set((high - low)[inside].tolist()) == {2 * (int(exact) // 2)}
            told_apart += 2 * (int(exact) // 2) != 2 * (round(exact) // 2)
    assert told_apart, "some of these sides would differ if they were rounded"
