"""Measure the contrastive loss with all gradients: by gathered keys in tiles, and as the dense matrix.

    python perf/loss.py --pairs 8192 --width 512
    python perf/loss.py --pairs 8192 --strategies all_gather,torch         compare with torch, in alternation
    python perf/loss.py --virtual-devices 8 --pairs 8192       on CPU, to check that they run; no timing

Prints one JSON object with the device, the versions and, for each strategy, the seconds per step (median of the
repeats, without compilation), pairs/s, TFLOP/s (8 B^2 d operations: one product forward and three backward; 6 B^2 d for
the dense matrix), and the temporary memory per device in the compiled program. Products are float32 at the highest
precision. `torch` is the dense matrix in torch, as open_clip computes its loss on one device (`logits` and their
transpose, two cross entropies). With `--memory`, `held_mib` is the increase of the peak of resident memory by the steps
of each strategy, in a fresh process (Linux).
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable

import measuring
import numpy as np

SCALE = 14.3


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--pairs", type=int, default=4096, help="global batch size")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--block-rows", type=int, help="rows of a block of logits (default: per platform)")
    parser.add_argument("--strategies", default="all_gather,dense")
    parser.add_argument("--memory", action="store_true", help="also measure resident memory")
    parser.add_argument("--only-memory", metavar="STRATEGY", help=argparse.SUPPRESS)
    parser.add_argument("--virtual-devices", type=int, help="number of devices to split the CPU into")
    arguments = parser.parse_args()
    if arguments.virtual_devices:
        flag = f" --xla_force_host_platform_device_count={arguments.virtual_devices}"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    if arguments.only_memory:
        only_memory(arguments)
        return
    # Memory comes first: on Linux the peak of a child process includes the memory of its parent at its start.
    names = arguments.strategies.split(",") if arguments.memory else []
    memory = {name: measuring.run_self(*sys.argv[1:], "--only-memory", name) for name in names}
    results = measure(arguments)
    for name, mebibytes in memory.items():
        results["strategies"][name]["held_mib"] = mebibytes
    print(json.dumps(results))


def measure(arguments: argparse.Namespace) -> dict:
    import jax

    from rococo_jax.runtime import make_mesh

    mesh, names = make_mesh(), arguments.strategies.split(",")
    steps = {name: step_of(name, mesh, arguments) for name in names}
    results = {name: {"loss": run()} for name, (run, _) in steps.items()}
    times = measuring.alternate({name: run for name, (run, _) in steps.items()}, arguments.repeats)
    for name, (_, temporary) in steps.items():
        median = statistics.median(each.seconds for each in times[name])
        products = 6 if name in ("dense", "torch") else 8
        results[name] |= {
            "seconds": median,
            "pairs_per_second": arguments.pairs / median,
            "tflop_per_second": products * arguments.pairs**2 * arguments.width / median / 1e12,
            "temporary_mib": temporary,
        }
    return {
        "device": f"{mesh.size} x {jax.devices()[0].device_kind}",
        "machine": platform.machine(),
        "jax": jax.__version__,
        "pairs": arguments.pairs,
        "width": arguments.width,
        "strategies": results,
    }


def sides_of(arguments: argparse.Namespace) -> list[np.ndarray]:
    """Return random unit vectors of both sides."""
    return [measuring.unit_vectors(arguments.pairs, arguments.width, seed) for seed in (0, 1)]


def step_of(strategy: str, mesh, arguments: argparse.Namespace) -> tuple[Callable[[], float], float | None]:
    """Return a step that returns its loss, and the temporary memory of its program in MiB (None for torch)."""
    if strategy == "torch":
        return torch_step(sides_of(arguments)), None
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    images, texts = (jax.device_put(side, sharding) for side in sides_of(arguments))
    scale = jax.device_put(np.float32(SCALE), NamedSharding(mesh, PartitionSpec()))
    step = jax.jit(jax.value_and_grad(loss_by(strategy, mesh, arguments.block_rows), (0, 1, 2)))
    program = step.lower(images, texts, scale).compile()
    temporary = program.memory_analysis().temp_size_in_bytes / 2**20
    return lambda: float(jax.block_until_ready(program(images, texts, scale))[0]), temporary


def torch_step(sides: list[np.ndarray]) -> Callable[[], float]:
    """Return a step in torch."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    images, texts = (torch.from_numpy(side).requires_grad_() for side in sides)
    scale, labels = torch.tensor(SCALE, requires_grad=True), torch.arange(len(images))

    def step() -> float:
        logits = scale * images @ texts.T
        loss = (torch.nn.functional.cross_entropy(logits, labels)
                + torch.nn.functional.cross_entropy(logits.T, labels)) / 2  # fmt: skip
        torch.autograd.grad(loss, (images, texts, scale))
        return loss.item()

    return step


def only_memory(arguments: argparse.Namespace) -> None:
    """Print the increase of the peak of resident memory by one strategy's steps, in MiB."""
    from rococo_jax.runtime import make_mesh

    mesh = make_mesh()
    run, _ = step_of(arguments.only_memory, mesh, arguments)
    small = argparse.Namespace(**{**vars(arguments), "pairs": 64})
    step_of(arguments.only_memory, mesh, small)[0]()  # memory of the libraries themselves
    before = measuring.peak_memory()
    run(), run()
    print((measuring.peak_memory() - before) / 2**20)


def loss_by(strategy: str, mesh, block_rows: int | None):
    import jax
    import jax.numpy as jnp

    from rococo_jax.losses import Embeddings, softmax_contrastive
    from rococo_jax.similarity import ShardedLogits

    def dense(images, texts, scale):
        logits = scale * jnp.matmul(images, texts.T, precision=jax.lax.Precision.HIGHEST)
        both = jax.nn.logsumexp(logits, 1) + jax.nn.logsumexp(logits, 0)
        return (0.5 * both - jnp.diag(logits)).mean()

    def ours(images, texts, scale):
        pairs = Embeddings(images, texts, jnp.arange(len(images)), scale)
        return softmax_contrastive(pairs, ShardedLogits(mesh, block_rows))

    return dense if strategy == "dense" else ours


if __name__ == "__main__":
    main()
