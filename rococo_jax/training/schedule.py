"""The learning rate at a step t of T, after a warmup of w steps in which it rises from 0.

rate(t) = learning_rate * min(t / w, 1) * shape(t) * cooldown(t)

cosine      shape = f + (1 - f) (1 + cos(pi u)) / 2, u = (t - w) / (T - w)      f: final_lr_fraction
linear      shape = f + (1 - f) (1 - u)
constant    shape = 1
rsqrt       shape = sqrt(w / max(t, w)), w at least 1                            (arXiv 2106.04560)

cooldown    f + (1 - f) min(1, (T - t) / c) over the last c = cooldown_fraction * T steps, for constant and rsqrt
"""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

SCHEDULES = ("cosine", "linear", "constant", "rsqrt")


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
