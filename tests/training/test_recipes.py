"""Test schedules and AdamW against NumPy, each key with a value of its own; the bound of the logit scale."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from rococo_jax.training.config import default_config
from rococo_jax.training.optimizer import make_optimizer, make_schedule
from tests.support.tiny import tiny_spec
from tests.support.tiny_runs import changed

STEPS, PEAK = 50, 0.3


def rates(schedule: str, warmup: int, final: float, cooldown: int) -> np.ndarray:
    """The formulas at the top of `optimizer.py`, once more, at every step."""
    t = np.arange(STEPS)
    u = np.clip((t - warmup) / (STEPS - warmup), 0, 1)
    shape = {
        "cosine": final + (1 - final) * (1 + np.cos(np.pi * u)) / 2,
        "constant": np.ones(STEPS),
        "rsqrt": np.sqrt(max(warmup, 1) / np.maximum(t, max(warmup, 1))),
    }[schedule]
    if cooldown:
        shape = shape * (final + (1 - final) * np.minimum(1, (STEPS - t) / cooldown))
    return PEAK * shape * (np.minimum(1, t / warmup) if warmup else 1)


@pytest.mark.parametrize(("fraction", "warmup"), [(0.0, 0), (0.1, 0), (0.1, 8)])
@pytest.mark.parametrize(
    ("schedule", "cooldown"),
    [("cosine", 0.0), ("constant", 0.0), ("constant", 0.2), ("rsqrt", 0.0), ("rsqrt", 0.2)],
)
def test_the_learning_rate_of_every_step_follows_the_formula(schedule, cooldown, fraction, warmup):
    settings = {"schedule": schedule, "warmup_fraction": fraction, "warmup_steps": warmup, "learning_rate": PEAK}
    config = optimizer_config(**settings, final_lr_fraction=0.1, cooldown_fraction=cooldown)
    expected = rates(schedule, warmup or round(fraction * STEPS), 0.1, round(cooldown * STEPS))
    np.testing.assert_allclose(make_schedule(config, STEPS)(np.arange(STEPS)), expected, rtol=2e-6, atol=1e-8)


def optimizer_config(**settings):
    return changed(default_config(), **{f"optimizer.{key}": value for key, value in settings.items()}).optimizer


def updates(moments: str, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """Return updates of a matrix by the optimizer, at a constant rate of 1 and without decay and clipping."""
    plain = dict.fromkeys(("warmup_fraction", "weight_decay", "grad_clip_norm"), 0.0)
    rate = {"schedule": "constant", "learning_rate": 1.0, "b1": 0.8, "b2": 0.9}
    config = optimizer_config(moments=moments, **plain, **rate)
    parameters = {"vision_head.kernel": jnp.zeros_like(gradients[0])}
    optimizer = make_optimizer(config, STEPS, tiny_spec(), parameters)
    state, results = optimizer.init(parameters), []
    for gradient in gradients:
        update, state = optimizer.update({"vision_head.kernel": jnp.asarray(gradient)}, state, parameters)
        results.append(np.asarray(update["vision_head.kernel"], np.float64))
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if leaf.shape == gradients[0].shape}
    assert ("bfloat16" in dtypes) == (moments == "bfloat16")
    return results


def expected_updates(moments: str, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """AdamW (arXiv 1711.05101) in float64, with first moments rounded to bfloat16 if requested."""

    def stored(moment: np.ndarray) -> np.ndarray:
        return moment.astype(ml_dtypes.bfloat16 if moments == "bfloat16" else np.float64).astype(np.float64)

    b1, b2, first, second, results = 0.8, 0.9, np.zeros(1), 0.0, []
    for t, g in enumerate((each.astype(np.float64) for each in gradients), 1):
        first, second = b1 * stored(first) + (1 - b1) * g, b2 * second + (1 - b2) * g**2
        results.append(-first / (1 - b1**t) / (np.sqrt(second / (1 - b2**t)) + 1e-8))
    return results


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_three_updates_of_adamw_match_numpy(moments):
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(128, 130)).astype(np.float32) for _ in range(3)]
    tolerance = 2e-5 if moments == "float32" else 2e-2
    for ours, expected in zip(updates(moments, gradients), expected_updates(moments, gradients), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("start", "bias", "highest"),
    # CLIP's 100 (arXiv 2103.00020), what it started from where that is more, and none under the sigmoid loss.
    [(4.6, False, np.log(100)), (4.7215, False, 4.7215), (4.7215, True, 5.0215), (4.6, True, 4.9)],
)
def test_the_logit_scale_is_bounded_in_softmax_losses_and_free_in_sigmoid_losses(start, bias, highest):
    # Steps of 0.1.
    config = optimizer_config(schedule="constant", learning_rate=0.1, warmup_fraction=0.0, b1=0.0, b2=0.0)
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
