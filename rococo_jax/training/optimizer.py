"""AdamW with warmup, cosine decay and clipping, over parameters by dotted path.

    rate(step) = learning_rate * min(step / warmup, 1)  then  * 1/2 (1 + cos(pi * fraction of the rest)), down to
                 learning_rate * final_lr_fraction
    rate of a parameter = rate(step) * tower_lr_scale * layer_decay ^ (blocks above it), 1 for heads and the logit scale

Loshchilov and Hutter (arXiv 1711.05101); layer-wise rates after BEiT (2106.08254), a ResNet has one rate. Vectors and
scalars (norms, biases, logit scale) do not decay. After the update the logarithm of the logit scale is held at ln 100
(CLIP, 2103.00020).
"""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from rococo_jax.models import ModelSpec, ResNetSpec

HIGHEST_LOG_SCALE = math.log(100)

# An array, or its shape alone.
Parameter = Array | jax.ShapeDtypeStruct


def make_schedule(config: ConfigDict, steps: int) -> optax.Schedule:
    """The learning rate at a step, counted from 0."""
    warmup = round(config.warmup_fraction * steps)
    schedule = optax.warmup_cosine_decay_schedule(
        0.0 if warmup else config.learning_rate,
        config.learning_rate,
        warmup,
        max(steps, warmup + 1),
        config.final_lr_fraction * config.learning_rate,
    )
    return lambda step: schedule(jnp.asarray(step, jnp.float32))


def make_optimizer(
    config: ConfigDict, steps: int, spec: ModelSpec, parameters: Mapping[str, Parameter]
) -> optax.GradientTransformation:
    """The optimizer for `parameters` (those that are trained)."""
    decays = {path: _is_matrix(path, array) for path, array in parameters.items()}
    rates = {path: rate_of(path, array, spec, config) for path, array in parameters.items()}
    chain = optax.chain(
        optax.clip_by_global_norm(config.grad_clip_norm) if config.grad_clip_norm else optax.identity(),
        optax.scale_by_adam(config.b1, config.b2, config.eps),
        optax.add_decayed_weights(config.weight_decay, mask=decays),
        *([pull_to_start(config.pull_to_start)] if config.pull_to_start else []),
        _scale_each(rates),
        optax.scale_by_learning_rate(make_schedule(config, steps)),
    )

    def update(updates, state, params=None):
        # Optax raises rates to the power of whole numbers, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


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
    if side not in ("vision", "text"):
        return 1.0
    if isinstance(getattr(spec, side), ResNetSpec):
        return config.tower_lr_scale
    layers, decay, rate = getattr(spec, side).layers, config.layer_decay, config.tower_lr_scale
    if ".blocks." in path:
        # The array holds the last blocks where the first are frozen.
        return tuple(rate * decay ** (array.shape[0] - 1 - index) for index in range(array.shape[0]))
    after = path.startswith((f"{side}.norm.", f"{side}.pooling."))
    if side == "text" and spec.text.norm_after_blocks:
        after = False
    return rate * (1.0 if after else decay**layers)


def _scale_each(rates: Mapping[str, float | tuple[float, ...]]) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        del params
        scaled = {}
        for path, value in updates.items():
            rate = jnp.asarray(rates[path], value.dtype)
            scaled[path] = value * rate.reshape(rate.shape + (1,) * (value.ndim - rate.ndim))
        return scaled, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def clamp_logit_scale(parameters: dict[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    """The same parameters with the logit scale at most 100."""
    if "logit_scale" not in parameters:
        return parameters
    return {**parameters, "logit_scale": jnp.minimum(parameters["logit_scale"], HIGHEST_LOG_SCALE)}


def moving_average(average: Mapping[str, jax.Array], parameters: Mapping[str, jax.Array], decay: float) -> dict:
    """`decay * average + (1 - decay) * parameters`, by path."""
    return {path: decay * average[path] + (1 - decay) * parameters[path] for path in parameters}
