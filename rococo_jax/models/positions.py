"""Position embeddings for images of another size, and rotary positions of patches.

Position embeddings are interpolated as in the library of the checkpoint (`PositionRule`). Each method is a linear map
of an axis, applied to rows and to columns:

    bicubic      transformers' `interpolate_pos_encoding`, by torch: out[i] = sum_k w(x_i - k) in[clamp(k)] with
                 x_i = (i + 1/2) n_in / n_out - 1/2, k the four neighbours of x_i, and w Keys' kernel for a = -3/4
                 (Keys 1981, IEEE TASSP 29(6))
    antialiased  open_clip's `resize_pos_embed`, timm, and towers with registers in transformers: a = -1/2, and w is
                 widened by the factor by which the grid is reduced
    antialiased_linear  TIPSv2, and NaFlex for the grid of each image: the same with w(d) = 1 - |d| for |d| < 1
    linear       big_vision's `resample_posemb`: SciPy's zoom of order 1, which keeps the corners in place

Rotary positions rotate queries and keys of patches by angles that grow with row and column,

    (x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i+1 cos a + x_2i sin a)
    a = p / 10000^(4 j / d),   p the row for the first half of the d channels of a head, the column for the other half

so that the product of a query and a key depends on the difference of their positions (Su et al., arXiv 2104.09864).
Positions are scaled to the grid on which the model was first trained (EVA-02, arXiv 2303.11331). PE (2504.13181) counts
from 1, columns first. DINOv3 (2508.10104) uses 100 instead of 10000, and p = 4 pi ((i + 1/2) / n - 1/2).
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
    """Interpolate stored position embeddings (class token first, if any) to the grid of a tower, float32."""
    of_class = positions[: int(spec.positioned_class)]
    old, new = round((len(positions) - len(of_class)) ** 0.5), spec.grid
    if old == new:
        return positions
    matrix = jnp.asarray(_axis_matrix(old, new, spec.position_rule), jnp.float32)
    square = positions[len(of_class) :].reshape(old, old, -1)
    highest = jax.lax.Precision.HIGHEST
    rows = jnp.einsum("ya,abw->ybw", matrix, square, precision=highest)
    resized = jnp.einsum("xb,ybw->yxw", matrix, rows, precision=highest)
    return jnp.concatenate([of_class, resized.reshape(new * new, -1)])


def positions_on_grids(
    positions: Float[Array, "tokens width"], grids: Int[Array, "b 2"], patches: int
) -> Float[Array, "b patches width"]:
    """Interpolate stored position embeddings to the grid (rows, columns) of each image, by `antialiased_linear`.

    The result is float32, patches row by row. Values after the last patch of a grid are padding, and finite.
    """
    rows, columns = grids[:, :1], grids[:, 1:]
    stored_side = round(len(positions) ** 0.5)
    patch = jnp.arange(patches)[None]
    row = jnp.minimum(patch // columns, rows - 1)
    column = patch % columns
    row_weights = _linear_weights(row, rows, stored_side)
    column_weights = _linear_weights(column, columns, stored_side)
    weights = row_weights[..., :, None] * column_weights[..., None, :]
    weights = weights.reshape(len(grids), patches, stored_side * stored_side)
    return jnp.einsum("bpt,tw->bpw", weights, positions, precision=jax.lax.Precision.HIGHEST)


def _linear_weights(
    position: Int[Array, "b patches"], size: Int[Array, "b 1"], stored: int
) -> Float[Array, "b patches s"]:
    """Compute the weights of the `stored` positions of an axis for positions among `size`; they sum to 1."""
    step = stored / size.astype(jnp.float32)
    centre = (position.astype(jnp.float32) + 0.5) * step - 0.5
    distance = jnp.arange(stored, dtype=jnp.float32)[None, None] - centre[..., None]
    weights = jnp.maximum(1 - jnp.abs(distance) / jnp.maximum(step, 1)[..., None], 0)
    return weights / weights.sum(-1, keepdims=True)


def _axis_matrix(size_in: int, size_out: int, rule: PositionRule) -> Float[np.ndarray, "size_out size_in"]:
    """Compute the linear map of one axis, float64; rows sum to 1."""
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
    """Compute the angles of all patches (row by row) and pairs of channels, float32."""
    quarter = head_width // 4
    bands = np.float32(1) / np.float32(spec.base) ** (np.arange(quarter, dtype=np.float32) / np.float32(quarter))
    positions = np.arange(grid, dtype=np.float32) + np.float32(0.5 if spec.centred else spec.from_one)
    positions = positions / np.float32(grid) * np.float32(spec.grid)
    if spec.centred:
        positions = np.float32(2 * np.pi) * (2 * positions / np.float32(spec.grid) - 1)
    rows, columns = np.meshgrid(positions, positions, indexing="ij")
    axes = (columns, rows) if spec.columns_first else (rows, columns)
    angles = np.stack(axes, -1)[..., None] * bands
    return angles.reshape(grid * grid, 2 * quarter).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Callable that rotates the queries or keys of patches. Tokens before `first_patch` are not rotated."""

    spec: RotarySpec
    grid: int
    first_patch: int

    def __call__(self, x: Float[Array, "b t h d"]) -> Float[Array, "b t h d"]:
        """Rotate in float32, and return in the dtype of `x`."""
        angles = jnp.asarray(rotary_angles(self.spec, self.grid, x.shape[-1]))[None, :, None]
        patches = x[:, self.first_patch :].astype(jnp.float32)
        pairs_halves = self.spec.centred  # channel i with i + d/2, instead of 2i with 2i + 1
        if pairs_halves:
            first, second = jnp.split(patches, 2, -1)
        else:
            first, second = patches[..., ::2], patches[..., 1::2]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        pair = [first * cosine - second * sine, second * cosine + first * sine]
        rotated = jnp.concatenate(pair, -1) if pairs_halves else jnp.stack(pair, -1).reshape(patches.shape)
        return jnp.concatenate([x[:, : self.first_patch], rotated.astype(x.dtype)], axis=1)
