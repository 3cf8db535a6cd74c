"""Recipes of web-scale training do what they say: colours, patches dropped, positions resampled, a locked tower."""

import colorsys
import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from rococo_jax.checkpoints.parameters import parameters_of
from rococo_jax.data.augmentation import Augmentation, jittered
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.models.vision import VisionTower
from rococo_jax.training.batch import Batch, Images, Texts, drop_patches, kept_patches
from rococo_jax.training.config import check_config, default_config, read_config
from rococo_jax.training.init import starting_encoder
from rococo_jax.training.inputs.batches import make_input
from rococo_jax.training.program import step_flops
from rococo_jax.training.run import train
from rococo_jax.training.step import lower_step
from tests.support.input_world import IMAGES, make_world, pixels_of
from tests.support.paths import CHECKOUT
from tests.support.programs import QUICK
from tests.support.refusals import refused
from tests.support.step_cases import PREPROCESSING as OF_CASES
from tests.support.step_cases import TOKENS, Case, run, spec_of
from tests.support.tiny import tiny_spec
from tests.support.tiny_runs import mesh_of, metrics_of, trained_parameters, with_a_broken_image
from tests.support.training_pairs import PREPROCESSING


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


# Colours

COLOURS = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
LUMA = np.array([299, 587, 114]) / 1000


def factor(strength: float, number: int, turned: float = 0.0) -> float:
    """The draw of one strength: three factors, then the turn of the hue."""
    rng = np.random.default_rng(2)
    draws = [rng.uniform(1 - (strength if place == number else 0), 1 + (strength if place == number else 0))
             for place in range(3)]  # fmt: skip
    return rng.uniform(-turned, turned) if turned else draws[number]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_brightness_contrast_and_saturation_move_pixels_along_their_line(number):
    strengths = [0.0] * 4
    strengths[number] = 0.6
    grey = COLOURS @ LUMA
    origin = (0.0, np.round(grey.mean()), grey[..., None])[number]
    wanted = np.clip(origin + factor(0.6, number) * (COLOURS - origin), 0, 255)
    found = jittered(COLOURS, tuple(strengths), np.random.default_rng(2)).astype(float)
    assert np.abs(found - wanted).max() <= 2  # greys are rounded, and so is what is made of them
    assert np.abs(found - COLOURS).mean() > 5


def test_the_hue_turns_and_nothing_else():
    found = jittered(COLOURS, (0.0, 0.0, 0.0, 0.3), np.random.default_rng(2)) / 255
    turn = factor(0.0, 0, 0.3)
    for one, other in zip(COLOURS.reshape(-1, 3) / 255, found.reshape(-1, 3), strict=True):
        (hue, saturation, value), after = colorsys.rgb_to_hsv(*one), colorsys.rgb_to_hsv(*other)
        # Pillow keeps hue and saturation in 8 bits.
        assert (
            abs(after[2] - value) < 0.01
            and np.abs(np.array(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)) - other).max() < 0.04
        )


def test_colours_change_as_often_as_asked_and_no_other_draw_does():
    image, plain = Image.fromarray(COLOURS), Augmentation(crop_scale=(0.3, 0.9), flip=True)
    coloured = dataclasses.replace(plain, jitter=(0.4, 0.4, 0.4, 0.1), jitter_prob=0.25, grayscale_prob=0.5)
    changed = grey = 0
    for seed in range(400):
        before, after = (each.apply(image, PREPROCESSING, np.random.default_rng(seed)) for each in (plain, coloured))
        is_grey = bool((np.ptp(after, axis=-1) == 0).all())
        grey += is_grey
        changed += not is_grey and bool((before != after).any())
    assert abs(grey - 200) < 50 and abs(changed - 50) < 33  # 5 standard deviations


def test_colours_of_a_run_are_those_of_its_config(world):
    def pixels(**settings) -> np.ndarray:
        return np.concatenate([batch.images.pixels for batch in world.take(3, **settings)])

    none, grey = pixels(), pixels(data__grayscale_prob=1.0)
    some = pixels(data__color_jitter="0.9,0,0,0", data__color_jitter_prob=0.5)
    wanted = [np.asarray(Image.fromarray(each).convert("L").convert("RGB")) for each in none]
    np.testing.assert_array_equal(grey, wanted)
    same = (none == some).all((1, 2, 3))
    assert 1 <= same.sum() < IMAGES


# Patches


def test_the_tower_sees_the_kept_patches_at_their_places_alone():
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


def dropping(rate: float, **settings):
    config = default_config()
    config.patch_dropout, config.batch_size = rate, 64
    config.update(settings)
    return config


def test_patches_are_drawn_evenly_anew_for_every_image_step_and_field_and_the_same_on_any_devices():
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


def test_the_share_of_patches_and_what_they_cost():
    spec = tiny_spec()  # 16 patches and a class token, 2 blocks of width 32
    for rate, kept in ((0.5, 8), (0.75, 4), (0.9, 1), (0.999, 1), (0.1, 14)):
        assert kept_patches(dropping(rate), spec) == kept
    assert kept_patches(dropping(0.0), spec) is None

    def by_hand(patches: int) -> int:
        tokens = patches + 1
        block = 2 * tokens * 32 * (4 * 32 + 2 * 64) + 4 * tokens * tokens * 32
        return 2 * patches * 192 * 32 + 2 * block + 2 * 32 * 16

    assert image_flops(spec) == by_hand(16) and image_flops(spec, 4) == by_hand(4)
    texts = 3 * 64 * text_flops(spec, 10)
    assert step_flops(dropping(0.75), spec, 10) == pytest.approx(3 * 64 * by_hand(4) + texts)
    resnet = dataclasses.replace(spec, vision=dataclasses.replace(spec.vision, stem_width=8))
    with pytest.raises(InputError, match=r"patch_dropout: found 0\.5; wanted 0 for a convolutional tower"):
        kept_patches(dropping(0.5), resnet)


def lowered(**settings) -> str:
    """A step of a tower with 4 patches of an image and a class token."""
    case = Case((("batch_size", 8), *((key.replace("__", "."), value) for key, value in settings.items())))
    mesh = mesh_of(1)
    return lower_step(case.config(), spec_of(case), OF_CASES, mesh, TOKENS).as_text()


def test_a_step_computes_the_kept_patches_and_the_texts_alone_where_images_are_locked():
    whole, dropped = lowered(), lowered(patch_dropout=0.5)
    assert "tensor<8x5x16xf32>" in whole and "tensor<8x3x16xf32>" not in whole
    assert "tensor<8x3x16xf32>" in dropped and "tensor<8x5x16xf32>" not in dropped
    locked = lowered(train__vision="none", data__cached_features=True)
    texts = f"tensor<8x{TOKENS}x16xf32>"
    assert texts in locked and "tensor<8x5x16xf32>" not in locked and "x3xui8>" not in locked and "x3xui8>" in whole


def test_patches_are_dropped_by_the_number_of_the_step(monkeypatch):
    case = Case((("batch_size", 8), ("patch_dropout", 0.5)))
    steps = []

    def recorded(batch, config, spec, step, mesh):
        jax.debug.callback(lambda step: steps.append(int(step)), step)
        return batch

    monkeypatch.setattr("rococo_jax.training.step.drop_patches", recorded)
    run(case)
    jax.effects_barrier()
    assert steps == list(range(len(steps))) and len(steps) > 1


@pytest.mark.thorough
def test_steps_with_patches_dropped_are_the_same_on_two_devices_and_in_parts():
    settings = (("batch_size", 8), ("patch_dropout", 0.5), ("optimizer.eps", 1e-3), ("optimizer.learning_rate", 1e-2),
                ("optimizer.warmup_fraction", 0.0))  # fmt: skip
    one, other = run(Case(settings)), run(Case((*settings, ("micro_batches", 2)), devices=2))
    whole = run(Case((*settings[:1], ("patch_dropout", 0.0), *settings[2:])))

    def relative(found, wanted) -> float:
        return max(
            float(np.abs(found[3].parameters[path] - array).max() / np.abs(array).max())
            for path, array in wanted[3].parameters.items()
        )

    assert relative(other, one) < 1e-5 < 1e-3 < relative(whole, one)


# Positions


def test_positions_are_resampled_once_and_then_trained_each_by_itself(world):
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
    config = world.config_of(init__image_size=56, init__tokenizer=start)
    config.init.spec = tiny_spec(16).to_json()
    refused(r"init\.image_size: found 56; wanted 0 with config\.init\.spec", starting_encoder, config)


# A locked image tower

LIT = {"train__vision": "none", "data__cached_features": True}
BOTH = {**LIT, "train__text": "none"}


def test_a_locked_image_tower_is_read_once_and_texts_at_every_step(world):
    features = world.encoder.image_features(np.stack([pixels_of(number) for number in range(IMAGES)]))
    for choices in ({}, {"losses__sc__weight": 1.0, "losses__sc__count": 2}):
        locked, plain = world.take(3, **LIT, **choices), world.take(3, **choices)
        for one, other in zip(locked, plain, strict=True):
            assert one.images.pixels is None
            np.testing.assert_allclose(one.images.features, features[one.image_id], atol=1e-5)
            np.testing.assert_array_equal(one.image_id, other.image_id)
            np.testing.assert_array_equal(one.texts.ids, other.texts.ids)
            for name in other.fields:
                np.testing.assert_array_equal(one.fields[name].ids, other.fields[name].ids)
                np.testing.assert_array_equal(one.valid[name], other.valid[name])


def test_broken_images_are_left_out_of_the_locked_ones_or_stop_the_run(world):
    broken = with_a_broken_image(world.folder / "images", world.folder / "broken")
    batches = make_input(world.context(data__images=broken, **LIT))
    taken = [next(batches) for _ in range(11)]
    assert batches.counts["skipped_images"] == 1
    assert len({bytes(row) for batch in taken for row in batch.images.features}) == 11
    with pytest.raises(InputError, match=r"07\.png"):
        make_input(world.context(data__images=broken, data__on_decode_error="raise", **LIT))


@pytest.mark.thorough
def test_a_locked_run_trains_the_text_tower_to_the_same_losses_as_with_pixels(world, tmp_path):
    losses = []
    for name, cached in (("cached", True), ("pixels", False)):
        settings = {"steps": 3, "log__every": 1, "log__tensorboard": False, "optimizer__warmup_fraction": 0.0}
        settings |= {"init__model": str(world.folder / "start"), "train__vision": "none"}
        config = world.config_of(data__cached_features=cached, **settings)
        done = train(config, tmp_path / name, mesh=mesh_of(1))
        losses.append([line["loss"] for line in metrics_of(tmp_path / name)])
        before = parameters_of(world.encoder.model)
        moved = {path for path, array in trained_parameters(done.model).items() if (array != before[path]).any()}
        assert {path.partition(".")[0] for path in moved} == {"text", "text_head", "vision_head", "logit_scale"}
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_operations_of_a_locked_run_are_those_of_the_texts():
    config, spec = default_config(), tiny_spec()
    config.batch_size, config.train.vision, config.data.cached_features = 64, "none", True
    check_config(config)
    assert step_flops(config, spec, 10) == pytest.approx(3 * 64 * (text_flops(spec, 10) + 2 * 32 * 16))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LIT, "data__flip": True}, "config.data.flip: found True; wanted none with config.data.cached_features"),
        (
            {**BOTH, "data__random_crop_min_scale": 0.5},
            "data.random_crop_min_scale: found 0.5; wanted none with",
        ),
        ({**LIT, "losses__vc__weight": 1.0}, "config.losses.vc.weight: found 1.0; wanted 0.0 with"),
        ({**LIT, "data__feature_noise": 0.1}, "config.data.feature_noise: found 0.1; wanted 0 unless"),
        ({**LIT, "data__order": "shards"}, "config.data.order: found 'shards'; wanted the default with"),
        ({**LIT, "data__weights": "0.5,0.5"}, "config.data.weights: found '0.5,0.5'; wanted the default with"),
        ({**LIT, "patch_dropout": 0.5}, "config.patch_dropout: found 0.5; wanted 0 with config.data.cached_features"),
        ({"data__cached_features": True}, "config.data.cached_features: found true, and the towers train 'all'"),
        ({"patch_dropout": 1.0}, "config.patch_dropout: found 1.0; wanted a share from 0 to 1 (excluded)"),
        ({"data__color_jitter": "0.4,0.4"}, "config.data.color_jitter: found '0.4,0.4'; wanted '' or four strengths"),
        ({"data__color_jitter": "1,1,1,0.6"}, "of hue, at most 0.5"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(world, settings, message):
    refused(re.escape(message), check_config, world.config_of(**settings))


@pytest.mark.parametrize("name", ["web_pretrain", "web_unmasked", "lit_text", "higher_resolution"])
def test_configs_are_read(name):
    config = read_config(CHECKOUT / "configs" / f"{name}.py")
    assert config.patch_dropout == (0.5 if name == "web_pretrain" else 0.0)
