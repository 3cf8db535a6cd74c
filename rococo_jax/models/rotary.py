"""Rotary positions of image patches: queries and keys are turned by angles that grow with row and column.

    (x_2i, x_2i+1) -> (x_2i cos a - x_2i+1 sin a, x_2i+1 cos a + x_2i sin a)
    a = p / 10000^(4 j / d),   p the row for the first half of the d channels of a head, the column for the other half

so that the product of a query and a key depends on the difference of their places (Su et al., arXiv 2104.09864). The
places of a grid are scaled to those of the grid that the model was first trained on (EVA-02, arXiv 2303.11331), and PE
(2504.13181) counts from 1, columns first.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rococo_jax.models.spec import RotarySpec

_BASE = 10000.0


def rotary_angles(spec: RotarySpec, grid: int, head_width: int) -> Float[np.ndarray, "patches half_head"]:
    """One angle a patch (row by row) and pair of channels, float32."""
    quarter = head_width // 4
    bands = np.float32(1) / np.float32(_BASE) ** (np.arange(quarter, dtype=np.float32) / np.float32(quarter))
    places = np.arange(grid, dtype=np.float32) + np.float32(spec.from_one)
    places = places / np.float32(grid) * np.float32(spec.grid)
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
        even, odd = patches[..., ::2], patches[..., 1::2]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        turned = jnp.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).reshape(patches.shape)
        return jnp.concatenate([x[:, : self.others], turned.astype(x.dtype)], axis=1)
