"""Add Gaussian, shot, impulse or speckle noise, independent for each pixel and channel.

Constants per severity: Hendrycks & Dietterich 2019 (arXiv 1903.12261), from their public code. x is in [0, 1].

    gaussian   x + c n                       n standard normal
    shot       poisson(c x) / c
    impulse    a share c of the values becomes 0 or 1, half each
    speckle    x + c x n
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt8

from rococo_jax.perturb.images.corruptions.primitives import to_bytes

GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)
SHOT = (60, 25, 12, 5, 3)
IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)
SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)

Image = UInt8[Array, "height width 3"]
PerValue = Float[Array, "height width 3"]


def draw_normal(key: Key[Array, ""], height: int, width: int, severity: int) -> PerValue:
    """Draw a standard normal number for each value."""
    return jax.random.normal(key, (height, width, 3))


def draw_uniform(key: Key[Array, ""], height: int, width: int, severity: int) -> PerValue:
    """Draw a uniform number in [0, 1) for each value."""
    return jax.random.uniform(key, (height, width, 3))


def gaussian_noise(image: Image, severity: int, noise: PerValue) -> Image:
    """Add noise of constant standard deviation."""
    return to_bytes(image.astype(jnp.float32) + 255 * GAUSSIAN[severity - 1] * noise)


def speckle_noise(image: Image, severity: int, noise: PerValue) -> Image:
    """Add noise in proportion to the value."""
    image = image.astype(jnp.float32)
    return to_bytes(image + image * (SPECKLE[severity - 1] * noise))


def impulse_noise(image: Image, severity: int, uniform: PerValue) -> Image:
    """Set values to white if `uniform` is below half the amount, and to black from there to the amount."""
    amount = IMPULSE[severity - 1]
    return jnp.where(uniform < amount / 2, jnp.uint8(255), jnp.where(uniform < amount, jnp.uint8(0), image))


def shot_noise(image: Image, severity: int, uniform: PerValue) -> Image:
    """Draw Poisson counts by inversion: find by bisection where the distribution function exceeds `uniform`."""
    photons = SHOT[severity - 1]
    table, levels = _poisson_table(photons)
    places = table.shape[1]
    base = image.astype(jnp.int32) * places
    flat = jnp.asarray(table.reshape(-1))
    count = jnp.zeros_like(base)
    step = places // 2
    while step:
        count += step * (uniform > flat[base + count + (step - 1)]).astype(jnp.int32)
        step //= 2
    return jnp.asarray(levels)[jnp.minimum(count, photons)]


@functools.cache
def _poisson_table(photons: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P(count <= k) for each pixel value and k, and the byte of each count. Counts >= `photons` are white."""
    places = 1 << photons.bit_length()
    mean = np.arange(256) / 255 * photons
    with np.errstate(divide="ignore"):
        log_mean = np.log(mean)
    log_factorial = np.cumsum(np.log(np.maximum(np.arange(photons), 1)))
    power = np.arange(photons) * np.where(mean > 0, log_mean, 0)[:, None]
    mass = np.exp(power - mean[:, None] - log_factorial)
    mass[0] = np.arange(photons) == 0
    table = np.full((256, places), 2.0, np.float32)
    table[:, :photons] = np.cumsum(mass, axis=1)
    return table, (np.arange(photons + 1) / photons * 255).astype(np.uint8)
