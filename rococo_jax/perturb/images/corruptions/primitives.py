"""Filter, zoom and move an image: building blocks of the corruptions.

Filters take one float32 image (height, width, channels). Borders are those of the reference: "edge" repeats the last
pixel, "symmetric" mirrors with it, "reflect" mirrors without it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Up to this radius a sum of shifted images is faster on a CPU than a product with a banded matrix.
_LARGEST_SHIFTED_RADIUS = 8
_BAND = 64


def rounded_product(left: Array | float, right: Array) -> Array:
    """Return `left * right` in float32, rounded before anything is added to it.

    A compiler may fuse a product and a sum into one instruction that rounds once, depending on how it splits the work
    over threads. It cannot do so across `round`, and scaling by a power of two is exact. The product keeps its bits
    down to 2 ** -22; smaller ones are dropped.
    """
    return jnp.round((left * np.float32(2**22)) * right) * np.float32(2**-22)


def ordered_sum(values: Float[Array, "..."]) -> Float[Array, ""]:
    """Return the sum, computed by halves, because the order of `jnp.sum` depends on the number of threads."""
    values = values.reshape(-1)
    values = jnp.pad(values, (0, (1 << (values.size - 1).bit_length()) - values.size))
    while values.size > 1:
        values = jax.lax.optimization_barrier(values.reshape(2, -1))
        values = values[0] + values[1]
    return values[0]


def gaussian_weights(sigma: float, truncate: float = 4.0) -> Float[np.ndarray, " taps"]:
    """Return a sampled Gaussian, truncated at `truncate` standard deviations, that sums to 1."""
    radius = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return weights / weights.sum()


def gaussian(
    image: Float[Array, "height width channels"],
    sigma: float | tuple[float, float],
    *,
    truncate: float = 4.0,
    border: str = "edge",
) -> Float[Array, "height width channels"]:
    """Apply a Gaussian filter along rows and columns; `sigma` is in pixels, one for both or (down, across)."""
    down, across = (sigma, sigma) if isinstance(sigma, float | int) else sigma
    height, width, channels = image.shape
    image = _correlate_lines(image.reshape(height, width * channels), gaussian_weights(down, truncate), border, axis=0)
    # With channels next to the rows, the second pass reads contiguous lines.
    image = image.reshape(height, width, channels).transpose(0, 2, 1).reshape(height * channels, width)
    image = _correlate_lines(image, gaussian_weights(across, truncate), border, axis=1)
    return image.reshape(height, channels, width).transpose(0, 2, 1)


def _correlate_lines(image: Array, weights: np.ndarray, border: str, axis: int) -> Array:
    """Correlate with symmetric weights along one axis of lines."""
    radius, size = len(weights) // 2, image.shape[axis]
    weights = weights.astype(np.float32)

    def pad(image: Array, before: int, after: int, **mode: str) -> Array:
        return jnp.pad(image, [(before, after) if axis == each else (0, 0) for each in (0, 1)], **mode)

    def lines(first: int, count: int) -> Array:
        return padded[first : first + count] if axis == 0 else padded[:, first : first + count]

    padded = pad(image, radius, radius, mode=border)
    if radius <= _LARGEST_SHIFTED_RADIUS:
        total = lines(radius, size) * weights[radius]
        for tap in range(1, radius + 1):
            total += (lines(radius - tap, size) + lines(radius + tap, size)) * weights[radius + tap]
        return total
    bands = -(-size // _BAND)
    padded = pad(padded, 0, bands * _BAND - size)
    matrix = _banded(weights)
    parts = []
    for band in range(bands):
        part = lines(band * _BAND, _BAND + 2 * radius)
        both = (matrix, part) if axis == 0 else (part, matrix.T)
        parts.append(jnp.dot(*both, precision=jax.lax.Precision.HIGHEST))
    padded = jnp.concatenate(parts, axis=axis)
    return lines(0, size)


def _banded(weights: np.ndarray) -> np.ndarray:
    """Return the matrix that maps a band of lines and its surroundings to the filtered band."""
    matrix = np.zeros((_BAND, _BAND + len(weights) - 1), np.float32)
    for line in range(_BAND):
        matrix[line, line : line + len(weights)] = weights
    return matrix


def correlate(
    image: Float[Array, "height width channels"], kernel: Float[np.ndarray, "taps taps"]
) -> Float[Array, "height width channels"]:
    """Correlate with an odd square kernel at a "reflect" border, by Fourier transform."""
    radius = len(kernel) // 2
    height, width, _ = image.shape
    lines, columns = (_next_smooth(side + 2 * radius) for side in (height, width))
    padded = jnp.pad(image, ((radius, radius), (radius, radius), (0, 0)), mode="reflect").transpose(2, 0, 1)
    padded = jnp.pad(padded, ((0, 0), (0, lines - height - 2 * radius), (0, columns - width - 2 * radius)))
    padded_kernel = np.zeros((lines, columns))
    padded_kernel[: len(kernel), : len(kernel)] = kernel
    response = np.conj(np.fft.rfft2(padded_kernel)).astype(np.complex64)[None]
    filtered = jnp.fft.irfft2(jnp.fft.rfft2(padded) * response, s=(lines, columns))
    return filtered[:, :height, :width].transpose(1, 2, 0)


def _next_smooth(side: int) -> int:
    """Return the smallest length >= `side` without prime factors above 5, for which transforms are fast."""

    def rest(length: int) -> int:
        for factor in (2, 3, 5):
            while length % factor == 0:
                length //= factor
        return length

    return next(length for length in range(side, 2 * side) if rest(length) == 1)


def zoom_taps(side: int, zoom: float, size: int) -> tuple[Int[np.ndarray, "size 2"], Float[np.ndarray, "size 2"]]:
    """Return two source lines and their weights for each of the `size` lines in the middle of a linearly zoomed axis.

    The corners of source and result coincide. A coordinate past the last line by rounding counts as outside and gets
    the weight 0, as in the reference (SciPy's `zoom` of order 1).
    """
    zoomed = round(side * zoom)
    step = (side - 1) / (zoomed - 1) if zoomed > 1 else 1.0
    coordinate = np.arange(zoomed) * step
    low = np.floor(coordinate).astype(int)
    share = coordinate - low
    weights = np.stack([1 - share, share], axis=1) * (coordinate <= side - 1)[:, None]
    first = (zoomed - size) // 2
    lines = np.clip(np.stack([low, low + 1], axis=1), 0, side - 1)
    return lines[first : first + size], weights[first : first + size]


def crop_of_zoom(side: int, zoom: float) -> tuple[int, int]:
    """Return (first line, number of lines) of the centre that fills the frame after zooming."""
    lines = int(np.ceil(side / float(zoom)))
    return (side - lines) // 2, lines


def zoom_lines(
    image: Float[Array, "lines rest"], lines: Int[np.ndarray, "zoomed 2"], weights: Float[np.ndarray, "zoomed 2"]
) -> Float[Array, "zoomed rest"]:
    """Return for each line the weighted sum of two source lines."""
    weights = weights.astype(np.float32)
    return image[lines[:, 0]] * weights[:, :1] + image[lines[:, 1]] * weights[:, 1:]


def motion_offsets(angle: Float[Array, ""], taps: int) -> Int[Array, "taps 2"]:
    """Return the shift (rows, columns) of the image in each of `taps` steps along the direction `angle` (degrees)."""
    radians = angle * np.float32(np.pi / 180)
    direction = jnp.stack([jnp.sin(radians), jnp.cos(radians)])
    return -jnp.ceil(jnp.arange(taps, dtype=jnp.float32)[:, None] * direction[None] - 0.5).astype(jnp.int32)


def motion_blur(
    image: Float[Array, "height width channels"], offsets: Int[Array, "taps 2"], sigma: float
) -> Float[Array, "height width channels"]:
    """Blur along a line with Gaussian weights that decrease from its start; the border repeats the last pixel."""
    height, width, channels = image.shape
    reach = offsets.shape[0] - 1
    weights = np.exp(-(np.arange(reach + 1) ** 2) / (2 * sigma**2))
    weights = (weights / weights.sum()).astype(np.float32)
    padded = jnp.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="edge").reshape(height + 2 * reach, -1)
    total = jnp.zeros((height, width * channels), jnp.float32)
    for tap in range(reach + 1):
        start = (reach - offsets[tap, 0], (reach - offsets[tap, 1]) * channels)
        shifted = jax.lax.dynamic_slice(padded, start, (height, width * channels))
        total += shifted * weights[tap]
    return total.reshape(height, width, channels)


def to_bytes(image: Float[Array, "..."]) -> Array:
    """Clip to 0..255 and truncate (not round) to uint8, as the reference does."""
    return jnp.clip(image, 0, 255).astype(jnp.uint8)
