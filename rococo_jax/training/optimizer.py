"""The optimizer over parameters by dotted path: clipping, AdamW (arXiv 1711.05101), decay, rates by layer.

    rate of a parameter = rate(step) * tower_lr_scale * layer_decay ^ (blocks above it), 1 for heads and the logit scale

Layer-wise rates follow BEiT (2106.08254) except for one power: in BEiT the last block has layer_decay^1, here it has
the full rate, as the heads do. All parameters of a ResNet have one rate. Vectors and scalars (norms, biases, logit
scale) do not decay. The logit scale of a softmax loss is bounded by 100 (CLIP, 2103.00020), or by its initial value if
that is larger; the sigmoid loss, whose models have a logit bias, has no such bound (SigLIP, 2303.15343).

The learning rate at a step t of T, after a warmup of w steps in which it rises from 0:

    rate(t) = learning_rate * min(t / w, 1) * shape(t) * cooldown(t)

    cosine      shape = f + (1 - f) (1 + cos(pi u)) / 2, u = (t - w) / (T - w)      f: final_lr_fraction
    constant    shape = 1
    rsqrt       shape = sqrt(w / max(t, w)), w at least 1                            (arXiv 2106.04560)

    cooldown    f + (1 - f) min(1, (T - t) / c) over the last c = cooldown_fraction * T steps, for constant and rsqrt

The moving average of parameters p_1 ... p_t with decay d is debiased as Adam's moments are (1412.6980, section 3): the
weight of p_i is (1 - d) d^(t-i) / (1 - d^t), and the initial parameters p_0 are excluded. The debiased average is the
one that is stored, so a checkpoint is the model:

    a_t = a_(t-1) + w_t (p_t - a_(t-1)),    w_t = (1 - d) / (1 - d^t),    w_1 = 1

An average that starts at p_0 would give p_0 the weight d^t: 14 % after 2,000 updates at 0.999, and 78 % after 250, so
runs of different lengths could not be compared. A decay that rises as min(d, (1 + t) / (10 + t)) (TensorFlow's
`ExponentialMovingAverage`) excludes p_0 too, but it reaches 0.999 only at update 8,990, so d would have no effect in a
shorter run. `rococo interpolate` computes weights between the start and the end of fine-tuning.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from rococo_jax.errors import InputError
from rococo_jax.models import ModelSpec
from rococo_jax.training.freezing import SIDES, after_blocks

HIGHEST_LOG_SCALE = math.log(100)
SCHEDULES = ("cosine", "constant", "rsqrt")

# An array, or its shape alone.
Parameter = Array | jax.ShapeDtypeStruct


def make_optimizer(
    config: ConfigDict,
    steps: int,
    spec: ModelSpec,
    parameters: Mapping[str, Parameter],
) -> optax.GradientTransformation:
    """Return the optimizer of `parameters`, the trained ones.

    Raises InputError: rates decay by layer, but no trained parameter lies below a trained block.
    """
    decays = {path: _is_matrix(path, array) for path, array in parameters.items()}
    rates = {path: rate_of(path, array, spec, config) for path, array in parameters.items()}
    without_decay = {**config, "layer_decay": 1.0}
    if config.layer_decay != 1 and rates == {
        path: rate_of(path, array, spec, ConfigDict(without_decay)) for path, array in parameters.items()
    }:
        expected = "1: no trained parameter lies below a trained block"
        raise InputError("config", "config.optimizer.layer_decay", config.layer_decay, expected)
    chain = optax.chain(
        optax.clip_by_global_norm(config.grad_clip_norm) if config.grad_clip_norm else optax.identity(),
        optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=jnp.dtype(config.moments)),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
        *([l2_sp(config.pull_to_start)] if config.pull_to_start else []),
        scale_by_path(rates),
        optax.scale_by_learning_rate(make_schedule(config, steps)),
        bound_logit_scale() if {"logit_scale", "logit_bias"} & {*parameters} == {"logit_scale"} else optax.identity(),
    )

    def update(updates, state, params=None):
        # Optax raises rates to integer powers, which strict promotion of dtypes refuses.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def warmup_steps_of(config: ConfigDict, steps: int) -> int:
    """Return the number of warmup steps: `warmup_steps`, or `warmup_fraction` of all steps if that is 0."""
    return config.warmup_steps or round(config.warmup_fraction * steps)


def make_schedule(config: ConfigDict, steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the step, from 0; `config` is `optimizer` of the run's config."""
    warmup, peak, final = warmup_steps_of(config, steps), config.learning_rate, config.final_lr_fraction
    if config.schedule == "cosine":
        schedule = optax.warmup_cosine_decay_schedule(
            0.0 if warmup else peak, peak, warmup, max(steps, warmup + 1), final * peak
        )
        return lambda step: schedule(jnp.asarray(step, jnp.float32))
    cooldown = round(config.cooldown_fraction * steps)

    def rate(step) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        rising = jnp.minimum(t / warmup, 1.0) if warmup else jnp.ones_like(t)
        shape = jnp.sqrt(max(warmup, 1) / jnp.maximum(t, max(warmup, 1))) if config.schedule == "rsqrt" else 1.0
        falling = jnp.clip((steps - t) / cooldown, 0.0, 1.0) if cooldown else 1.0
        return peak * rising * shape * (final + (1 - final) * falling)

    return rate


def l2_sp(rate: float) -> optax.GradientTransformation:
    """L2-SP (arXiv 1802.01483): add `rate * (p - p_0)` to the update, a decay towards the initial parameters.

    It is decoupled from the scale of the gradient, as weight decay is in AdamW (our choice).
    """

    def update(updates, start, params=None):
        return {path: value + rate * (params[path] - start[path]) for path, value in updates.items()}, start

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.array, dict(params)), update)


def _is_matrix(path: str, array: Parameter) -> bool:
    """Return whether a parameter is a matrix, or a stack of matrices: blocks are stacked along a leading axis."""
    return array.ndim - (".blocks." in path) > 1


def rate_of(path: str, array: Parameter, spec: ModelSpec, config: ConfigDict) -> float | tuple[float, ...]:
    """Return the factor on the learning rate of a parameter; for stacked blocks, one factor per block."""
    side = path.partition(".")[0]
    if side not in SIDES:
        return 1.0
    layers, decay, rate = getattr(spec, side).layers, config.layer_decay, config.tower_lr_scale
    if layers and ".blocks." in path:
        # The array holds the last blocks where the first are frozen.
        return tuple(rate * decay ** (array.shape[0] - 1 - index) for index in range(array.shape[0]))
    return rate * (1.0 if path.startswith(after_blocks(spec, side)) else decay**layers)


def scale_by_path(rates: Mapping[str, float | tuple[float, ...]]) -> optax.GradientTransformation:
    """Multiply the update of each parameter by its rate, or that of each block by the rate of the block."""

    def update(updates, state, params=None):
        del params
        products = {}
        for path, value in updates.items():
            rate = jnp.asarray(rates[path], value.dtype)
            products[path] = value * rate.reshape(rate.shape + (1,) * (value.ndim - rate.ndim))
        return products, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def bound_logit_scale() -> optax.GradientTransformation:
    """Bound the logarithm of the logit scale by ln 100, or by its value at step 0 (the state) if that is larger."""

    def start(params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"logit_scale": jnp.maximum(params["logit_scale"], HIGHEST_LOG_SCALE)}

    def update(updates, highest, params=None):
        largest_update = highest["logit_scale"] - params["logit_scale"]
        return {**updates, "logit_scale": jnp.minimum(updates["logit_scale"], largest_update)}, highest

    return optax.GradientTransformation(start, update)


def moving_average(
    average: Mapping[str, jax.Array], parameters: Mapping[str, jax.Array], decay: float, count: Int[Array, ""]
) -> dict[str, jax.Array]:
    """Return the debiased average after update `count` (from 1), by path; the formula is at the top of the file."""
    weight = (1 - decay) / -jnp.expm1(count.astype(jnp.float32) * math.log(decay))
    weight = jnp.where(count == 1, 1.0, weight)  # and no rounding of it
    return {path: average[path] + weight * (parameters[path] - average[path]) for path in parameters}
