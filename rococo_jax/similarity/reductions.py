"""How a row or a column of logits becomes one number, tile after tile.

Both reductions see logits in which pairs that do not count are -inf, and hold a state of one or two numbers an item,
so that a row (or a column) may arrive in any number of pieces, on any number of devices:

    LogSumExp    log sum_j exp(z_j)        derivative exp(z_j - result)
    SoftplusSum  sum_j log(1 + exp(z_j))   derivative 1 / (1 + exp(-z_j))

The online log-sum-exp carries the highest logit so far and the sum of exponentials relative to it (Milakov and
Gimelshein, arXiv 1805.02867). A row without any pair that counts reduces to -inf, or to 0.
"""

import abc

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

State = tuple[Array, ...]


class Reduction(abc.ABC):
    """What `sweep`, `ring` and `gathered` ask of a reduction."""

    @staticmethod
    @abc.abstractmethod
    def start(shape: tuple[int, ...]) -> State:
        """The state before any logit, for items of this shape."""

    @staticmethod
    @abc.abstractmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        """The state after the logits of one tile, reduced over `axis`."""

    @staticmethod
    @abc.abstractmethod
    def merge(states: State) -> State:
        """One state from several, stacked along the first axis."""

    @staticmethod
    @abc.abstractmethod
    def finish(state: State) -> Array:
        """The result."""

    @staticmethod
    @abc.abstractmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        """d result / d logit; 0 where the logit is -inf."""


class LogSumExp(Reduction):
    """log sum_j exp(z_j)."""

    @staticmethod
    def start(shape: tuple[int, ...]) -> State:
        return jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.float32)

    @staticmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        highest, total = state
        raised = jnp.maximum(highest, logits.max(axis))
        shift = _finite(raised)
        tile_total = jnp.exp(logits - jnp.expand_dims(shift, axis)).sum(axis)
        return raised, total * jnp.exp(highest - shift) + tile_total

    @staticmethod
    def merge(states: State) -> State:
        highest, total = states
        raised = highest.max(0)
        return raised, (total * jnp.exp(highest - _finite(raised)[None])).sum(0)

    @staticmethod
    def finish(state: State) -> Array:
        highest, total = state
        return highest + jnp.log(jnp.where(total > 0, total, 1.0))

    @staticmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        return jnp.exp(logits - _finite(result))


class SoftplusSum(Reduction):
    """sum_j log(1 + exp(z_j)), the negatives of the pairwise sigmoid loss."""

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

    @staticmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        return jax.nn.sigmoid(logits)


def _finite(highest: Array) -> Array:
    """0 in place of -inf: subtracting it from logits that are all -inf then leaves -inf, not NaN."""
    return jnp.where(highest == -jnp.inf, 0.0, highest)
