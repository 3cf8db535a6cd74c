"""Generalized pooling (GPO) of VSE-infinity (Chen et al., arXiv 2011.04305, section 3.2).

    v_j = sum_k theta_k  max_k {x_ij}           the k-th largest value of channel j over the elements i of a set
    theta = softmax(w . (f_k + b_k) / 2 / 0.1),  f and b a GRU's states over the positions 1..n and back

so mean, maximum and k-max pooling are choices of theta, which depends on the number of elements alone. Before it each
element is mapped into the embedding space. The positions are sines and cosines of 32 channels.

The GRU is torch's, which has two biases:

    r, z = sigmoid(W x + b + U h + c);   h~ = tanh(W x + b + r (U h + c));   h' = (1 - z) h~ + z h
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from rococo_jax.models.layers import FrozenBatchNorm, Linear
from rococo_jax.models.products import precision_of

_WIDTH = 32
_TEMPERATURE = 0.1
_BASE = 10000.0


def position_codes(count: int) -> Float[np.ndarray, "count 32"]:
    """Sines and cosines of the positions 0, 1, 2..., float32."""
    rates = np.exp(np.arange(0, _WIDTH, 2, dtype=np.float32) * np.float32(-np.log(_BASE) / _WIDTH))
    angles = np.arange(count, dtype=np.float32)[:, None] * rates
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(count, _WIDTH).astype(np.float32)


class Gru(nnx.Module):
    """One direction of a gated recurrent unit: reset, update and new gates side by side."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.inputs = Linear(width, 3 * width, dtype=jnp.float32, rngs=rngs)
        self.states = Linear(width, 3 * width, dtype=jnp.float32, rngs=rngs)

    def __call__(self, x: Float[Array, "#b width"], state: Float[Array, "b width"]) -> Float[Array, "b width"]:
        """The next state."""
        reset_in, update_in, new_in = jnp.split(self.inputs(x), 3, axis=-1)
        reset, update, new = jnp.split(self.states(state), 3, axis=-1)
        reset, update = jax.nn.sigmoid(reset_in + reset), jax.nn.sigmoid(update_in + update)
        return (1 - update) * jnp.tanh(new_in + reset * new) + update * state


class GeneralizedPooling(nnx.Module):
    """From the elements of a set to one vector of `width` channels, float32."""

    def __init__(self, inputs: int, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.map = Linear(inputs, width, dtype=dtype, rngs=rngs)
        self.onward, self.back = Gru(_WIDTH, rngs=rngs), Gru(_WIDTH, rngs=rngs)
        self.score = Linear(_WIDTH, 1, bias=False, dtype=jnp.float32, rngs=rngs)

    def __call__(
        self, elements: Float[Array, "b n inputs"], mask: Bool[Array, "b n"] | None = None
    ) -> Float[Array, "b width"]:
        """`mask` is True at elements, which come before the padding; None where there is no padding."""
        return self.pool(self.map(elements), mask)

    def pool(self, x: Float[Array, "b n width"], mask: Bool[Array, "b n"] | None = None) -> Float[Array, "b width"]:
        """The pooling of elements that are mapped already."""
        x = x.astype(jnp.float32)
        if mask is not None:
            x = jnp.where(mask[..., None], x, -jnp.inf)
        ranked = -jnp.sort(-x, axis=1)
        if mask is not None:
            ranked = jnp.where(mask[..., None], ranked, 0.0)
        weights = self.weights(jnp.ones((1, x.shape[1]), bool) if mask is None else mask)
        return jnp.einsum("bnw,bn->bw", ranked, jnp.broadcast_to(weights, x.shape[:2]), precision=precision_of(x.dtype))

    def weights(self, mask: Bool[Array, "b n"]) -> Float[Array, "b n"]:
        """The weights of the ranks, largest value first; they sum to 1 over a set's elements."""
        codes = jnp.asarray(position_codes(mask.shape[1]))
        start = jnp.zeros((mask.shape[0], _WIDTH), jnp.float32)
        (onward_graph, onward), (back_graph, back) = nnx.split(self.onward), nnx.split(self.back)

        def forward(state: Array, code: Array) -> tuple[Array, Array]:
            state = nnx.merge(onward_graph, onward)(code[None], state)
            return state, state

        def backward(state: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            code, inside = step
            # The way back starts at the last element of each set.
            state = jnp.where(inside[:, None], nnx.merge(back_graph, back)(code[None], state), 0.0)
            return state, state

        first = jax.lax.scan(forward, start, codes)[1]
        second = jax.lax.scan(backward, start, (codes, mask.T), reverse=True)[1]
        scores = self.score((first + second) / 2)[..., 0].T
        # A row without elements, which fills up a batch, gets equal weights of zeros.
        return jax.nn.softmax(jnp.where(mask, scores / _TEMPERATURE, jnp.finfo(jnp.float32).min), axis=1)


class RegionPooling(nnx.Module):
    """VSE-infinity's image encoder over the regions of a detector: `GPO(map(x) + mlp(x))`, of unit length.

    The MLP has a batch norm, frozen, and a rectifier between its two maps.
    """

    def __init__(self, inputs: int, width: int, *, rngs: nnx.Rngs):
        self.pooling = GeneralizedPooling(inputs, width, dtype=jnp.float32, rngs=rngs)
        self.up = Linear(inputs, width // 2, dtype=jnp.float32, rngs=rngs)
        self.norm = FrozenBatchNorm(width // 2)
        self.down = Linear(width // 2, width, dtype=jnp.float32, rngs=rngs)

    def __call__(self, regions: Float[Array, "b n inputs"], mask: Bool[Array, "b n"]) -> Float[Array, "b width"]:
        """Unit vectors; `mask` is True at regions, which come before the padding."""
        hidden = jax.nn.relu(self.norm(self.up(regions)))
        pooled = self.pooling.pool(self.pooling.map(regions) + self.down(hidden), mask)
        return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=1, keepdims=True), jnp.finfo(jnp.float32).tiny)
