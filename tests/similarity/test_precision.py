"""Similarities are products of float32 at the highest precision: the programs of ranks and losses say so.

On CPU every product is one; an accelerator rounds factors to fewer bits unless a product asks for all of them.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from rococo_jax.losses import (
    Embeddings,
    FieldEmbeddings,
    semantic_contrastive,
    sigmoid_contrastive,
    softmax_contrastive,
)
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits
from rococo_jax.similarity.counting import GalleryTile, Queries, compiled_step, no_counts
from rococo_jax.similarity.differences import compiled_count
from tests.support.programs import QUICK


def products(lowered: jax.stages.Lowered) -> list[str]:
    """The lines of the compiled program that multiply matrices of float32."""
    text = lowered.compile(QUICK).as_text()
    found = [line for line in text.splitlines() if re.search(r"= f32\[[\d,]*\]\S* dot\(", line)]
    assert found
    return found


def asks_for_all_bits(line: str) -> bool:
    return "operand_precision={highest,highest}" in line


def test_ranks_and_differences_use_products_at_the_highest_precision():
    mesh = make_mesh(jax.devices()[:1])
    vectors, numbers = np.zeros((1, 128, 8), np.float32), np.zeros((1, 128), np.int32)
    queries = Queries(vectors, numbers)
    tile = GalleryTile(vectors[0], numbers[0], numbers[0], np.ones(128, bool), np.bool_(False))
    ranks = compiled_step(mesh).lower(no_counts(1, 128), queries, tile, np.zeros(1, np.int32))
    differences = compiled_count(mesh).lower(queries, vectors[0], numbers, np.concatenate([numbers, numbers]))
    assert all(map(asks_for_all_bits, [*products(ranks), *products(differences)]))


def test_losses_and_their_gradients_use_products_at_the_highest_precision():
    logits = ShardedLogits(make_mesh(jax.devices()[:2]))
    scale, bias = jnp.float32(10.0), jnp.float32(-5.0)

    def total(images, texts, altered):
        fields = {"altered": FieldEmbeddings(altered, jnp.ones((4, 2), bool))}
        pairs = Embeddings(images, texts, jnp.arange(4), scale, bias, fields)
        sc, _ = semantic_contrastive(pairs, ConfigDict({"scope": "global"}), logits)
        return softmax_contrastive(pairs, logits) + sigmoid_contrastive(pairs, logits) + sc

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 8), (4, 8), (4, 2, 8))]
    assert all(map(asks_for_all_bits, products(jax.jit(jax.grad(total, (0, 1, 2))).lower(*shapes))))
