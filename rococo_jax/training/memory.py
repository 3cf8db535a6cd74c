"""What a step takes of a device's memory: estimated from shapes, and checked once it is compiled.

    parameters, moments, average, gradients     by their shardings; the gradients as the parameters
    batches                                     pixels, ids and fields of the device's pairs, twice: the next batch is
                                                on its way while a step runs
    activations                                 what the backward pass keeps of a micro-batch

Activations of a pair are counted from the residuals of the towers' backward pass, before the compiler fuses anything;
logits and collectives are left out (`similarity` bounds them).
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rococo_jax.checkpoints.parameters import parameter_shapes
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.errors import InputError
from rococo_jax.losses.terms import active_fields
from rococo_jax.models import ModelSpec
from rococo_jax.runtime import make_mesh
from rococo_jax.training.batch import Batch
from rococo_jax.training.freezing import split_parameters
from rococo_jax.training.grad_cache import check_parts
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import batch_shapes, make_embed
from rococo_jax.training.text_padding import text_tokens
from rococo_jax.training.throughput import step_bytes

# The compiler needs some room beside what is counted.
_USABLE = 0.92


class Estimate:
    """Bytes that a step takes of a device, by the number of micro-batches.

    Args:
        config, spec, preprocessing: as for `make_step`.
        text_length: tokens that every text is padded to.
        state, frozen: what the step reads, with shardings; shapes will do.
        mesh: the devices.
    """

    def __init__(
        self,
        config: ConfigDict,
        spec: ModelSpec,
        preprocessing: Preprocessing | None,
        text_length: int,
        state: TrainState,
        frozen: Mapping[str, Any],
        mesh: Mesh,
    ):
        self.config, self.spec, self.preprocessing, self.text_length = config, spec, preprocessing, text_length
        self.rows = config.batch_size // mesh.size
        self.state = _bytes_of_device((state, frozen)) + _bytes_of_device(state.parameters)
        self.batch = _bytes(batch_shapes(config, spec, text_length, rows=self.rows))

    @functools.cached_property
    def of_pair(self) -> int:
        """Bytes that the backward pass keeps of one pair, all its texts and images together."""
        config, spec = self.config, self.spec
        mesh = make_mesh(jax.local_devices()[:1])
        shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
        trained, frozen = jax.eval_shape(lambda every: split_parameters(every, spec, config.train), shapes)
        embed, fields = make_embed(config, spec, self.preprocessing, mesh), active_fields(config.losses)

        def residuals(trained: Any, frozen: Any, batch: Any) -> Any:
            return jax.vjp(lambda trained: embed(trained, frozen, batch.for_towers(fields), fields), trained)[1]

        def kept(rows: int) -> int:
            batch = batch_shapes(config, spec, self.text_length, rows=rows, for_towers=True)
            return _bytes(jax.eval_shape(residuals, trained, frozen, batch))

        return kept(2) - kept(1)

    def __call__(self, parts: int) -> int:
        """Bytes with so many micro-batches."""
        kept = min(parts, self.config.kept_micro_batches)
        return self.state + 2 * self.batch + kept * (self.rows // parts) * self.of_pair


def memory_of(device: jax.Device) -> int | None:
    """Bytes that programs may use of a device, None where it does not say (CPUs)."""
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit")


def compile_within_memory(
    lowered: jax.stages.Lowered, batch: Batch, config: ConfigDict, mesh: Mesh, bytes_in_parts: Callable[[int], int]
) -> tuple[jax.stages.Compiled, str]:
    """The compiled step, and a line that says what a device holds and how many micro-batches fit.

    Args:
        batch: shapes, of which a device holds the next one as well.

    Raises:
        InputError: the step takes more memory than a device has.
    """
    limit = memory_of(mesh.local_devices[0])
    try:
        compiled = lowered.compile()
        taken = step_bytes(compiled)
        taken = None if taken is None else taken + _bytes_of_device(batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        compiled, taken = None, None
    told, fits = _advice(config, mesh.size, limit, bytes_in_parts, taken)
    if compiled is None or (limit is not None and taken is not None and taken > limit):
        texts = f" of texts of {text_tokens(batch)} tokens" if text_tokens(batch) else ""
        found = f"{config.micro_batches}, with which a step{texts} takes {_gigabytes(taken)} of a device's "
        found += _gigabytes(limit)
        wanted = f"{fits}, by estimate" if fits else "more devices, another fsdp, remat 'full' or a smaller batch_size"
        raise InputError("config", "config.micro_batches", found, wanted)
    return compiled, told


def _advice(
    config: ConfigDict, devices: int, limit: int | None, bytes_in_parts: Callable[[int], int], taken: int | None
) -> tuple[str, int | None]:
    """The line before the first step, and the smallest number of micro-batches that fits."""
    rows = config.batch_size // devices
    possible = [parts for parts in range(1, rows + 1) if check_parts(config.batch_size, parts, devices)]
    fits = None
    if limit is not None:
        # Where the compiler has counted, the estimate is moved to agree with it.
        excess = 0 if taken is None else taken - bytes_in_parts(config.micro_batches)
        room = _USABLE * limit - excess
        fits = next((parts for parts in possible if bytes_in_parts(parts) <= room), None)
    told = f"a step takes {_gigabytes(taken)} of a device"
    if limit is not None:
        told += f", which has {_gigabytes(limit)}; micro_batches={fits} is the least that fits" if fits else ""
    return f"{told} (micro_batches={config.micro_batches}, remat={config.remat})", fits


def _gigabytes(size: int | None) -> str:
    return "an unknown part" if size is None else f"{size / 1e9:.2f} GB"


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _bytes_of_device(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
