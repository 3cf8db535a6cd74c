"""A norm and the residual beside it in one kernel each way (Pallas, by Triton): towers in bfloat16, NVIDIA's GPUs.

    y = n scale + bias,   n = (x - mean) factor,   and x goes on as the residual                  (`layers.LayerNorm`)
    dx = r + factor (c - mean(c) - n mean(c n)),   c = dy scale,   r the gradient of the residual
    dscale, dbias = the sums of dy n and dy over rows

XLA reads `x` three times for `y`, and `x` and `dy` once for `dx` and once more for the sums; here each is read once.
All is computed in float32 and rounded once. A program of the kernel sums its own rows, and XLA these partial sums, so
no order depends on time. What XLA makes of `LayerNorm` is the reference.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.models.layers import LayerNorm

# Rows that a program holds at a time, and programs of a backward pass: eight on each of an H100's 132 processors.
_ROWS, _PROGRAMS = 4, 1056
_HOW = triton.CompilerParams(num_warps=8)


@dataclasses.dataclass(frozen=True)
class FusedNorm:
    """Norms of rows that are sharded over all axes of a mesh. `interpret` runs kernels without a GPU, to test them."""

    mesh: Mesh
    interpret: bool = False

    def __call__(
        self, x: Float[Array, "b t width"], norm: LayerNorm
    ) -> tuple[Float[Array, "b t width"], Float[Array, "b t width"]]:
        """`x`, to be used as the residual, and the normed rows in its dtype."""
        return _beside(x, norm.scale[...], norm.bias[...], norm.eps, self)

    def on_rows(self, kernel: Callable[..., Any], rows: tuple[Array, ...], *whole: Array) -> tuple[Array, ...]:
        """`kernel(interpret, *rows, *whole)` on each device's rows: XLA cannot split a kernel."""
        call = functools.partial(kernel, self.interpret)
        if jax.sharding.get_abstract_mesh().manual_axes:
            return call(*rows, *whole)
        sharded = PartitionSpec(self.mesh.axis_names)
        places = (sharded,) * len(rows) + (PartitionSpec(),) * len(whole)
        return jax.shard_map(call, mesh=self.mesh, in_specs=places, out_specs=sharded, check_vma=False)(*rows, *whole)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _beside(x: Array, scale: Array, bias: Array, eps: float, kernel: FusedNorm) -> tuple[Array, Array]:
    return _forward(x, scale, bias, eps, kernel)[0]


def _forward(x: Array, scale: Array, bias: Array, eps: float, kernel: FusedNorm) -> tuple[Any, tuple[Array, ...]]:
    normed, *moments = kernel.on_rows(functools.partial(_norm, eps), (x,), scale, bias)
    return (x, normed), (x, scale, *checkpoint_name(moments, "norm"))


def _backward(
    eps: float, kernel: FusedNorm, residuals: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    x, scale, *moments = residuals
    to_x, to_scale, to_bias = kernel.on_rows(_gradients, (x, *cotangents, *moments), scale)
    return to_x, to_scale.sum(0), to_bias.sum(0)


_beside.defvjp(_forward, _backward)


def _norm(eps: float, interpret: bool, x: Array, scale: Array, bias: Array) -> tuple[Array, ...]:
    """The normed rows, and the mean and the factor of each."""
    rows, width = x.size // x.shape[-1], x.shape[-1]

    def program(x, scale, bias, normed, mean, factor):
        row, columns, mask = _places(x, pl.program_id(0))
        value = _read(x, mask, row, columns)
        means = value.sum(1, keepdims=True) / width
        centred = jnp.where(mask, value - means, 0.0)
        factors = jax.lax.rsqrt(jnp.square(centred).sum(1, keepdims=True) / width + eps)
        inside = columns < width
        result = centred * factors * _read(scale, inside, columns) + _read(bias, inside, columns)
        triton.store(normed.at[row, columns], result.astype(normed.dtype), mask=mask)
        triton.store(mean.at[row, 0], means, mask=row < rows)
        triton.store(factor.at[row, 0], factors, mask=row < rows)

    of_rows = jax.ShapeDtypeStruct((rows, 1), jnp.float32)
    results = jax.ShapeDtypeStruct((rows, width), x.dtype), of_rows, of_rows
    found = _call(program, pl.cdiv(rows, _ROWS), results, interpret)(x.reshape(rows, width), scale, bias)
    return tuple(each.reshape(*x.shape[:-1], -1) for each in found)


def _gradients(interpret: bool, *operands: Array) -> tuple[Array, Array, Array]:
    """The gradient of `x`, and those of scale and bias from the rows of each program."""
    *of_rows, scale = operands
    shape = of_rows[0].shape
    rows, width = of_rows[0].size // shape[-1], shape[-1]
    blocks = pl.cdiv(rows, _ROWS * _PROGRAMS)  # of a program
    programs = pl.cdiv(rows, _ROWS * blocks)

    def program(x, residual, cotangent, mean, factor, scale, to_x, to_scale, to_bias):
        number = pl.program_id(0)

        def block(of_program, sums):
            row, columns, mask = _places(x, number * blocks + of_program)
            means, factors = (_read(each, row < rows, row, 0) for each in (mean, factor))
            to_y = _read(cotangent, mask, row, columns)
            normed = jnp.where(mask, (_read(x, mask, row, columns) - means) * factors, 0.0)
            scaled = to_y * _read(scale, columns < width, columns)
            along = (scaled * normed).sum(1, keepdims=True) / width
            changed = factors * (scaled - scaled.sum(1, keepdims=True) / width - normed * along)
            result = changed + _read(residual, mask, row, columns)
            triton.store(to_x.at[row, columns], result.astype(to_x.dtype), mask=mask)
            return sums[0] + to_y * normed, sums[1] + to_y

        _, columns, mask = _places(x, 0)
        zeros = jnp.zeros(mask.shape, jnp.float32)
        for ref, part in zip((to_scale, to_bias), jax.lax.fori_loop(0, blocks, block, (zeros, zeros)), strict=True):
            triton.store(ref.at[number, columns[0]], part.sum(0), mask=columns[0] < width)

    parts = jax.ShapeDtypeStruct((programs, width), jnp.float32)
    results = jax.ShapeDtypeStruct((rows, width), of_rows[0].dtype), parts, parts
    to_x, *sums = _call(program, programs, results, interpret)(*(each.reshape(rows, -1) for each in of_rows), scale)
    return to_x.reshape(shape), *sums


def _call(program: Callable[..., None], programs: int, results: tuple[Any, ...], interpret: bool) -> Callable[..., Any]:
    return pl.pallas_call(program, grid=(programs,), out_shape=results, interpret=interpret, compiler_params=_HOW)


def _places(x: Any, block: Any) -> tuple[Array, Array, Array]:
    """Rows and columns of a block of rows, and which of them there are: Triton's blocks are powers of two."""
    rows, width = x.shape
    row = (block * _ROWS + jnp.arange(_ROWS))[:, None]
    columns = jnp.arange(pl.next_power_of_2(width))[None]
    return row, columns, (row < rows) & (columns < width)


def _read(ref: Any, mask: Array, *places: Any) -> Array:
    return triton.load(ref.at[places], mask=mask, other=0.0).astype(jnp.float32)
