"""Log-sum-exp over sharded similarities: one result for all strategies, that of torch in float64.

The tolerance, 2e-6 of the largest element, is 17 float32 roundings of that element: products of 16 terms, sums of a
few dozen exponentials, and a logit scale of 14 that turns the rounding of a cosine into 14 times as much in a logit.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from scipy.special import logsumexp

from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import PairwiseSide, ShardedLogits
from tests.support.dense_reference import relative_error
from tests.support.refusals import refused

# No bits are promised.
pytestmark = pytest.mark.quick
TOLERANCE = 2e-6
SCALE, BIAS = np.float32(14.3), np.float32(-1.7)
PARTS = ("rows", "columns", "queries", "keys", "scale", "bias")


@functools.cache
def example(query_count: int, key_count: int, width: int = 16):
    """Unit vectors, ids of which several are equal, masks, and weights that make one number of all results."""
    random = np.random.default_rng(query_count)
    sides = []
    for count in (query_count, key_count):
        vectors = random.standard_normal((count, width))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        ids, mask = random.integers(0, count // 2, count).astype(np.int32), random.random(count) < 0.9
        sides.append((vectors, ids, mask, random.random(count).astype(np.float32) * mask))
    return sides


@functools.cache
def wanted(query_count: int, key_count: int):
    """torch's row results, column results, and gradients of the weighted sum: queries, keys, scale, bias."""
    torch = pytest.importorskip("torch")
    vectors, ids, masks, weights = zip(*example(query_count, key_count), strict=True)
    inputs = [torch.tensor(np.float64(each), requires_grad=True) for each in (*vectors, SCALE, BIAS)]
    queries, keys, scale, bias = inputs
    allowed = (ids[0][:, None] != ids[1]) & masks[0][:, None] & masks[1]
    logits = (scale * queries @ keys.T + bias).where(torch.tensor(allowed), -torch.inf)
    results = [part[mask].logsumexp(1) for part, mask in zip((logits, logits.T), masks, strict=True)]
    total = sum(
        part @ torch.tensor(np.float64(each[mask])) for part, each, mask in zip(results, weights, masks, strict=True)
    )
    return *(part.detach() for part in results), *torch.autograd.grad(total, inputs)


def check(similarities, query_count, key_count, arguments=None, run=jax.jit, replicate=lambda array: array):
    """Compares results and gradients with torch's, and returns the gradients."""
    (queries, *of_queries, row_weights), (keys, *of_keys, column_weights) = example(query_count, key_count)
    masks = of_queries[1], of_keys[1]

    def total(queries, keys, scale, bias):
        items = PairwiseSide(queries, *of_queries), PairwiseSide(keys, *of_keys)
        results = similarities.log_sum_exp_both_ways(*items, logit_scale=scale, logit_bias=bias)
        rows, columns = map(replicate, results)
        counted_rows, counted_columns = jnp.where(masks[0], rows, 0.0), jnp.where(masks[1], columns, 0.0)
        return (counted_rows * row_weights).sum() + (counted_columns * column_weights).sum(), (rows, columns)

    differentiated = run(jax.value_and_grad(total, argnums=(0, 1, 2, 3), has_aux=True))
    (_, results), gradients = differentiated(*(arguments or (queries, keys)), SCALE, BIAS)
    found = *(np.asarray(part)[mask] for part, mask in zip(results, masks, strict=True)), *gradients
    for name, ours, theirs in zip(PARTS, found, wanted(query_count, key_count), strict=True):
        assert relative_error(ours, theirs) < TOLERANCE, name
    return gradients


@pytest.mark.parametrize(
    ("devices", "tile_rows"),
    [
        (1, None), (8, 3), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 3), (8, None))),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, 3), (2, None), (4, 3), (4, None))),
    ],
)  # fmt: skip
def test_values_and_gradients_match_the_dense_matrix_on_any_number_of_devices(devices, tile_rows):
    mesh = make_mesh(jax.devices()[:devices])
    check(ShardedLogits(mesh, tile_rows), 37, 45)


# Of seven queries a device: one at a time, with a remainder of three and of one, as many, and more.
@pytest.mark.parametrize(
    "tile_rows",
    [
        4,
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(7, marks=pytest.mark.slow),
        *(pytest.param(rows, marks=pytest.mark.thorough) for rows in (2, 5, 6, 100)),
    ],
)
def test_results_do_not_depend_on_the_size_of_a_tile(tile_rows):
    check(ShardedLogits(make_mesh(jax.devices()[:2]), tile_rows), 13, 11)


def test_arrays_on_one_device_need_no_mesh():
    check(ShardedLogits(), 37, 45)


@pytest.mark.parametrize("counts", [(40, 48), (37, 45)])
def test_the_batch_is_sharded_over_both_axes_of_an_explicit_mesh(counts):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "fsdp"), axis_types=(AxisType.Explicit,) * 2)
    (queries, *_), (keys, *_) = example(*counts)
    spec = PartitionSpec(("data", "fsdp")) if counts == (40, 48) else PartitionSpec()
    with jax.set_mesh(mesh):
        sharded = [jax.device_put(array, NamedSharding(mesh, spec)) for array in (queries, keys)]
        # Results are replicated before they meet constants.
        replicate = functools.partial(jax.reshard, out_shardings=PartitionSpec())
        gradients = check(ShardedLogits(mesh), *counts, sharded, replicate=replicate)
    assert gradients[0].sharding.is_equivalent_to(sharded[0].sharding, 2)


@pytest.mark.slow
def test_an_auto_mesh_with_fsdp_groups_takes_sharded_arrays_in_and_out_of_jit():
    mesh = make_mesh(fsdp=2)
    (queries, *_), (keys, *_) = example(40, 48)
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    sharded = [jax.device_put(array, sharding) for array in (queries, keys)]
    for run in (jax.jit, lambda function: function):
        check(ShardedLogits(mesh), 40, 48, sharded, run)


def test_rows_without_keys_are_minus_infinity_and_have_no_gradient():
    queries = jnp.eye(3, 8)
    similarities = ShardedLogits(make_mesh(jax.devices()[:2]))

    def total(queries):
        items = PairwiseSide(queries, jnp.array([0, 1, 1]), jnp.array([False, True, True]))
        rows = similarities.log_sum_exp(items, items, logit_scale=jnp.float32(5))
        return jax.nn.softplus(rows).sum(), rows

    gradient, rows = jax.jit(jax.grad(total, has_aux=True))(queries)
    assert (np.asarray(rows) == -np.inf).all()
    assert (np.asarray(gradient) == 0).all()


def test_a_masked_item_has_no_effect_even_if_it_is_nan():
    (queries, *_), (keys, *_) = example(13, 11)
    mask = np.arange(11) != 4
    broken = keys.copy()
    broken[4] = np.nan
    similarities = ShardedLogits(make_mesh(jax.devices()[:2]), 3)

    def total(keys):
        items = PairwiseSide(jnp.asarray(queries)), PairwiseSide(keys, None, jnp.asarray(mask))
        return similarities.log_sum_exp(*items, logit_scale=jnp.float32(9)).sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(broken)
    expected = logsumexp(9 * queries.astype(float) @ np.delete(keys, 4, 0).astype(float).T, axis=1).sum()
    assert abs(value / expected - 1) < TOLERANCE
    assert (np.asarray(gradient)[4] == 0).all() and np.isfinite(np.asarray(gradient)).all()


def test_logits_of_a_hundred_neither_overflow_nor_underflow():
    """exp(100) overflows float32 and exp(-100) vanishes; rows of both kinds have finite, correct results."""
    queries, keys = jnp.array([[1.0, 0.0], [-1.0, 0.0]]), jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    similarities = ShardedLogits(make_mesh(jax.devices()[:2]), 1)
    rows, columns = similarities.log_sum_exp_both_ways(
        PairwiseSide(queries), PairwiseSide(keys), logit_scale=jnp.float32(100)
    )
    np.testing.assert_allclose(rows, [100 + np.log(3), -100 + np.log(3)], rtol=TOLERANCE)
    np.testing.assert_allclose(columns, [100] * 3, rtol=TOLERANCE)


def test_tiles_fill_the_cache_of_a_cpu():
    logits = ShardedLogits(make_mesh())
    assert logits.tile_rows(8 * 1024, 8 * 1024) * 8 * 1024 * 4 == 4 * 2**20
    assert logits.tile_rows(64, 8) == 8 and logits.tile_rows(64, 2**30) == 1


def test_invalid_settings_are_refused():
    refused("block_rows: found 0; wanted at least 1", ShardedLogits, block_rows=0)
    items = PairwiseSide(jnp.eye(2))
    with pytest.raises(ValueError, match="both or neither"):
        ShardedLogits().log_sum_exp(items, items._replace(ids=jnp.arange(2)), logit_scale=jnp.float32(1))


@pytest.mark.parametrize(
    ("axis_type", "width"),
    [
        (AxisType.Auto, 16), (AxisType.Explicit, 3),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((AxisType.Auto, 3), (AxisType.Explicit, 16))),
    ],
)  # fmt: skip
def test_sums_over_other_ids_match_a_loop(axis_type, width):
    """13 items and 3 or 16 columns on 8 devices; groups of one to four equal ids, and masked items."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "fsdp"), axis_types=(axis_type,) * 2)
    random = np.random.default_rng(0)
    embeddings = random.standard_normal((13, width)).astype(np.float32)
    ids, mask = np.array([7, 7, 7, 7, 1, 1, -5, 2, 3, 4, 2, 0, 0], np.int32), random.random(13) < 0.8
    embeddings[~mask] = np.nan

    def compute(embeddings):
        return ShardedLogits(mesh).sum_of_other_ids(PairwiseSide(embeddings, ids, mask))

    with jax.set_mesh(mesh):
        sums, counts = jax.jit(compute)(embeddings)
        gradient = jax.jit(jax.grad(lambda embeddings: (compute(embeddings)[0] ** 2).sum()))(embeddings)
    others = (ids[:, None] != ids) & mask
    right = others @ np.where(mask[:, None], embeddings, 0).astype(np.float64)
    np.testing.assert_allclose(sums, right, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(counts, others.sum(1))
    np.testing.assert_allclose(gradient, 2 * others.T @ right, rtol=0, atol=5e-5)
