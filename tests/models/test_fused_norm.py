"""The kernel of a norm and its residual against what XLA makes of `LayerNorm`, run by Pallas's interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rococo_jax.models import fused_norm
from rococo_jax.models.fused_norm import FusedNorm
from rococo_jax.models.layers import LayerNorm
from rococo_jax.models.transformer import Blocks, use_fused_norms
from tests.support.tiny import tiny_spec
from tests.support.tiny_runs import mesh_of

pytestmark = pytest.mark.quick
EPS = 1e-5


def drawn(shape: tuple[int, ...], dtype) -> tuple[LayerNorm, jax.Array, tuple[jax.Array, jax.Array]]:
    """A norm, rows, and the gradients of rows and normed rows."""
    random, norm = np.random.default_rng(0), LayerNorm(shape[-1], EPS)
    norm.scale[...] = jnp.asarray(random.uniform(0.5, 2, shape[-1:]), jnp.float32)
    norm.bias[...] = jnp.asarray(random.normal(size=shape[-1:]), jnp.float32)
    x, *cotangents = (jnp.asarray(random.normal(size=shape) + 3 * at_first, dtype) for at_first in (1, 0, 0))
    return norm, x, tuple(cotangents)


def results(kernel: FusedNorm | None, norm: LayerNorm, x: jax.Array, cotangents) -> tuple[jax.Array, ...]:
    """The residual, the normed rows, and the gradients of rows, scale and bias."""
    graph, parameters = nnx.split(norm)

    def both(x, parameters):
        merged = nnx.merge(graph, parameters)
        return (x, merged(x).astype(x.dtype)) if kernel is None else kernel(x, merged)

    def all_results(x, parameters, cotangents):
        found, pull = jax.vjp(both, x, parameters)
        to_x, to_parameters = pull(cotangents)
        return *found, to_x, to_parameters["scale"][...], to_parameters["bias"][...]

    return jax.jit(all_results)(x, parameters, cotangents)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
    ("dtype", "tolerances"),
    [
        (jnp.float32, (0, 1e-6, 1e-6, 1e-6, 1e-6)),
        # XLA rounds the norm's part before it adds the residual's, the kernel rounds once; sums are float32.
        (jnp.bfloat16, (0, 2**-8, 2**-7, 1e-6, 1e-6)),
    ],
)
@pytest.mark.parametrize("shape", [(8, 4, 32), (8, 5, 96), (16, 17, 200), (8, 1, 24)])
def test_it_is_the_norm_beside_the_residual(devices, dtype, tolerances, shape, monkeypatch):
    """Rows and columns that fill no block, and programs that take several blocks of rows."""
    monkeypatch.setattr(fused_norm, "_PROGRAMS", 3)
    found = results(FusedNorm(mesh_of(devices), interpret=True), *drawn(shape, dtype))
    expected = results(None, *drawn(shape, dtype))
    for one, other, tolerance in zip(found, expected, tolerances, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def stack(**changes) -> Blocks:
    spec = tiny_spec().vision
    return Blocks(spec.__class__(**{**vars(spec), **changes}), dtype=jnp.bfloat16, rngs=nnx.Rngs(0))


def test_blocks_that_norm_after_the_sum_keep_their_norms():
    assert use_fused_norms(stack(), FusedNorm(mesh_of(1)))
    assert not use_fused_norms(stack(norm_changes=True), FusedNorm(mesh_of(1)))


@pytest.mark.parametrize("rematerialise", ["none", "full"])
def test_blocks_give_the_same_and_keep_moments_only(rematerialise):
    """With `full` the backward pass finds the mean and factor of each row beside inputs of blocks."""

    def gradients(fused: bool):
        blocks = stack()
        blocks.rematerialise = rematerialise
        if fused:
            assert use_fused_norms(blocks, FusedNorm(mesh_of(1), interpret=True))
        graph, parameters = nnx.split(blocks)
        x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 17, 32)), jnp.bfloat16)

        def value(parameters):
            return jnp.square(nnx.merge(graph, parameters)(x, None).astype(jnp.float32)).mean()

        return jax.jit(jax.value_and_grad(value))(parameters)

    (found, to_found), (expected, to_expected) = gradients(True), gradients(False)
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    for one, other in zip(jax.tree.leaves(to_found), jax.tree.leaves(to_expected), strict=True):
        assert one.dtype == jnp.float32
        assert float(jnp.linalg.norm(one - other)) < 0.02 * float(jnp.linalg.norm(other))


def test_a_program_for_gpus_has_a_kernel_for_each_pass():
    """Two norms a block, in the body of a loop over blocks: forward, computed again, and backward."""
    blocks = stack()
    blocks.rematerialise = "full"
    use_fused_norms(blocks, FusedNorm(mesh_of(8)))
    graph, parameters = nnx.split(blocks)

    def value(parameters, x):
        return nnx.merge(graph, parameters)(x, None).astype(jnp.float32).sum()

    x = jax.ShapeDtypeStruct((8, 17, 32), jnp.bfloat16)
    for function, kernels in ((value, 2), (jax.grad(value), 6)):
        text = jax.jit(function).trace(parameters, x).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("xla.gpu.triton") == kernels
