"""Random numbers for whole images, the same ones as `jax.random` gives, several times faster on a CPU.

`jax.random` compiles Threefry-2x32 (Salmon et al. 2011) for CPUs as a loop that writes every round to memory. An image
needs a number for each value, so here the twenty rounds stand in one line, and the compiler puts them into the same
pass over the image as what the numbers are for.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def bits(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt32[Array, "*shape"]:
    """32 random bits for each element: `jax.random.bits` of a Threefry key (fewer than 2^32 elements)."""
    words = jax.random.key_data(key)
    schedule = (words[0], words[1], words[0] ^ words[1] ^ _PARITY)
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    left, right = jnp.zeros_like(counter) + schedule[0], counter + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(rotation)) | (right >> np.uint32(32 - rotation)))
        left = left + schedule[(block + 1) % 3]
        right = right + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return left ^ right


def uniform(key: Key[Array, ""], shape: tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Float[Array, "*shape"]:
    """Uniform in [low, high): `jax.random.uniform` of a Threefry key."""
    # The upper 23 bits become the fraction of a number in [1, 2).
    number = jax.lax.bitcast_convert_type((bits(key, shape) >> np.uint32(9)) | np.uint32(0x3F800000), jnp.float32) - 1
    return jnp.maximum(np.float32(low), number * np.float32(high - low) + np.float32(low))


def normal(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Standard normal: `jax.random.normal` of a Threefry key."""
    above_minus_one = float(np.nextafter(np.float32(-1), np.float32(0)))
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform(key, shape, above_minus_one, 1.0))
