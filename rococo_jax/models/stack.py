"""Blocks alike, stacked along a leading layer axis and run by one scan; of towers of convolutions."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array


class Stack(nnx.Module):
    """`layers` blocks from `make`, each from a map to a map of the same shape."""

    def __init__(self, layers: int, make: Callable[[nnx.Rngs], nnx.Module], *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> nnx.Module:
            return make(rngs)

        self.block = stacked(rngs)

    def __call__(self, x: Array) -> Array:
        graph, parameters = nnx.split(self.block)

        def step(x: Array, layer: Any) -> tuple[Array, None]:
            return nnx.merge(graph, layer)(x), None

        return jax.lax.scan(step, x, parameters)[0]
