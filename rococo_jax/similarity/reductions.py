"""Row and column reductions of logits to one number each.

    LogSumExp    log sum_j exp(z_j)
    SoftplusSum  sum_j log(1 + exp(z_j))

The online log-sum-exp stores the highest logit so far and the sum of exponentials relative to it (Milakov and
Gimelshein, arXiv 1805.02867).
"""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

State = tuple[Array, ...]


class Reduction(abc.ABC):
    """Reduction of rows or columns of logits to one number each, tile by tile and across devices.

    Logits of ignored pairs are -inf. A row in which all pairs are ignored reduces to -inf, or to 0.
    """

    @staticmethod
    @abc.abstractmethod
    def start(shape: tuple[int, ...]) -> State:
        """Return the state before the first tile, for items of this shape."""

    @staticmethod
    @abc.abstractmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        """Return the state after adding the logits of one tile, reduced over `axis`."""

    @staticmethod
    @abc.abstractmethod
    def merge(states: State) -> State:
        """Combine several states, stacked along the first axis, into one."""

    @staticmethod
    @abc.abstractmethod
    def finish(state: State) -> Array:
        """Compute the result from the final state."""


class LogSumExp(Reduction):
    """Log-sum-exp, log sum_j exp(z_j)."""

    @staticmethod
    def start(shape: tuple[int, ...]) -> State:
        return jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.float32)

    @staticmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        highest, total = state
        # The result does not depend on the shift, so it needs no gradient.
        raised = jax.lax.stop_gradient(jnp.maximum(highest, logits.max(axis)))
        shift = _finite(raised)
        tile_total = jnp.exp(logits - jnp.expand_dims(shift, axis)).sum(axis)
        return raised, total * jnp.exp(highest - shift) + tile_total

    @staticmethod
    def merge(states: State) -> State:
        highest, total = states
        raised = jax.lax.stop_gradient(highest.max(0))
        return raised, (total * jnp.exp(highest - _finite(raised)[None])).sum(0)

    @staticmethod
    def finish(state: State) -> Array:
        highest, total = state
        return highest + jnp.log(jnp.where(total > 0, total, 1.0))


class SoftplusSum(Reduction):
    """Softplus sum, sum_j log(1 + exp(z_j)): the negatives of the pairwise sigmoid loss."""

    @staticmethod
    def start(shape: tuple[int, ...]) -> State:
        return (jnp.zeros(shape, jnp.float32),)

    @staticmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        return (state[0] + jax.nn.softplus(logits).sum(axis),)

    @staticmethod
    def merge(states: State) -> State:
        return (states[0].sum(0),)

    @staticmethod
    def finish(state: State) -> Array:
        return state[0]


def _finite(highest: Array) -> Array:
    """Replace -inf by 0. Subtracting a maximum of -inf would give NaN; subtracting 0 leaves -inf."""
    return jnp.where(highest == -jnp.inf, 0.0, highest)
