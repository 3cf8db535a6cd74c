"""Memory and work of the compiled ring, read from the compiled programs.

Compiled (not run) in a process of its own with 32 virtual devices: 1,024 pairs a device, width 512, float32, the
contrastive loss, SC (all altered captions of the batch, one a pair) and `blind`, with gradients of all embeddings and
the scale.
"""

import json
import os
import subprocess
import sys

import pytest

COMPILE = """
import json, re, sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from rococo_jax import losses
from rococo_jax.runtime import make_mesh
from rococo_jax.similarity import ShardedLogits

def compiled(devices, name):
    altered = name != "contrastive"
    mesh = make_mesh(jax.devices()[:devices], fsdp=2)
    def argument(*shape, dtype=jnp.float32):
        spec = PartitionSpec(mesh.axis_names) if shape else PartitionSpec()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
    pairs = devices * 1024
    similarities = ShardedLogits(mesh, "ring")
    def loss(images, texts, scale, ids, *altered):
        if name == "blind":
            own = {"ids": ids, "logit_scale": scale, "similarities": similarities}
            return losses.blind_preference(images, texts, *altered, **own)
        if altered:
            return losses.semantic_contrastive(images, texts, *altered, logit_scale=scale, similarities=similarities)
        return losses.softmax_contrastive(images, texts, logit_scale=scale, ids=ids, similarities=similarities)
    arguments = [argument(pairs, 512)] * 2 + [argument(), argument(pairs, dtype=jnp.int32)]
    arguments += [argument(pairs, 1, 512)] if altered else []
    gradients = jax.value_and_grad(loss, (0, 1, 2, 4) if altered else (0, 1, 2))
    program = jax.jit(gradients).lower(*arguments).compile()
    text = program.as_text()
    return {
        "temporary_mib": program.memory_analysis().temp_size_in_bytes / 2**20,
        "products": len(re.findall(r" (?:dot|custom-call)\\(", text)),
        "gathers": len(re.findall(r" all-gather(?:-start)?\\(", text)),
        "permutes": len(re.findall(r" collective-permute(?:-start)?\\(", text)),
    }

cases = [(loss, devices) for loss in ("contrastive", "SC", "blind") for devices in (8, 32)]
print(json.dumps({f"{loss} {devices}": compiled(devices, loss) for loss, devices in cases}))
"""


@pytest.fixture(scope="module")
def programs():
    """Figures of the compiled programs, by loss and number of devices."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=32", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("loss", ["contrastive", "SC", "blind"])
def test_temporary_memory_of_the_ring_is_small_and_does_not_grow_with_the_devices(programs, loss):
    """24 MiB: keys and their gradients twice over (8), gradients of queries (2), two tiles of logits (8), and slack."""
    assert programs[f"{loss} 32"]["temporary_mib"] <= programs[f"{loss} 8"]["temporary_mib"] <= 24


def test_a_step_takes_one_product_forward_and_three_backward(programs):
    """Both directions of the loss come from the same tile. All products of the program are those of the two loops."""
    for figures in programs.values():
        assert figures["products"] == 4


def test_the_ring_gathers_nothing(programs):
    for figures in programs.values():
        assert figures["gathers"] == 0 and figures["permutes"] > 0
