"""The optimizer over parameters by dotted path: clipping, AdamW, Lion or Adafactor, decay, rates by layer.

    rate of a parameter = rate(step) * tower_lr_scale * layer_decay ^ (blocks above it), 1 for heads and the logit scale

    adamw       Loshchilov and Hutter (arXiv 1711.05101)
    lion        the sign of an average of gradients (2302.06675); rates 3 to 10 times lower, decay as much higher
    adafactor   second moments by row and column (1804.04235), 1 - step^-0.8 for their decay, the update's root mean
                square held at 1, and a first moment, as for large image towers (2106.04560, section 3.4)

Layer-wise rates are as BEiT's (2106.08254), but for one power: there the last block has layer_decay^1, here it has the
full rate, as heads have. A ResNet has one rate. Vectors and scalars (norms, biases, logit scale) do
not decay. The logit scale of a softmax loss stays at most 100 (CLIP, 2103.00020), or at most what it started from where
that is more; the sigmoid loss, whose models have a logit bias, has no such bound (SigLIP, 2303.15343).

The learning rate at a step t of T, after a warmup of w steps in which it rises from 0:

    rate(t) = learning_rate * min(t / w, 1) * shape(t) * cooldown(t)

    cosine      shape = f + (1 - f) (1 + cos(pi u)) / 2, u = (t - w) / (T - w)      f: final_lr_fraction
    linear      shape = f + (1 - f) (1 - u)
    constant    shape = 1
    rsqrt       shape = sqrt(w / max(t, w)), w at least 1                            (arXiv 2106.04560)

    cooldown    f + (1 - f) min(1, (T - t) / c) over the last c = cooldown_fraction * T steps, for constant and rsqrt

The moving average of parameters p_1 ... p_t with decay d is debiased as Adam's moments are (1412.6980, section 3): each
p_i has the share (1 - d) d^(t-i) / (1 - d^t), and the starting parameters p_0 have none. It is kept debiased, so that a
checkpoint is the model:

    a_t = a_(t-1) + w_t (p_t - a_(t-1)),    w_t = (1 - d) / (1 - d^t),    w_1 = 1

Started at p_0 without this, it would hold d^t of them: 14 % after 2,000 updates at 0.999, 78 % after 250, so runs of
different lengths would not compare. A decay that rises as min(d, (1 + t) / (10 + t)) (TensorFlow's
`ExponentialMovingAverage`) drops p_0 too, but reaches 0.999 at update 8,990, and d would say nothing in a shorter run.
Weights between the start and the end of fine-tuning are `rococo interpolate`'s, with a share that is chosen.
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from rococo_jax.models import ModelSpec
from rococo_jax.training.freezing import SIDES, after_blocks

HIGHEST_LOG_SCALE = math.log(100)
SCHEDULES = ("cosine", "linear", "constant", "rsqrt")

# An array, or its shape alone.
Parameter = Array | jax.ShapeDtypeStruct


def make_optimizer(
    config: ConfigDict,
    steps: int,
    spec: ModelSpec,
    parameters: Mapping[str, Parameter],
) -> optax.GradientTransformation:
    """The optimizer for `parameters` (those that are trained)."""
    decays = {path: _is_matrix(path, array) for path, array in parameters.items()}
    rates = {path: rate_of(path, array, spec, config) for path, array in parameters.items()}
    chain = optax.chain(
        optax.clip_by_global_norm(config.grad_clip_norm) if config.grad_clip_norm else optax.identity(),
        _scaled(config),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
        *([pull_to_start(config.pull_to_start)] if config.pull_to_start else []),
        _scale_each(rates),
        optax.scale_by_learning_rate(make_schedule(config, steps)),
        bound_logit_scale() if {"logit_scale", "logit_bias"} & {*parameters} == {"logit_scale"} else optax.identity(),
    )

    def update(updates, state, params=None):
        # Optax raises rates to the power of whole numbers, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def warmup_of(config: ConfigDict, steps: int) -> int:
    """Steps of warmup: `warmup_steps`, or its fraction of all steps where that is 0."""
    return config.warmup_steps or round(config.warmup_fraction * steps)


def make_schedule(config: ConfigDict, steps: int) -> optax.Schedule:
    """The learning rate at a step, counted from 0; `config` is that of the optimizer."""
    warmup, peak, final = warmup_of(config, steps), config.learning_rate, config.final_lr_fraction
    if config.schedule == "cosine":
        schedule = optax.warmup_cosine_decay_schedule(
            0.0 if warmup else peak, peak, warmup, max(steps, warmup + 1), final * peak
        )
        return lambda step: schedule(jnp.asarray(step, jnp.float32))
    cooldown = round(config.cooldown_fraction * steps)

    def rate(step) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        rising = jnp.minimum(t / warmup, 1.0) if warmup else jnp.ones_like(t)
        if config.schedule == "linear":
            u = jnp.clip((t - warmup) / max(steps - warmup, 1), 0.0, 1.0)
            return peak * rising * (final + (1 - final) * (1 - u))
        shape = jnp.sqrt(max(warmup, 1) / jnp.maximum(t, max(warmup, 1))) if config.schedule == "rsqrt" else 1.0
        falling = jnp.clip((steps - t) / cooldown, 0.0, 1.0) if cooldown else 1.0
        return peak * rising * shape * (final + (1 - final) * falling)

    return rate


def _scaled(config: ConfigDict) -> optax.GradientTransformation:
    """Gradients to updates; first moments are kept in `config.moments`."""
    dtype = jnp.dtype(config.moments)
    if config.name == "lion":
        return optax.scale_by_lion(config.b1, config.b2, mu_dtype=dtype)
    if config.name == "adafactor":
        return optax.chain(
            optax.scale_by_factored_rms(decay_rate=0.8),
            optax.clip_by_block_rms(1.0),
            optax.ema(config.b1, debias=False, accumulator_dtype=dtype),
        )
    return optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=dtype)


def pull_to_start(rate: float) -> optax.GradientTransformation:
    """Adds `rate * (p - p_0)` to the update: a decay towards the parameters of step 0 instead of towards zero.

    L2-SP (arXiv 1802.01483), decoupled from the gradient's scale as in AdamW [ours].
    """

    def update(updates, start, params=None):
        pulled = {path: value + rate * (params[path] - start[path]) for path, value in updates.items()}
        return pulled, start

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.array, dict(params)), update)


def _is_matrix(path: str, array: Parameter) -> bool:
    """Stacked blocks have one axis more than what they stack."""
    return array.ndim - (".blocks." in path) > 1


def rate_of(path: str, array: Parameter, spec: ModelSpec, config: ConfigDict) -> float | tuple[float, ...]:
    """The factor on the learning rate of a parameter; for stacked blocks one each."""
    side = path.partition(".")[0]
    if side not in SIDES:
        return 1.0
    layers, decay, rate = getattr(spec, side).layers, config.layer_decay, config.tower_lr_scale
    if layers and ".blocks." in path:
        # The array holds the last blocks where the first are frozen.
        return tuple(rate * decay ** (array.shape[0] - 1 - index) for index in range(array.shape[0]))
    return rate * (1.0 if path.startswith(after_blocks(spec, side)) else decay**layers)


def _scale_each(rates: Mapping[str, float | tuple[float, ...]]) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        del params
        scaled = {}
        for path, value in updates.items():
            rate = jnp.asarray(rates[path], value.dtype)
            scaled[path] = value * rate.reshape(rate.shape + (1,) * (value.ndim - rate.ndim))
        return scaled, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def bound_logit_scale() -> optax.GradientTransformation:
    """Keeps the logarithm of the logit scale at most at ln 100, or at that of step 0, its state, where that is more."""

    def start(params: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"logit_scale": jnp.maximum(params["logit_scale"], HIGHEST_LOG_SCALE)}

    def update(updates, highest, params=None):
        room = highest["logit_scale"] - params["logit_scale"]
        return {**updates, "logit_scale": jnp.minimum(updates["logit_scale"], room)}, highest

    return optax.GradientTransformation(start, update)


def moving_average(
    average: Mapping[str, jax.Array], parameters: Mapping[str, jax.Array], decay: float, count: Int[Array, ""]
) -> dict[str, jax.Array]:
    """The debiased average after update `count`, counted from 1, by path; formula at the top of the file."""
    weight = (1 - decay) / -jnp.expm1(count.astype(jnp.float32) * math.log(decay))
    weight = jnp.where(count == 1, 1.0, weight)  # and no rounding of it
    return {path: average[path] + weight * (parameters[path] - average[path]) for path in parameters}
