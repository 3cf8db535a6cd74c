"""Schedules and optimizers against NumPy, each key told from another value; keys that no test may set."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from rococo_jax.errors import InputError
from rococo_jax.training.config import check_config, default_config, flat
from rococo_jax.training.optimizer import make_optimizer, make_schedule
from tests.support.paths import CHECKOUT
from tests.support.tiny import tiny_spec

STEPS, PEAK = 50, 0.3


def rate(t: int, schedule: str, warmup: int, final: float, cooldown: int) -> float:
    """The formulas at the top of `schedule.py`, once more."""
    rising = t / warmup if t < warmup else 1.0
    rest = (t - warmup) / (STEPS - warmup) if t > warmup else 0.0
    if schedule == "cosine":
        return PEAK * (rising if t < warmup else final + (1 - final) * (1 + np.cos(np.pi * rest)) / 2)
    if schedule == "linear":
        return PEAK * rising * (final + (1 - final) * (1 - rest))
    left = min(1.0, (STEPS - t) / cooldown) if cooldown else 1.0
    first = max(warmup, 1)
    slow = np.sqrt(first / t) if schedule == "rsqrt" and t > first else 1.0
    return PEAK * rising * slow * (final + (1 - final) * left)


@pytest.mark.parametrize(("fraction", "warmup"), [(0.0, 0), (0.1, 0), (0.1, 8)])
@pytest.mark.parametrize(
    ("schedule", "cooldown"),
    [("cosine", 0.0), ("linear", 0.0), ("constant", 0.0), ("constant", 0.2), ("rsqrt", 0.0), ("rsqrt", 0.2)],
)
def test_rates_of_every_step(schedule, cooldown, fraction, warmup):
    config = default_config().optimizer
    config.schedule, config.warmup_fraction, config.warmup_steps = schedule, fraction, warmup
    config.learning_rate, config.final_lr_fraction, config.cooldown_fraction = PEAK, 0.1, cooldown
    ours = make_schedule(config, STEPS)
    warmup = warmup or round(fraction * STEPS)
    expected = [rate(t, schedule, warmup, 0.1, round(cooldown * STEPS)) for t in range(STEPS)]
    np.testing.assert_allclose([float(ours(t)) for t in range(STEPS)], expected, rtol=2e-6, atol=1e-8)


def updates(name: str, moments: str, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """Updates of a matrix by the optimizer, at a constant rate of 1 and without decay and clipping."""
    config = default_config().optimizer
    config.name, config.moments, config.schedule, config.learning_rate = name, moments, "constant", 1.0
    config.warmup_fraction = config.weight_decay = config.grad_clip_norm = 0.0
    config.b1, config.b2 = 0.8, 0.9
    parameters = {"vision_head.kernel": jnp.zeros_like(gradients[0])}
    optimizer = make_optimizer(config, STEPS, tiny_spec(), parameters)
    state, found = optimizer.init(parameters), []
    for gradient in gradients:
        update, state = optimizer.update({"vision_head.kernel": jnp.asarray(gradient)}, state, parameters)
        found.append(np.asarray(update["vision_head.kernel"], np.float64))
    kept = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if leaf.shape == gradients[0].shape}
    assert ("bfloat16" in kept) == (moments == "bfloat16")
    return found


def expected_updates(name: str, moments: str, gradients: list[np.ndarray]) -> list[np.ndarray]:
    def stored(moment: np.ndarray) -> np.ndarray:
        return moment.astype(ml_dtypes.bfloat16).astype(np.float64) if moments == "bfloat16" else moment

    b1, b2, first, second = 0.8, 0.9, 0.0, 0.0
    rows, columns, found = 0.0, 0.0, []
    for t, g in enumerate((each.astype(np.float64) for each in gradients), 1):
        if name == "adamw":
            first, second = b1 * stored(np.asarray(first)) + (1 - b1) * g, b2 * second + (1 - b2) * g**2
            found.append(-first / (1 - b1**t) / (np.sqrt(second / (1 - b2**t)) + 1e-8))
        elif name == "lion":
            found.append(-np.sign(b1 * stored(np.asarray(first)) + (1 - b1) * g))
            first = b2 * stored(np.asarray(first)) + (1 - b2) * g
        else:
            decay = 1 - t**-0.8
            rows = decay * rows + (1 - decay) * (g**2 + 1e-30).mean(1)
            columns = decay * columns + (1 - decay) * (g**2 + 1e-30).mean(0)
            scaled = g / np.sqrt(np.outer(rows, columns) / rows.mean())
            scaled /= max(1.0, np.sqrt((scaled**2).mean()))
            first = b1 * stored(np.asarray(first)) + (1 - b1) * scaled
            found.append(-first)
    return found


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor"])
def test_three_updates_of_each_optimizer(name, moments):
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(128, 130)).astype(np.float32) for _ in range(3)]
    tolerance = 2e-5 if moments == "float32" else 2e-2
    for ours, expected in zip(
        updates(name, moments, gradients), expected_updates(name, moments, gradients), strict=True
    ):
        if name == "lion":  # a sign may turn where a rounded moment is near zero
            assert (ours == expected).mean() > (0.9999 if moments == "float32" else 0.99)
        else:
            np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("start", "bias", "highest"),
    # CLIP's 100 (arXiv 2103.00020), what it started from where that is more, and none under the sigmoid loss.
    [(4.6, False, np.log(100)), (4.7215, False, 4.7215), (4.7215, True, 5.0215), (4.6, True, 4.9)],
)
def test_the_bound_of_the_logit_scale(start, bias, highest):
    config = default_config().optimizer
    config.schedule, config.learning_rate, config.warmup_fraction = "constant", 0.1, 0.0
    config.b1 = config.b2 = 0.0  # steps of 0.1
    names = ["logit_scale", "logit_bias"] if bias else ["logit_scale"]
    parameters = {name: jnp.float32(start) for name in names}
    optimizer = make_optimizer(config, STEPS, tiny_spec(), parameters)
    state, scales = optimizer.init(parameters), []
    for sign in (-1, -1, -1, 1, 1, 1, 1, 1, 1):  # up, then down below the bound
        update, state = optimizer.update({name: jnp.float32(sign) for name in names}, state, parameters)
        parameters = optax.apply_updates(parameters, update)
        scales.append(float(parameters["logit_scale"]))
    assert max(scales) == scales[2] == pytest.approx(highest, abs=1e-6) and scales[-1] < scales[2] - 0.1
    assert not bias or parameters["logit_bias"] == parameters["logit_scale"]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("name", "sgd", "'adamw' or 'lion' or 'adafactor'"),
        ("schedule", "step", "'cosine' or 'linear' or 'constant' or 'rsqrt'"),
        ("moments", "float16", "'float32' or 'bfloat16'"),
        ("warmup_steps", -1, "0 or more"),
        ("warmup_steps", 10**6, "at most 1000, the number of steps"),
        ("cooldown_fraction", 1.5, "from 0 to 1"),
        ("cooldown_fraction", 0.2, "0 with the schedule 'cosine', which falls by itself"),
    ],
)
def test_unknown_recipes_are_refused(key, value, wanted):
    config = default_config()
    config.optimizer[key] = value
    with pytest.raises(InputError) as error:
        check_config(config)
    assert f"config.optimizer.{key}" in str(error.value) and wanted in str(error.value)


def test_tests_set_keys_that_the_config_has():
    """A thorough test that sets another one fails where nobody sees it for a while."""
    known = set(flat(default_config()))
    sections = "|".join({key.partition(".")[0] for key in known if "." in key})
    # a.b="...", a__b=... and {"a.b": ...}
    key = re.compile(rf'\b((?:{sections})(?:(?:\.|__)[a-z0-9]+(?:_[a-z0-9]+)*)+)(?:=(?!=)|": )')
    files = sorted((CHECKOUT / "tests").rglob("*.py"))
    found = {word.replace("__", ".") for file in files for word in key.findall(file.read_text(encoding="utf-8"))}
    assert len(found) > 50
    assert found - known == {"losses.sc.wieght"}, "one of them is refused with the nearest"
