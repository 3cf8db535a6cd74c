"""Log-sum-exp over the rows and columns of `logit_scale * Q K^T`, sharded over a mesh and never held whole.

    row_i = log sum_{j : pair (i, j) counts} exp(logit_scale * q_i . k_j + logit_bias)
    column_j = the same sum over i

A pair counts where the masks of both items say so and, if ids are given, where the two ids differ: the sums hold
*negatives* only. The positive of a query is a product of two rows that lie on the same device, and
`rococo_jax.losses` adds it there. Leaving it out of the sum also keeps small losses exact:
`log(1 + exp(row_i - positive_i))` loses no digits where the model is right.

Two routes give the same values and gradients: gather all keys once, or pass them around a ring.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from rococo_jax.errors import InputError
from rococo_jax.similarity.blockwise import Items, Scale
from rococo_jax.similarity.reductions import LogSumExp, Reduction, SoftplusSum
from rococo_jax.similarity.sharded_sums import Plan, Sums, sums

# Beyond this a device passes keys around instead of holding them all: a block of logits, or the keys with gradient.
GATHER_BYTES = 256 * 2**20
# A tile of logits: near the cache on CPU; elsewhere its product takes longer than its launch. Small beside a tower.
_TILE_BYTES = {"cpu": 4 * 2**20}
_TILE_BYTES_OF_ACCELERATORS = 32 * 2**20


@dataclass(frozen=True)
class ShardedLogits:
    """How similarities of sharded embeddings are summed: where they lie, which way they meet, in what portions.

    None of it changes a result beyond float32 rounding. The batch is sharded over all axes of the mesh, Auto or
    Explicit; batches that do not divide by the number of devices are filled up and masked. Inside or outside of
    `jax.jit`.

    Attributes:
        mesh: the devices; None for arrays on one device.
        route: "gather" holds all keys on every device, "ring" one block of them; "auto" gathers up to 256 MiB a device.
        tile_rows: rows of logits computed at once; by default as many as fill 4 MiB on CPU and 32 MiB elsewhere.

    Raises:
        InputError: an unknown route, or a tile without rows.
    """

    mesh: Mesh | None = None
    route: str = "auto"
    tile_rows: int | None = None

    def __post_init__(self):
        if self.route not in ("auto", "gather", "ring"):
            raise InputError("similarities", "route", repr(self.route), "'auto', 'gather' or 'ring'")
        if self.tile_rows is not None and self.tile_rows < 1:
            raise InputError("similarities", "tile_rows", self.tile_rows, "at least 1")

    def log_sum_exp(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, "queries"]:
        """`log sum_j exp(logit_scale * q_i . k_j + logit_bias)` over the keys that count for query i.

        Args:
            queries, keys: sharded over the whole mesh along the first axis; used in float32. Ids: both or neither.
            logit_scale: `tau` itself, not its logarithm.
            logit_bias: added to every logit.

        Returns:
            One number a query; -inf where no key counts, and for queries that do not count. Differentiable in
            embeddings, logit_scale and logit_bias.
        """
        return self._sums(LogSumExp, queries, keys, Scale(logit_scale, logit_bias), with_columns=False)[0]

    def log_sum_exp_both_ways(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> tuple[Float[Array, "queries"], Float[Array, "keys"]]:
        """`log_sum_exp` of every row and of every column, from one pass over the logits. Arguments as there."""
        return self._sums(LogSumExp, queries, keys, Scale(logit_scale, logit_bias), with_columns=True)

    def softplus_sum(
        self,
        queries: Items,
        keys: Items,
        *,
        logit_scale: Float[Array, ""],
        logit_bias: Float[Array, ""] | None = None,
    ) -> Float[Array, "queries"]:
        """`sum_j log(1 + exp(logit_scale * q_i . k_j + logit_bias))`; 0 where no key counts. Arguments as above."""
        return self._sums(SoftplusSum, queries, keys, Scale(logit_scale, logit_bias), with_columns=False)[0]

    def plan(self, reduction: type[Reduction], queries: int, keys: int, width: int, *, with_columns: bool) -> Plan:
        """The route and the tiles for so many queries and keys, all devices together."""
        devices = 1 if self.mesh is None else self.mesh.size
        queries = -(-queries // devices)
        held = 4 * keys * max(queries, 2 * width)
        gathers = self.mesh is None or self.route == "gather" or (self.route == "auto" and held <= GATHER_BYTES)
        tile_keys = keys if gathers else -(-keys // devices)
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        tile_bytes = _TILE_BYTES.get(platform, _TILE_BYTES_OF_ACCELERATORS)
        tile_rows = self.tile_rows or max(1, tile_bytes // (4 * tile_keys))
        return Plan(reduction, self.mesh, gathers, min(tile_rows, queries), with_columns)

    def _sums(
        self, reduction: type[Reduction], queries: Items, keys: Items, scale: Scale, *, with_columns: bool
    ) -> Sums:
        if (queries.ids is None) != (keys.ids is None):
            raise ValueError("ids of queries and keys: found one of them; wanted both or neither")
        (query_count, width), key_count = queries.embeddings.shape, len(keys.embeddings)
        plan = self.plan(reduction, query_count, key_count, width, with_columns=with_columns)
        scale = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), scale)
        rows, columns = sums(plan, self._placed(queries), self._placed(keys), scale)
        return self._first(rows, query_count), self._first(columns, key_count) if with_columns else None

    def _placed(self, items: Items) -> Items:
        """In float32, zero where masked, filled up to a multiple of the devices, and sharded over them."""
        embeddings = jnp.asarray(items.embeddings, jnp.float32)
        ids = None if items.ids is None else jnp.asarray(items.ids)
        mask = jnp.ones(len(embeddings), bool) if items.mask is None else jnp.asarray(items.mask)
        filled = jax.tree.map(self._filled, Items(embeddings, ids, mask))
        if items.mask is None:
            return filled
        return filled._replace(embeddings=jnp.where(filled.mask[:, None], filled.embeddings, 0.0))

    def _filled(self, array: Array) -> Array:
        missing = 0 if self.mesh is None else -len(array) % self.mesh.size
        if missing:
            array = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return self._sharded(array, PartitionSpec(self.mesh.axis_names)) if self.mesh is not None else array

    def _first(self, results: Float[Array, "filled"], count: int) -> Float[Array, "items"]:
        """Results without those of items that were filled in."""
        return results if len(results) == count else self._sharded(results, PartitionSpec())[:count]

    def _sharded(self, array: Array, spec: PartitionSpec) -> Array:
        sharding = NamedSharding(self.mesh, spec)
        explicit = AxisType.Explicit in self.mesh.axis_types
        return jax.reshard(array, sharding) if explicit else jax.lax.with_sharding_constraint(array, sharding)


ON_ONE_DEVICE = ShardedLogits()
