"""Memory and work of the ring, read from compiled programs: 1,024 pairs a device, width 512, float32, all gradients.

SC and `blind` take one altered caption a pair.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rococo_jax.losses import blind_preference, semantic_contrastive, softmax_contrastive
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits

PAIRS = 1024


def contrastive(images, texts, altered, scale, ids, similarities):
    return softmax_contrastive(images, texts, logit_scale=scale, ids=ids, similarities=similarities)


def sc(images, texts, altered, scale, ids, similarities):
    return semantic_contrastive(images, texts, altered, logit_scale=scale, similarities=similarities)


def blind(images, texts, altered, scale, ids, similarities):
    return blind_preference(images, texts, altered, logit_scale=scale, ids=ids, similarities=similarities)


def compiled(loss, devices: int):
    """The memory in MiB beside operands and results, and the program."""
    mesh = make_mesh(jax.devices()[:devices], fsdp=2)

    def argument(*shape, dtype=jnp.float32):
        spec = PartitionSpec(mesh.axis_names) if shape else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    pairs = devices * PAIRS
    arguments = [argument(pairs, 512), argument(pairs, 512), argument(pairs, 1, 512), argument()]
    taken = (0, 1, 3) if loss is contrastive else (0, 1, 2, 3)
    gradients = jax.value_and_grad(lambda *inputs: loss(*inputs, ShardedLogits(mesh, "ring")), taken)
    program = jax.jit(gradients).lower(*arguments, argument(pairs, dtype=jnp.int32)).compile()
    return program.memory_analysis().temp_size_in_bytes / 2**20, program.as_text()


@pytest.mark.parametrize("loss", [contrastive, sc, blind])
def test_the_ring_has_little_memory_whatever_the_devices_and_gathers_nothing(loss):
    """24 MiB: keys and their gradients twice over (8), gradients of queries (2), two tiles of logits (8), and slack."""
    few, many = compiled(loss, 4), compiled(loss, 8)
    assert many[0] <= few[0] <= 24
    for _, program in (few, many):
        # One forward and three backward: both directions of the loss come from the same tile.
        assert len(re.findall(r" (?:dot|custom-call)\(", program)) == 4
        assert " all-gather" not in program and " collective-permute" in program
