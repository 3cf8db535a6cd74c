"""Count what the devices of a training step send each other: collectives, how often they run, and their bytes.

    JAX_PLATFORMS=cpu python experiments/collectives.py --virtual-devices 8 --parts 1,4
    JAX_PLATFORMS=cpu python experiments/collectives.py --topology v5e:2x4 --parts 1,4 --fsdp 1,4     needs libtpu

A step of a small CLIP (`--layers` blocks of 256 channels in each tower) is compiled, and its program read: a collective
in the body of a loop runs as often as the loop. `parameters_mb` is what a reduction of all gradients must carry.
"""

import argparse
import json
import os
from collections import Counter
from pathlib import Path

from hlo_cost import collectives
from scaling import clip_spec


def counted(text: str, devices: int) -> dict[str, dict[str, float]]:
    """Of each kind how many stand in a program, how often they run, how often in the background, and their MB."""
    found: dict[str, Counter] = {}
    for each in collectives(text, devices):
        of_kind = found.setdefault(each.kind, Counter())
        of_kind.update({"in the program": 1, "runs": each.runs, "in the background": each.runs * each.started})
        of_kind["mb"] += each.runs * each.size / 1e6
    return {kind: {key: round(value, 3) for key, value in each.items()} for kind, each in found.items()}


def spec_of(layers: int):
    """A small CLIP, whose blocks are most of its parameters."""
    blocks = {"width": 256, "layers": layers}
    vision = {"image_size": 32, "patch_size": 8, "patch_bias": True, "norm_before_blocks": False, **blocks}
    return clip_spec(vision, {"vocabulary_size": 64, "context_length": 16, "norm_after_blocks": True, **blocks}, 64)


def compiled(arguments: argparse.Namespace, parts: int, fsdp: int) -> dict:
    """One step."""
    import jax
    import numpy as np
    from flax import nnx

    from rococo_jax.checkpoints.parameters import parameters_of
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.models import DualEncoder
    from rococo_jax.runtime import AXES, arranged
    from rococo_jax.training.config import default_config
    from rococo_jax.training.step import lower_step

    devices = jax.devices()
    if arguments.topology:
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=arguments.topology).devices
    mesh = jax.sharding.Mesh(arranged(devices, fsdp), AXES)
    config, spec = default_config(), spec_of(arguments.layers)
    config.batch_size, config.micro_batches, config.fsdp = arguments.pairs, parts, fsdp
    preprocessing = Preprocessing(shortest_edge=32, crop_size=(32, 32))
    lowered = lower_step(config, spec, preprocessing, mesh, spec.text.context_length)
    options = dict(each.split("=") for each in arguments.option)
    program = lowered.compile(compiler_options=options or None)
    shapes = jax.eval_shape(lambda: parameters_of(DualEncoder(spec, rngs=nnx.Rngs(0))))
    size = sum(4 * int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
    if arguments.save:
        Path(arguments.save).write_text(program.as_text())
    about = {"devices": len(devices), "parts": parts, "fsdp": fsdp, "parameters_mb": round(size / 1e6, 3)}
    return about | {"collectives": counted(program.as_text(), len(devices))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual-devices", type=int, default=8, help="of the CPU")
    parser.add_argument("--topology", help="of TPUs, as v5e:2x4")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--parts", default="1,4", help="micro-batches")
    parser.add_argument("--fsdp", default="1")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the compiler")
    parser.add_argument("--save", help="file for the last program")
    arguments = parser.parse_args()
    flag = f" --xla_force_host_platform_device_count={arguments.virtual_devices}"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    os.environ["JAX_PLATFORMS"] = "cpu"
    lines = [compiled(arguments, int(parts), int(fsdp))
             for fsdp in arguments.fsdp.split(",") for parts in arguments.parts.split(",")]  # fmt: skip
    print(json.dumps({"on": arguments.topology or f"{arguments.virtual_devices} CPU devices", "steps": lines}))


if __name__ == "__main__":
    main()
