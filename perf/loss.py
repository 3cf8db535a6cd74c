"""Time the contrastive loss with all gradients: all-gather, ring, and the dense matrix with autodiff.

    python perf/loss.py --pairs 8192 --width 512
    python perf/loss.py --virtual-devices 8 --pairs 8192       on CPU, to check that they run; no timing

Prints one JSON object: device, versions, and for each strategy the seconds per step (median of the repeats, without
compilation), pairs/s, TFLOP/s counted as 8 B^2 d (one product forward and three backward; the dense matrix takes 6),
and temporary memory per device as compiled. Products are float32 at the highest precision.
"""

import argparse
import json
import os
import platform
import statistics
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4096, help="global batch size")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--block-rows", "--tile-rows", type=int, help="rows of a block of logits (default: per platform)"
    )
    parser.add_argument("--strategies", "--routes", default="all_gather,ring,dense")
    parser.add_argument("--virtual-devices", type=int, help="number of devices to split the CPU into")
    arguments = parser.parse_args()
    if arguments.virtual_devices:
        flag = f" --xla_force_host_platform_device_count={arguments.virtual_devices}"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    print(json.dumps(measure(arguments), indent=2))


def measure(arguments: argparse.Namespace) -> dict:
    import jax

    from rococo_jax.runtime import make_mesh

    mesh = make_mesh()
    return {
        "device": f"{mesh.size} x {jax.devices()[0].device_kind}",
        "machine": platform.machine(),
        "jax": jax.__version__,
        "pairs": arguments.pairs,
        "width": arguments.width,
        "strategies": {name: measure_strategy(name, mesh, arguments) for name in arguments.strategies.split(",")},
    }


def measure_strategy(strategy: str, mesh, arguments: argparse.Namespace) -> dict:
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    keys = jax.random.split(jax.random.key(0))
    sides = [jax.random.normal(key, (arguments.pairs, arguments.width)) for key in keys]
    images, texts = (jax.device_put(side / jnp.linalg.norm(side, axis=1, keepdims=True), sharding) for side in sides)
    step = jax.jit(jax.value_and_grad(loss_by(strategy, mesh, arguments.block_rows), (0, 1, 2)))
    scale = jax.device_put(jnp.float32(14.3), NamedSharding(mesh, PartitionSpec()))
    program = step.lower(images, texts, scale).compile()
    value, _ = jax.block_until_ready(program(images, texts, scale))
    seconds = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        jax.block_until_ready(program(images, texts, scale))
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    products = 6 if strategy == "dense" else 8
    return {
        "loss": float(value),
        "seconds": median,
        "pairs_per_second": arguments.pairs / median,
        "tflop_per_second": products * arguments.pairs**2 * arguments.width / median / 1e12,
        "temporary_mib": program.memory_analysis().temp_size_in_bytes / 2**20,
    }


def loss_by(strategy: str, mesh, block_rows: int | None):
    import jax
    import jax.numpy as jnp

    from rococo_jax.losses import softmax_contrastive
    from rococo_jax.similarity import ShardedLogits

    def dense(images, texts, scale):
        logits = scale * jnp.matmul(images, texts.T, precision=jax.lax.Precision.HIGHEST)
        both = jax.nn.logsumexp(logits, 1) + jax.nn.logsumexp(logits, 0)
        return (0.5 * both - jnp.diag(logits)).mean()

    def ours(images, texts, scale):
        logits = ShardedLogits(mesh, strategy, block_rows)
        return softmax_contrastive(images, texts, logit_scale=scale, similarities=logits)

    return dense if strategy == "dense" else ours


if __name__ == "__main__":
    main()
