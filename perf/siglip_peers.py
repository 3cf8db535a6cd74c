"""Training steps of a SigLIP B/16 by other projects, lowered for `compiled.py`."""

import argparse
import importlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rococo_jax.runtime import AXES

TOKENS, VOCABULARY = 64, 32_000


def rows_on(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(AXES)))


def shapes_on(tree: Any, mesh: Mesh, partition: PartitionSpec) -> Any:
    sharding = NamedSharding(mesh, partition)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def big_vision_step(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the update of big_vision's SigLIP trainer with its models.

    The update is nested in the trainer's `main`, so its loss is written out here; `optax.adamw` stands for its
    optimizer. Its text tower has no `dtype_mm` and computes in float32 arrays.
    """
    sys.path.insert(0, _unpack(arguments.source, "big_vision/models"))
    for name in ("big_vision.utils", "big_vision.models.common"):  # readers of checkpoints, which need TensorFlow
        sys.modules[name] = types.ModuleType(name)
    from big_vision.models.proj.image_text import two_towers

    sys.modules["big_vision"].utils = sys.modules["big_vision.utils"]
    policies = {"full": "nothing_saveable", "dots": "dots_with_no_batch_dims_saveable"}
    settings = {"scan": arguments.remat != "none", "depth": arguments.layers}
    settings["remat_policy"] = policies.get(arguments.remat, "")
    model = two_towers.Model(
        image={"variant": "B/16", "pool_type": "map", "dtype_mm": "bfloat16", **settings},
        text={"variant": "B", "vocab_size": VOCABULARY, **settings},
        out_dim=(None, 768), temperature_init=10.0, bias_init=-10.0,
    )  # fmt: skip

    def embed(parameters, images, labels):
        image, text, extras = model.apply({"params": parameters}, images, labels, train=True)
        return image, text, extras["t"], extras["b"]

    def init():
        batch = jnp.zeros((1, arguments.side, arguments.side, 3)), jnp.zeros((1, TOKENS), jnp.int32)
        return model.init(jax.random.key(0), *batch)["params"]

    return _sigmoid_update(embed, jax.eval_shape(init), arguments, mesh)


def jimm_step(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower an update of jimm's SigLIP; jimm has neither a trainer nor a loop over layers nor rematerialisation."""
    sys.path.insert(0, str(Path(_unpack(arguments.source, "src/jimm")) / "src"))
    # Its reader of checkpoints needs huggingface_hub and its `models` all of its models.
    siglip = importlib.import_module("jimm.models.siglip")

    def init():
        return siglip.SigLIP(
            arguments.side, arguments.layers, 768, 16, TOKENS, VOCABULARY, 768, 12, arguments.layers, nnx.Rngs(0),
            dtype=jnp.bfloat16,
        )  # fmt: skip

    graph, parameters, rest = nnx.split(nnx.eval_shape(init), nnx.Param, ...)

    def embed(parameters, images, labels):
        rest_values = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rest)
        model = nnx.merge(graph, parameters, rest_values)
        model.eval()
        image, text = model.encode_image(images), model.encode_text(labels)
        image, text = (each / jnp.linalg.norm(each, axis=-1, keepdims=True) for each in (image, text))
        return image, text, jnp.exp(model.logit_scale[...]), model.logit_bias[...]

    return _sigmoid_update(embed, parameters, arguments, mesh)


def _unpack(source: str, folder: str) -> str:
    """Write a folder of a git directory's newest commit to a temporary one, and return that."""
    target = tempfile.mkdtemp()
    archive = subprocess.run(["git", "-C", source, "archive", "HEAD", folder], check=True, capture_output=True)
    subprocess.run(["tar", "x", "-C", target], input=archive.stdout, check=True)
    return target


def _sigmoid_update(
    embed: Callable[..., tuple], shapes: Any, arguments: argparse.Namespace, mesh: Mesh
) -> jax.stages.Lowered:
    """Lower an update by the sigmoid loss as SigLIP's trainer writes it, over whole arrays, and AdamW."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=1e-4))

    def update(state, images, labels):
        def loss(parameters):
            image, text, scale, bias = embed(parameters, images, labels)
            logits = jnp.dot(image, text.T) * scale + bias
            signs = -jnp.ones_like(logits) + 2 * jnp.eye(len(image))
            return jnp.mean(-jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=-1))

        parameters, moments = state
        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    count, full = arguments.pairs * mesh.size, NamedSharding(mesh, PartitionSpec())
    batch = (
        rows_on(mesh, (count, arguments.side, arguments.side, 3), jnp.float32),
        rows_on(mesh, (count, TOKENS), jnp.int32),
    )
    state = shapes_on((shapes, jax.eval_shape(optimizer.init, shapes)), mesh, PartitionSpec())
    return jax.jit(update, donate_argnums=0, out_shardings=(full, full)).lower(state, *batch)
