"""Attacks on pixels, against optima in closed form, and planted weaknesses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rococo_jax import load_model
from rococo_jax.attacks.pixel_attack import MASKED, PixelAttacker
from rococo_jax.attacks.pixels import (
    Best,
    PixelAttack,
    Target,
    apgd_stage,
    evaluator,
    random_search,
    random_start,
    stages,
    to_8_bits,
)
from rococo_jax.attacks.run import Journal, attack_models
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.runtime import make_mesh
from tests.attacks.worlds import ITEMS, data_of

pytestmark = pytest.mark.quick

SHAPE = (6, 4, 4, 3)
FEW = ITEMS[:3]
# Steps and restarts of attacks, each a prefix of the next.
RUNS = ((1, 1), (2, 1), (2, 2))


def norm_of(change, norm):
    change = np.abs(np.asarray(change, np.float64).reshape(len(change), -1))
    return change.max(axis=1) if norm == "linf" else np.sqrt((change**2).sum(axis=1))


@pytest.fixture
def original():
    return jnp.asarray(np.random.default_rng(0).integers(60, 190, SHAPE).astype(np.float32))


@pytest.mark.parametrize(
    ("norm", "radius"),
    [
        ("linf", 2.7),
        ("l2", 3.0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("linf", 2.0), ("l2", 40.0), ("l2", 1.2))),
    ],
)
def test_8_bit_images_have_integer_pixels_inside_the_ball(original, norm, radius):
    start = random_start(jax.random.split(jax.random.key(0), len(original)), original, jnp.float32(radius), norm)
    image = np.asarray(to_8_bits(start, original, jnp.float32(radius), norm))
    assert np.array_equal(image, np.round(image)) and image.min() >= 0 and image.max() <= 255
    change = norm_of(image - np.asarray(original), norm)
    assert (change <= radius + 1e-4).all() and (change > 0.6 * radius - 1).all()


def attack(embed, target, original, radius, norm, steps=100, rounds=False):
    """Run all stages of APGD; return the best point, and that of a random search."""
    radius, keys = jnp.float32(radius), jax.random.split(jax.random.key(1), len(original))
    evaluate, without_gradient = evaluator(embed, target, original, radius, norm, rounds=rounds)
    x = random_start(keys, original, radius, norm)
    best = Best(original, without_gradient(original)[1], jnp.zeros(len(original), jnp.int32))
    for length, limit, done in stages(steps):
        x, best = apgd_stage(
            evaluate, x, original, best, radius, norm, jnp.int32(length), jnp.int32(limit), jnp.int32(done)
        )
    found = random_search(without_gradient, keys, original, radius, norm, jnp.int32(steps))
    return best, found


@pytest.mark.parametrize(("norm", "radius"), [("linf", 3.0), ("l2", 10.0)])
def test_apgd_reaches_the_optimum_of_a_linear_model(original, norm, radius):
    generator = np.random.default_rng(2)
    weights = jnp.asarray(generator.normal(size=(48, 5)).astype(np.float32))
    # The similarity with each text is one dimension of the embedding; the first text is true and 1,000 ahead.
    texts = jnp.eye(5, dtype=jnp.float32)
    target = Target(texts, jnp.asarray(np.eye(5, dtype=bool)[[0] * len(original)]))

    def embed(x):
        ahead = jnp.zeros((1, 5)).at[0, 0].set(1e5)
        return x.reshape(len(x), -1) @ weights + ahead

    best, _ = attack(embed, target, original, radius, norm)
    flat, difference = np.asarray(original, np.float64).reshape(len(original), -1), np.asarray(weights, np.float64)
    difference = difference[:, 1:] - difference[:, :1]
    gain = np.abs(difference).sum(axis=0) if norm == "linf" else np.sqrt((difference**2).sum(axis=0))
    optimum = (flat @ difference + radius * gain).max(axis=1) - 1e5
    clean = (flat @ difference).max(axis=1) - 1e5
    reached = (np.asarray(best.margin, np.float64) - clean) / (optimum - clean)
    assert (reached > 0.99).all() and (reached < 1.001).all(), reached
    assert (norm_of(best.image - original, norm) <= radius + 1e-3).all()


def test_random_search_succeeds_if_saturation_masks_the_gradient(original):
    weights = jnp.asarray(np.random.default_rng(3).normal(size=(48, 5)).astype(np.float32))
    target = Target(jnp.eye(5, dtype=jnp.float32), jnp.asarray(np.eye(5, dtype=bool)[[0] * len(original)]))
    ahead = jnp.zeros((1, 5)).at[0, 0].set(1e4)

    def saturated(x):  # steps of 8 grey values: the gradient is 0 everywhere
        return (jnp.round(x / 8) * 8).reshape(len(x), -1) @ weights + ahead

    best, found = attack(saturated, target, original, 16.0, "linf", rounds=True)
    assert (np.asarray(found.margin) > np.asarray(best.margin)).mean() > MASKED
    plain, at_random = attack(lambda x: x.reshape(len(x), -1) @ weights + ahead, target, original, 16.0, "linf")
    assert (np.asarray(at_random.margin) <= np.asarray(plain.margin)).all()


@pytest.fixture(scope="module")
def model():
    return load_model("demo:plain", mesh=make_mesh(jax.devices()[:1]))


@pytest.fixture(scope="module")
def run(model, paths):
    def records(budgets, **settings):
        attacker = PixelAttacker(model, FEW, paths[: len(FEW)], PixelAttack(budgets, **settings))
        attacker.group = len(FEW)  # nothing to pad
        groups = list(attacker.run())
        return [record for group, _ in groups for record in group], [image for _, images in groups for image in images]

    return records


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", pytest.param("l2", marks=pytest.mark.thorough)])
def test_success_grows_with_radius_steps_and_restarts(run, norm):
    radii = {"linf": (1 / 255, 4 / 255), "l2": (0.05, 1.5)}[norm]
    fooled = {}
    for steps, restarts in RUNS:
        records, _ = run(radii, norm=norm, steps=steps, restarts=restarts)
        for radius in radii:
            fooled[steps, restarts, radius] = {
                record["image"] for record in records if record["smallest"] is not None and record["smallest"] <= radius
            }
    for radius in radii:
        for shorter, longer in itertools.pairwise(RUNS):
            assert fooled[*shorter, radius] <= fooled[*longer, radius]
    assert all(fooled[*each, radii[0]] <= fooled[*each, radii[1]] for each in RUNS)
    assert fooled[*RUNS[-1], radii[1]]


@pytest.mark.slow
def test_saved_attacked_images_give_the_reported_counts(run, model, paths):
    records, images = run((2 / 255, 8 / 255), steps=4)
    paths = paths[: len(FEW)]
    attacker = PixelAttacker(model, FEW, paths, PixelAttack((8 / 255,)))
    margins = attacker.margins(images)
    for record, margin, image, path in zip(records, margins, images, paths, strict=True):
        assert record["margin"] == pytest.approx(margin, abs=1e-5)
        change = image.astype(int) - model.prepare(Image.open(path)).astype(int)
        assert np.abs(change).max() <= 255 * (record["smallest"] or 8 / 255) + 1e-3
        if record["right"]:
            assert (record["smallest"] is not None) == (margin >= 0)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [pytest.param("ce", marks=pytest.mark.thorough), "dlr"])
def test_other_losses_fool_about_as_many_images_as_the_margin(run, loss):
    by_loss, by_margin = (run((8 / 255,), steps=3, loss=name)[0] for name in (loss, "margin"))
    right = sum(record["right"] for record in by_margin)
    fooled = [sum(record["smallest"] is not None for record in records) for records in (by_loss, by_margin)]
    assert fooled[0] >= fooled[1] - 1 and fooled[1] >= right - 1


@pytest.mark.slow
def test_a_killed_attack_resumes_with_the_same_bytes(model, paths, tmp_path, monkeypatch):
    monkeypatch.setattr("rococo_jax.attacks.pixel_attack._CPU_IMAGES", 2)
    attacked: list[str] = []
    pixels = PixelAttack((2 / 255,), steps=2)

    def run(out):
        folders = {model.name: tmp_path / out}
        attack_models(lambda name: model, folders, data_of(paths), [], EmbeddingCache(None), pixels=pixels)
        return {path.name: path.read_bytes() for path in (tmp_path / out).rglob("*") if path.is_file()}

    whole = run("whole")
    add = Journal.add

    def add_and_stop(self, group):
        add(self, group)
        attacked.extend(record["image"] for record in group)
        if len(attacked) <= 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "add", add_and_stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run("cut")
    with (tmp_path / "cut/.attack.pixels.jsonl").open("a") as journal:
        journal.write('[{"image": "cut off')
    assert run("cut") == whole and len(whole) == len(ITEMS) + 3
    assert attacked == [item.image for item in ITEMS]
    # Groups that start elsewhere: the result of an image depends neither on its place nor on the others.
    for group, images in PixelAttacker(model, ITEMS, paths, pixels).run(start=1):
        for record, image in zip(group, images, strict=True):
            with Image.open(tmp_path / "whole/attacked_images/images" / record["image"]) as written:
                assert np.array_equal(written, image)
