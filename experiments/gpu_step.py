"""Compile a training step for GPUs without one, and predict its time from the kernels of the program.

    pip install "jax[cuda12]"                                            of the JAX release: pip show jax
    python experiments/gpu_step.py                                       32,768 pairs of B/16 with SC and VC, 8 H100
    python experiments/gpu_step.py --plain --batch 1024 --devices 1 --kernels 20
    python experiments/gpu_step.py --attention einsum --micro-batches 16 --kept 1

XLA compiles from a description of the GPU (`H100`). Nothing is run and nothing is tuned: XLA would measure which of its
kernels of a product is the fastest, and here takes cuBLAS for all of them (`--triton`: its own for all). A kernel takes

    max(operations / (peak * share), bytes / (bandwidth * share))

with operations and bytes from the compiled program (`gpu_kernels`) and the shares assumed below; collectives take their
bytes over the links, without overlap. **It is a prediction, not a measurement.**
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import scaling
from gpu_kernels import Kernel, kernels

# Assumed: shares of the peak that products in bfloat16, cuDNN's attention and products in float32 reach, of the
# bandwidth of memory, and of that of links.
PRODUCTS, ATTENTION, FLOAT32, BANDWIDTH, LINKS = 0.70, 0.30, 0.80, 0.85, 0.80
BYTES_PER_SECOND = 3.35e12  # HBM3 of an H100 SXM; data sheet
CHIP = "H100 SXM"

# What XLA asks a driver for; limits of compute capability 9.0 and the data sheet of the H100 SXM.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132 fpus_per_core: 128 threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  l2_cache_size: 52428800 clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000 device_memory_size: 84929347584
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def seconds(kernel: Kernel) -> float:
    """Of one run."""
    peak, float32_peak, _, links, _ = scaling.CHIPS[CHIP]
    if kernel.kind == "collective":
        return kernel.bytes / (links * LINKS)
    rate = peak * (ATTENTION if kernel.kind == "attention" else PRODUCTS)
    if kernel.dtype == "f32":
        rate = float32_peak * FLOAT32
    return max(kernel.flops / rate, kernel.bytes / (BYTES_PER_SECOND * BANDWIDTH))


def compiled(options: argparse.Namespace):
    """The step's config and program."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.models import attention
    from rococo_jax.runtime import AXES
    from rococo_jax.training.step import lower_step

    if options.attention == "einsum":
        attention.fused_attention = lambda mesh, dtype: None
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology=f"1x1x{options.devices}")
    mesh = Mesh(np.array(topology.devices).reshape(-1, options.fsdp), AXES)
    config = scaling.config_of(options.batch, options.devices)
    config.remat, config.fsdp = options.remat, options.fsdp
    config.micro_batches, config.kept_micro_batches = options.micro_batches, options.kept
    if options.plain:
        config.losses.sc.weight = config.losses.vc.weight = 0.0
    preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=(0.5,) * 3, std=(0.25,) * 3)
    lowered = lower_step(config, scaling.spec_of(options.model), preprocessing, mesh, scaling.TOKENS)
    return config, lowered.compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="b16", choices=scaling.MODELS)
    parser.add_argument("--batch", type=int, default=32768)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--fsdp", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without SC and VC")
    parser.add_argument("--attention", default="fused", choices=("einsum", "fused"))
    parser.add_argument("--remat", default="full", choices=("none", "dots", "full"))
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--kept", type=int, default=8, help="of the micro-batches")
    parser.add_argument("--triton", action="store_true", help="XLA's own kernels of products")
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="print the N that take longest")
    parser.add_argument("--save", type=Path, help="file for the program")
    options = parser.parse_args()
    if not options.triton:
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_triton_gemm=false"
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    config, program = compiled(options)

    from rococo_jax.training.program import step_flops

    text, memory = program.as_text(), program.memory_analysis()
    if options.save:
        options.save.write_text(text)
    found = kernels(text, options.devices)
    taken, moved = Counter(), Counter()
    for kernel in found:
        kind = kernel.kind + (" in float32" if kernel.dtype == "f32" else "")
        taken[kind] += kernel.runs * seconds(kernel)
        moved[kind] += kernel.runs * kernel.bytes
    step, peak = sum(taken.values()), scaling.CHIPS[CHIP][0]
    flops = step_flops(config, scaling.spec_of(options.model), scaling.TOKENS) / options.devices
    asked = {name: getattr(options, name) for name in ("model", "batch", "devices", "fsdp", "plain", "attention",
                                                       "remat", "micro_batches", "kept", "triton")}  # fmt: skip
    print(json.dumps(asked | {
        "seconds": {kind: round(value, 4) for kind, value in taken.items()},
        "gigabytes_moved": {kind: round(value / 1e9, 2) for kind, value in moved.items()},
        "step": round(step, 3), "mfu": round(flops / peak / step, 3),
        "temporary": round(memory.temp_size_in_bytes / 1e9, 2),
        "arguments": round(memory.argument_size_in_bytes / 1e9, 2),
    }))  # fmt: skip
    for kernel in sorted(found, key=lambda each: -each.runs * seconds(each))[: options.kernels]:
        about = f"{kernel.runs:4} x {kernel.flops / 1e9:8.1f} GFLOP {kernel.bytes / 1e6:8.1f} MB"
        print(f"{kernel.runs * seconds(kernel) * 1e3:8.2f} ms {about} {kernel.kind:10} {kernel.source[-80:]}")


if __name__ == "__main__":
    main()
