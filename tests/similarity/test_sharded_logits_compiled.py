"""Memory and work of the losses in compiled programs: 1,024 pairs per device, width 512, float32, all gradients.

SC and `blind` have one altered caption per pair.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rococo_jax.losses import (
    Embeddings,
    FieldEmbeddings,
    blind_preference,
    semantic_contrastive,
    softmax_contrastive,
)
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits

PAIRS = 1024


def contrastive(pairs, logits):
    return softmax_contrastive(pairs, logits)


def sc(pairs, logits):
    return semantic_contrastive(pairs, ConfigDict({"scope": "global"}), logits)[0]


def blind(pairs, logits):
    return blind_preference(pairs, ConfigDict(), logits)[0]


def compiled(loss, devices: int):
    """The memory in MiB beside operands and results, and the program."""
    mesh = make_mesh(jax.devices()[:devices], fsdp=2)

    def argument(*shape, dtype=jnp.float32):
        spec = PartitionSpec(mesh.axis_names) if shape else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    pairs = devices * PAIRS
    arguments = [argument(pairs, 512), argument(pairs, 512), argument(pairs, 1, 512), argument()]
    taken = (0, 1, 3) if loss is contrastive else (0, 1, 2, 3)

    def value(images, texts, altered, scale, ids):
        fields = {"altered": FieldEmbeddings(altered, jnp.ones((pairs, 1), bool))}
        return loss(Embeddings(images, texts, ids, scale, fields=fields), ShardedLogits(mesh))

    gradients = jax.value_and_grad(value, taken)
    program = jax.jit(gradients).lower(*arguments, argument(pairs, dtype=jnp.int32)).compile()
    return program.memory_analysis().temp_size_in_bytes / 2**20, program.as_text()


@pytest.mark.parametrize("loss", [pytest.param(contrastive, marks=pytest.mark.thorough), sc])
def test_a_loss_takes_four_products_and_stores_only_gathered_keys_and_tiles(loss):
    """For 8,192 pairs: keys and their gradient (32 MiB), the results of the columns before each tile, two tiles (8)."""
    few, many = compiled(loss, 4), compiled(loss, 8)
    assert few[0] <= 32 and many[0] <= 64
    for _, program in (few, many):
        # One forward and three backward: both directions of the loss come from the same tile.
        assert len(re.findall(r" (?:dot|custom-call)\(", program)) == 4
        assert " collective-permute" not in program


@pytest.mark.slow
def test_the_blind_loss_takes_no_products_and_gathers_nothing_but_ids():
    """Use sums of embeddings instead of pairwise logits, and gather nothing but ids."""
    few, many = compiled(blind, 4), compiled(blind, 8)
    for (memory, program), devices in ((few, 4), (many, 8)):
        assert memory <= 16, "images (2 MiB) in rows and in columns, their sums, and the gradients of both"
        assert not re.findall(r" (?:dot|custom-call|collective-permute)\(", program)
        gathered = re.findall(r" = (\S+) all-gather\(", program)
        # One array of ids; masks are constants of the program.
        assert gathered and all(re.match(rf"(?:s32|pred|f32)\[{devices * PAIRS}\]", shape) for shape in gathered)
