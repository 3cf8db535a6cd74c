"""Positions of patches: embeddings for images of another size, and rotary positions.

Position embeddings are interpolated as the library of the checkpoint does it.

A map of each axis, applied to rows and columns (`PositionRule`):

    bicubic      transformers' `interpolate_pos_encoding`, which is torch's: out[i] = sum_k w(x_i - k) in[clamp(k)] with
                 x_i = (i + 1/2) n_in / n_out - 1/2, k the four neighbours of x_i, and w Keys' kernel for a = -3/4
                 (Keys 1981, IEEE TASSP 29(6))
    antialiased  open_clip's `resize_pos_embed`, timm's, and that of towers with registers in transformers: a = -1/2, w
                 as much wider as the grid becomes smaller
    antialiased_linear  TIPSv2's, and NaFlex's for a grid of each image: the same with w(d) = 1 - |d| for |d| < 1
    linear       big_vision's `resample_posemb`: SciPy's zoom of order 1, whose corners stay where they are

Rotary positions turn queries and keys of patches by angles that grow with row and column,

    (x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i+1 cos a + x_2i sin a)
    a = p / 10000^(4 j / d),   p the row for the first half of the d channels of a head, the column for the other half

so that the product of a query and a key depends on the difference of their places (Su et al., arXiv 2104.09864). The
places of a grid are scaled to those of the grid that the model was first trained on (EVA-02, arXiv 2303.11331), and PE
(2504.13181) counts from 1, columns first. DINOv3 (2508.10104) has 100 for 10000, and p = 4 pi ((i + 1/2) / n - 1/2).
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import scipy.ndimage
from jaxtyping import Array, Float, Int

from rococo_jax.models.checked_spec import PositionRule
from rococo_jax.models.spec import ResNetSpec, RotarySpec, VisionSpec


def positions_on_grid(
    positions: Float[Array, "tokens width"], spec: VisionSpec | ResNetSpec
) -> Float[Array, "new_tokens width"]:
    """Stored position embeddings (class token first, if any) for the grid of a tower, float32."""
    first = positions[: int(spec.positioned_class)]
    old, new = round((len(positions) - len(first)) ** 0.5), spec.grid
    if old == new:
        return positions
    matrix = jnp.asarray(_axis_matrix(old, new, spec.position_rule), jnp.float32)
    square = positions[len(first) :].reshape(old, old, -1)
    highest = jax.lax.Precision.HIGHEST
    rows = jnp.einsum("ya,abw->ybw", matrix, square, precision=highest)
    resized = jnp.einsum("xb,ybw->yxw", matrix, rows, precision=highest)
    return jnp.concatenate([first, resized.reshape(new * new, -1)])


def positions_on_grids(
    positions: Float[Array, "tokens width"], grids: Int[Array, "b 2"], patches: int
) -> Float[Array, "b patches width"]:
    """Stored position embeddings for the grids (rows, columns) of images, row by row, float32, as `antialiased_linear`.

    What follows the last patch of a grid is padding, of any finite value.
    """
    rows, columns, place = grids[:, :1], grids[:, 1:], jnp.arange(patches)[None]
    side, row = round(len(positions) ** 0.5), jnp.minimum(place // columns, rows - 1)
    by_row, by_column = _triangles(row, rows, side), _triangles(place % columns, columns, side)
    weights = (by_row[..., :, None] * by_column[..., None, :]).reshape(len(grids), patches, side * side)
    return jnp.einsum("bpt,tw->bpw", weights, positions, precision=jax.lax.Precision.HIGHEST)


def _triangles(place: Int[Array, "b patches"], size: Int[Array, "b 1"], stored: int) -> Float[Array, "b patches s"]:
    """The weights of `stored` places of an axis for some of `size` places along it; they sum to 1."""
    step = stored / size.astype(jnp.float32)
    centre = (place.astype(jnp.float32) + 0.5) * step - 0.5
    distance = jnp.arange(stored, dtype=jnp.float32)[None, None] - centre[..., None]
    weights = jnp.maximum(1 - jnp.abs(distance) / jnp.maximum(step, 1)[..., None], 0)
    return weights / weights.sum(-1, keepdims=True)


def _axis_matrix(size_in: int, size_out: int, rule: PositionRule) -> Float[np.ndarray, "size_out size_in"]:
    """The linear map of one axis, float64; rows sum to 1."""
    if rule == "linear":
        return scipy.ndimage.zoom(np.eye(size_in), (size_out / size_in, 1), order=1)
    centre = (np.arange(size_out) + 0.5) * (size_in / size_out) - 0.5
    if rule in ("antialiased", "antialiased_linear"):
        distance = (np.arange(size_in) - centre[:, None]) / max(size_in / size_out, 1)
        matrix = _keys_kernel(distance, -0.5) if rule == "antialiased" else np.maximum(1 - np.abs(distance), 0)
        return matrix / matrix.sum(1, keepdims=True)
    first = np.floor(centre).astype(int)
    matrix = np.zeros((size_out, size_in))
    for offset in (-1, 0, 1, 2):
        neighbour = first + offset
        weights = _keys_kernel(centre - neighbour, -0.75)
        np.add.at(matrix, (np.arange(size_out), neighbour.clip(0, size_in - 1)), weights)
    return matrix


def _keys_kernel(distance: np.ndarray, a: float) -> np.ndarray:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def rotary_angles(spec: RotarySpec, grid: int, head_width: int) -> Float[np.ndarray, "patches half_head"]:
    """One angle a patch (row by row) and pair of channels, float32."""
    quarter = head_width // 4
    bands = np.float32(1) / np.float32(spec.base) ** (np.arange(quarter, dtype=np.float32) / np.float32(quarter))
    places = np.arange(grid, dtype=np.float32) + np.float32(0.5 if spec.centred else spec.from_one)
    places = places / np.float32(grid) * np.float32(spec.grid)
    if spec.centred:
        places = np.float32(2 * np.pi) * (2 * places / np.float32(spec.grid) - 1)
    rows, columns = np.meshgrid(places, places, indexing="ij")
    axes = (columns, rows) if spec.columns_first else (rows, columns)
    angles = np.stack(axes, -1)[..., None] * bands
    return angles.reshape(grid * grid, 2 * quarter).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Turns the queries or keys of a tower's patches; the first `others` tokens (class token) stay as they are."""

    spec: RotarySpec
    grid: int
    others: int

    def __call__(self, x: Float[Array, "b t h d"]) -> Float[Array, "b t h d"]:
        """Computed in float32, returned in the dtype of `x`."""
        angles = jnp.asarray(rotary_angles(self.spec, self.grid, x.shape[-1]))[None, :, None]
        patches = x[:, self.others :].astype(jnp.float32)
        halves = self.spec.centred
        even, odd = jnp.split(patches, 2, -1) if halves else (patches[..., ::2], patches[..., 1::2])
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        parts = [even * cosine - odd * sine, odd * cosine + even * sine]
        turned = jnp.concatenate(parts, -1) if halves else jnp.stack(parts, -1).reshape(patches.shape)
        return jnp.concatenate([x[:, : self.others], turned.astype(x.dtype)], axis=1)
