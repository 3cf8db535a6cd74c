"""Blockwise reduction of logits: one device's queries against one block of keys, a tile of logits at a time.

A tile is `rows x keys` logits `z = logit_scale * q . k + logit_bias`, in float32 from products at the highest
precision; logits exist nowhere else. A reduction turns each row (and each column) of logits into one number:

    LogSumExp    log sum_j exp(z_j)        derivative exp(z_j - result)
    SoftplusSum  sum_j log(1 + exp(z_j))   derivative 1 / (1 + exp(-z_j))

The online log-sum-exp keeps the highest logit so far and the sum of exponentials relative to it (Milakov and
Gimelshein, arXiv 1805.02867). The forward sweep takes one product a tile. The backward sweep computes the tile again
and takes two more:

    W = dL/dz,    dL/dq = logit_scale * W k,    dL/dk = logit_scale * W^T q,
    dL/dlogit_scale = sum q . (W k),            dL/dlogit_bias = sum W

Gradients of embeddings are accumulated without the factor `logit_scale`, so that the third line needs no product.

Two strategies let the queries on one device meet the keys of all devices:

all_gather   Every device gathers all keys once and sweeps over them; what the devices know of each column is merged on
             the device that owns it. The backward pass gathers again, so that nothing gathered is kept in between, and
             scatters the sum of the keys' gradients to their owners. Fewer and larger products; all keys must fit.
ring         At each of `devices` steps, a device sweeps its queries over the block of keys that it holds and passes the
             block on; after the last step every block is back. In the forward pass the block carries the state of its
             columns, in the backward pass their results and the gradient of its keys. A device holds a constant number
             of blocks, however many devices there are (as ring attention, Liu et al., arXiv 2310.01889).
"""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

State = tuple[Array, ...]


class Items(NamedTuple):
    """Queries or keys that meet in logits.

    Attributes:
        embeddings: unit vectors, one a row.
        ids: what each item shows; a query and a key of the same id are left out. None where every pair counts.
        mask: False for items that count in no pair, whatever their embedding holds (even NaN). None: all count.
    """

    embeddings: Float[Array, "*tiles items width"]
    ids: Int[Array, "*tiles items"] | None = None
    mask: Bool[Array, "*tiles items"] | None = None


class Scale(NamedTuple):
    """`logit = logit_scale * cosine + logit_bias`."""

    logit_scale: Float[Array, ""]
    logit_bias: Float[Array, ""] | None


class Result(NamedTuple):
    """The result of the forward sweep for each row (or column), and the gradient of the loss by it."""

    value: Float[Array, "*tiles items"]
    gradient: Float[Array, "*tiles items"]


class Gradients(NamedTuple):
    """Sums so far of the backward sweep, without the factor `logit_scale`."""

    queries: Float[Array, "tiles rows width"]
    keys: Float[Array, "keys width"]
    logit_bias: Float[Array, ""] | None


class Reduction(abc.ABC):
    """Reduces rows or columns of logits, in any number of pieces on any number of devices, to one number each.

    Logits of pairs that do not count are -inf. A row without any pair that counts reduces to -inf, or to 0.
    """

    @staticmethod
    @abc.abstractmethod
    def start(shape: tuple[int, ...]) -> State:
        """The state before any logit, for items of this shape."""

    @staticmethod
    @abc.abstractmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        """The state after the logits of one tile, reduced over `axis`."""

    @staticmethod
    @abc.abstractmethod
    def merge(states: State) -> State:
        """One state from several, stacked along the first axis."""

    @staticmethod
    @abc.abstractmethod
    def finish(state: State) -> Array:
        """The result."""

    @staticmethod
    @abc.abstractmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        """d result / d logit; 0 where the logit is -inf."""


class LogSumExp(Reduction):
    """log sum_j exp(z_j)."""

    @staticmethod
    def start(shape: tuple[int, ...]) -> State:
        return jnp.full(shape, -jnp.inf, jnp.float32), jnp.zeros(shape, jnp.float32)

    @staticmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        highest, total = state
        raised = jnp.maximum(highest, logits.max(axis))
        shift = _finite(raised)
        tile_total = jnp.exp(logits - jnp.expand_dims(shift, axis)).sum(axis)
        return raised, total * jnp.exp(highest - shift) + tile_total

    @staticmethod
    def merge(states: State) -> State:
        highest, total = states
        raised = highest.max(0)
        return raised, (total * jnp.exp(highest - _finite(raised)[None])).sum(0)

    @staticmethod
    def finish(state: State) -> Array:
        highest, total = state
        return highest + jnp.log(jnp.where(total > 0, total, 1.0))

    @staticmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        return jnp.exp(logits - _finite(result))


class SoftplusSum(Reduction):
    """sum_j log(1 + exp(z_j)), the negatives of the pairwise sigmoid loss."""

    @staticmethod
    def start(shape: tuple[int, ...]) -> State:
        return (jnp.zeros(shape, jnp.float32),)

    @staticmethod
    def add(state: State, logits: Float[Array, "rows columns"], axis: int) -> State:
        return (state[0] + jax.nn.softplus(logits).sum(axis),)

    @staticmethod
    def merge(states: State) -> State:
        return (states[0].sum(0),)

    @staticmethod
    def finish(state: State) -> Array:
        return state[0]

    @staticmethod
    def derivative(logits: Float[Array, "rows columns"], result: Float[Array, "_ _"]) -> Float[Array, "rows columns"]:
        return jax.nn.sigmoid(logits)


def _finite(highest: Array) -> Array:
    """0 in place of -inf: subtracting it from logits that are all -inf then leaves -inf, not NaN."""
    return jnp.where(highest == -jnp.inf, 0.0, highest)


def into_tiles(items: PyTree[Array], tile_rows: int) -> PyTree[Array]:
    """Splits the first axis of every array into (tiles, tile_rows), the last tile filled up with zeros (False)."""

    def split(array: Array) -> Array:
        missing = -array.shape[0] % tile_rows
        padded = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1)) if missing else array
        return padded.reshape(-1, tile_rows, *array.shape[1:])

    return jax.tree.map(split, items)


def out_of_tiles(tiled: Array, items: int) -> Array:
    """The inverse of `into_tiles`, for one array."""
    return tiled.reshape(-1, *tiled.shape[2:])[:items]


def forward_sweep(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, rows: State, columns: State | None
) -> tuple[State, State | None]:
    """Adds the logits of all tiles to the state of rows (tiled as the queries) and, where there is one, of columns."""

    def tile(index: Array, states: tuple[State, State | None]) -> tuple[State, State | None]:
        rows, columns = states
        logits = _logits(_take(queries, index), keys, scale)
        rows = _put(rows, index, reduction.add(_take(rows, index), logits, axis=1))
        return rows, None if columns is None else reduction.add(columns, logits, axis=0)

    return jax.lax.fori_loop(0, queries.embeddings.shape[0], tile, (rows, columns))


def backward_sweep(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    gradients: Gradients,
) -> Gradients:
    """Adds what all tiles contribute to the gradients."""

    def tile(index: Array, sums: Gradients) -> Gradients:
        query, row = _take(queries, index), _take(rows, index)
        logits = _logits(query, keys, scale)
        weights = reduction.derivative(logits, row.value[:, None]) * row.gradient[:, None]
        if columns is not None:
            weights += reduction.derivative(logits, columns.value[None, :]) * columns.gradient[None, :]
        return Gradients(
            _put(sums.queries, index, sums.queries[index] + _product("rk,kd->rd", weights, keys.embeddings)),
            sums.keys + _product("rk,rd->kd", weights, query.embeddings),
            None if sums.logit_bias is None else sums.logit_bias + weights.sum(),
        )

    return jax.lax.fori_loop(0, queries.embeddings.shape[0], tile, gradients)


def _logits(queries: Items, keys: Items, scale: Scale) -> Float[Array, "rows keys"]:
    logits = scale.logit_scale * _product("rd,kd->rk", queries.embeddings, keys.embeddings)
    if scale.logit_bias is not None:
        logits += scale.logit_bias
    counted = queries.mask[:, None] & keys.mask[None, :]
    if queries.ids is not None:
        counted &= queries.ids[:, None] != keys.ids[None, :]
    return jnp.where(counted, logits, -jnp.inf)


def _product(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _take(tiled: PyTree[Array], index: Array) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), tiled)


def _put(tiled: PyTree[Array], index: Array, tile: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda array, part: jax.lax.dynamic_update_index_in_dim(array, part, index, 0), tiled, tile)


def all_gather_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. In `jax.shard_map`, or with no `axes`."""
    keys = _gather(keys, axes)
    rows = _varying(reduction.start(queries.mask.shape), axes)
    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None
    rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
    if columns is not None:
        columns = reduction.finish(_merge_at_owner(reduction, columns, axes))
    return reduction.finish(rows), columns


def all_gather_backward(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    axes: tuple[str, ...],
) -> Gradients:
    """The gradients of this device's queries and keys. In `jax.shard_map`, or with no `axes`."""
    keys, columns = _gather((keys, columns), axes)
    start = _no_gradients(queries, keys, scale, axes)
    sums = backward_sweep(reduction, queries, keys, scale, rows, columns, start)
    if axes:
        sums = sums._replace(keys=jax.lax.psum_scatter(sums.keys, axes, tiled=True))
    return sums


def ring_forward(
    reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...], with_columns: bool
) -> tuple[Array, Array | None]:
    """Results of the rows (tiled as `queries`) and of this device's columns. Called inside `jax.shard_map`."""
    rows = _varying(reduction.start(queries.mask.shape), axes)
    columns = _varying(reduction.start(keys.mask.shape), axes) if with_columns else None

    def step(_: Array, carry: tuple) -> tuple:
        rows, keys, columns = carry
        rows, columns = forward_sweep(reduction, queries, keys, scale, rows, columns)
        return rows, *_pass_on((keys, columns), axes)

    rows, _, columns = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (rows, keys, columns))
    return reduction.finish(rows), None if columns is None else reduction.finish(columns)


def ring_backward(
    reduction: type[Reduction],
    queries: Items,
    keys: Items,
    scale: Scale,
    rows: Result,
    columns: Result | None,
    axes: tuple[str, ...],
) -> Gradients:
    """The gradients of this device's queries and keys. Called inside `jax.shard_map`."""
    start = _no_gradients(queries, keys, scale, axes)

    def step(_: Array, carry: tuple) -> tuple:
        keys, columns, sums = carry
        sums = backward_sweep(reduction, queries, keys, scale, rows, columns, sums)
        keys, columns, key_sums = _pass_on((keys, columns, sums.keys), axes)
        return keys, columns, sums._replace(keys=key_sums)

    *_, sums = jax.lax.fori_loop(0, jax.lax.axis_size(axes), step, (keys, columns, start))
    return sums


def _no_gradients(queries: Items, keys: Items, scale: Scale, axes: tuple[str, ...]) -> Gradients:
    """Sums before the first tile."""
    bias = None if scale.logit_bias is None else jnp.zeros((), jnp.float32)
    shapes = queries.embeddings.shape, keys.embeddings.shape
    return _varying(Gradients(*(jnp.zeros(shape, jnp.float32) for shape in shapes), bias), axes)


def _varying(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    """Marks constants as different on each device, as the carry of a loop over device-local values has to be."""
    return jax.tree.map(lambda array: jax.lax.pcast(array, axes, to="varying"), tree) if axes else tree


def _pass_on(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    devices = jax.lax.axis_size(axes)
    to_next = [(device, (device + 1) % devices) for device in range(devices)]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, axes, to_next), tree)


def _gather(tree: PyTree[Array], axes: tuple[str, ...]) -> PyTree[Array]:
    return jax.tree.map(lambda array: jax.lax.all_gather(array, axes, tiled=True), tree) if axes else tree


def _merge_at_owner(reduction: type[Reduction], columns: State, axes: tuple[str, ...]) -> State:
    """Each device sends every owner the state of its columns; the owner merges what it receives."""
    if not axes:
        return columns
    devices = jax.lax.axis_size(axes)
    by_owner = jax.tree.map(lambda array: array.reshape(devices, -1), columns)
    return reduction.merge(jax.tree.map(lambda array: jax.lax.all_to_all(array, axes, 0, 0), by_owner))
