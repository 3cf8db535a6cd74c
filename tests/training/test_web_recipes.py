"""Test recipes of web-scale training: colours, patches dropped, positions resampled, a locked tower."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.augmentation import Augmentation, jitter_colours
from rococo_jax.encoders import load_model
from rococo_jax.models.vision import VisionTower
from rococo_jax.training.batch import Batch, Images, Texts, drop_patches, patches_per_image
from rococo_jax.training.config import default_config
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.run import run_training
from tests.support.input_world import IMAGES
from tests.support.programs import QUICK
from tests.support.refusals import refused
from tests.support.tiny import tiny_spec
from tests.support.tiny_runs import changed, mesh_of, metrics_of, trained_parameters
from tests.support.training_pairs import PREPROCESSING

# Colours

COLOURS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
LUMA = np.array([299, 587, 114]) / 1000
# From -1 to 1: how far three factors and the turn of the hue go, as shares of their strengths.
DRAWS = 2 * np.random.default_rng(2).random(4) - 1


def jittered_by(number: int, strength: float) -> np.ndarray:
    strengths = tuple(strength * (place == number) for place in range(4))
    return jitter_colours(COLOURS, strengths, np.random.default_rng(2)).astype(float)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_brightness_contrast_and_saturation_scale_pixels_from_black_mean_and_grey(number):
    grey, found = COLOURS @ LUMA, jittered_by(number, 0.6)
    origin = (0.0, np.round(grey.mean()), grey[..., None])[number]
    expected = np.clip(origin + (1 + 0.6 * DRAWS[number]) * (COLOURS - origin), 0, 255)
    assert np.abs(found - expected).max() <= 2  # greys are rounded, and so is what is made of them
    assert np.abs(found - COLOURS).mean() > 5


def test_hue_jitter_rotates_the_hue_and_keeps_saturation_and_value():
    found, (hue, saturation, value) = jittered_by(3, 0.3) / 255, np.moveaxis(rgb_to_hsv(COLOURS / 255), -1, 0)
    expected = hsv_to_rgb(np.stack([(hue + 0.3 * DRAWS[3]) % 1, saturation, value], -1))
    # Pillow keeps hue and saturation in 8 bits.
    assert np.abs(rgb_to_hsv(found)[..., 2] - value).max() < 0.01 and np.abs(found - expected).max() < 0.04


def test_colour_jitter_has_its_probability_and_changes_no_other_augmentation():
    image, plain = Image.fromarray(COLOURS), Augmentation(crop_scale=(0.3, 0.9), flip=True)
    coloured = dataclasses.replace(plain, jitter=(0.4, 0.4, 0.4, 0.1), jitter_prob=0.25, grayscale_prob=0.5)
    before, after = (
        np.stack([each.apply(image, PREPROCESSING, np.random.default_rng(seed)) for seed in range(400)])
        for each in (plain, coloured)
    )
    grey, different = (np.ptp(after, axis=-1) == 0).all((1, 2)), (before != after).any((1, 2, 3))
    assert abs(grey.sum() - 200) < 50 and abs((different & ~grey).sum() - 50) < 33  # 5 standard deviations


def test_a_run_jitters_colours_as_its_config_describes(world):
    def pixels(**settings) -> np.ndarray:
        return np.concatenate([batch.images.pixels for batch in world.take(3, **settings)])

    none, grey = pixels(), pixels(data__grayscale_prob=1.0)
    some = pixels(data__color_jitter="0.9,0,0,0", data__color_jitter_prob=0.5)
    wanted = [np.asarray(Image.fromarray(each).convert("L").convert("RGB")) for each in none]
    np.testing.assert_array_equal(grey, wanted)
    same = (none == some).all((1, 2, 3))
    assert 1 <= same.sum() < IMAGES


# Patches


def test_the_tower_sees_only_the_kept_patches_at_their_positions():
    spec = dataclasses.replace(tiny_spec(16).vision, pooling="cls+mean", layers=1)
    tower = VisionTower(spec, rngs=nnx.Rngs(0))
    graph, parameters = nnx.split(tower)
    pixels = jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
    patches = jnp.array([[0, 5, 9, 15], [1, 2, 3, 12]])

    @partial(jax.jit, compiler_options=QUICK)
    def made(parameters, pixels):
        tower = nnx.merge(graph, parameters)
        tokens = tower.embed(pixels)
        own = jnp.take_along_axis(tokens[:, 1:], patches[..., None], axis=1)
        by_hand = tower.pool(tower.norm(tower.blocks(jnp.concatenate([tokens[:, :1], own], axis=1))))
        everything = jnp.broadcast_to(jnp.arange(16), (2, 16))
        read = jax.grad(lambda pixels: (tower(pixels, patches) ** 2).sum())(pixels)
        return by_hand, tower(pixels, patches), tower(pixels), tower(pixels, everything), read

    by_hand, found, whole, of_all, read = made(parameters, pixels)
    np.testing.assert_allclose(found, by_hand, atol=1e-6)
    np.testing.assert_allclose(of_all, whole, atol=1e-6)
    moved = np.abs(read).reshape(2, 4, 8, 4, 8, 3).max((2, 4, 5)).reshape(2, 16) > 0
    np.testing.assert_array_equal(moved, [np.isin(np.arange(16), each) for each in patches])


def dropping(rate: float):
    return changed(default_config(), patch_dropout=rate)


def test_kept_patches_are_uniform_and_independent_and_the_same_on_any_devices():
    spec, found = tiny_spec(16), {}
    pixels = np.zeros((64, 32, 32, 3), np.uint8)
    fields = {"mixed": Images(pixels=pixels[:, None]), "altered": Texts()}
    batch = Batch(Images(pixels=pixels), Texts(), np.arange(64, dtype=np.int32), fields, {})
    for devices in (1, 4):
        mesh = mesh_of(devices)
        drawn = jax.jit(lambda step, mesh=mesh: drop_patches(batch, dropping(0.7), spec, step, mesh))
        for step in (0, 1):
            made = drawn(step)
            patches = np.asarray(made.images.patches), np.asarray(made.fields["mixed"].patches)[:, 0]
            for number, each in enumerate(patches):
                np.testing.assert_array_equal(found.setdefault((step, number), each), each)
            assert made.fields["altered"] == Texts()
    for each in found.values():
        assert each.shape == (64, 4) and (np.diff(each) > 0).all() and each.min() >= 0 and each.max() < 16
        assert len(np.unique(each, axis=0)) > 50
    assert len({each.tobytes() for each in found.values()}) == 4
    # 1,024 draws of 16 patches: chi-square on 15 degrees of freedom stays below 37.7 with 99.9 %.
    counts = np.bincount(np.concatenate([each.ravel() for each in found.values()]), minlength=16)
    assert ((counts - 64) ** 2 / 64).sum() < 37.7


def test_patch_dropout_determines_the_number_of_patches_that_are_kept():
    spec = tiny_spec()  # 16 patches
    for rate, kept in ((0.5, 8), (0.75, 4), (0.9, 1), (0.999, 1), (0.1, 14)):
        assert patches_per_image(dropping(rate), spec) == kept
    assert patches_per_image(dropping(0.0), spec) is None
    resnet = dataclasses.replace(spec, vision=dataclasses.replace(spec.vision, stem_width=8))
    refused(r"patch_dropout: found 0\.5; wanted 0 for a convolutional tower", patches_per_image, dropping(0.5), resnet)


# Positions


def test_positions_are_resampled_once_at_the_start_and_then_trained_individually(world):
    start = str(world.folder / "start")
    encoder = starting_encoder(world.config_of(init__model=start, init__image_size=56))
    stored, own = (parameters_of(each.model)["vision.positions"] for each in (world.encoder, encoder))
    assert stored.shape == (17, 16) and own.shape == (50, 16) and encoder.spec.vision.position_grid is None
    assert encoder.preprocessing.image_size == (56, 56)
    # The converter's way, which interpolates the stored ones at every call, has torch's result.
    reference = load_model(start, image_size=56)
    assert reference.spec.vision.position_grid == 4
    images = np.random.default_rng(0).integers(0, 256, (2, 56, 56, 3), np.uint8)
    np.testing.assert_allclose(encoder.image_features(images), reference.image_features(images), atol=1e-6)
    np.testing.assert_array_equal(own[0], stored[0])
    unchanged = starting_encoder(world.config_of(init__model=start, init__image_size=32))
    np.testing.assert_array_equal(parameters_of(unchanged.model)["vision.positions"], stored)


# A locked image tower


@pytest.mark.thorough
def test_a_locked_run_has_the_same_losses_from_cached_features_as_from_pixels(world, tmp_path):
    losses = []
    for name, cached in (("cached", True), ("pixels", False)):
        settings = {"steps": 3, "log__every": 1, "log__tensorboard": False, "optimizer__warmup_fraction": 0.0}
        settings |= {"init__model": str(world.folder / "start"), "train__vision": "none"}
        config = world.config_of(data__cached_features=cached, **settings)
        done = run_training(config, tmp_path / name, mesh=mesh_of(1))
        losses.append([line["loss"] for line in metrics_of(tmp_path / name)])
        before = parameters_of(world.encoder.model)
        moved = {path for path, array in trained_parameters(done.model).items() if (array != before[path]).any()}
        assert {path.partition(".")[0] for path in moved} == {"text", "text_head", "vision_head", "logit_scale"}
    np.testing.assert_allclose(*losses, rtol=1e-5)
