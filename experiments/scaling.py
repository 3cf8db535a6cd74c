"""Compile training steps for thousands of devices without running them: memory, bytes sent, operations, time bound.

    python experiments/scaling.py --models b16 --devices 8,64,512 --batches 32768 --out scaling.jsonl
    python experiments/scaling.py --models b16 --tpu v5p:4x4x4 --batches 32768 --out scaling.jsonl
    python experiments/scaling.py --table scaling.jsonl
    python experiments/scaling.py --cost-model --models b16,l14 --devices 8,64,512,4096 --batches 32768,262144,1048576

The step is that of `rococo_jax.training.step.make_step`, with SC and VC (one altered caption and one mixed image per
pair), bf16 towers, rematerialised blocks, parameters sharded over 8 devices, and micro-batches of 256 pairs per device.
`--devices` compiles for virtual CPU devices, `--tpu` for a TPU topology (needs libtpu, no TPU). Lines that are already
in the output file are skipped. `--cost-model` prints the analytic cost model of docs/scaling.md and compiles nothing.

The prediction is a bound, not a measurement:

    seconds >= max(tower operations / (devices * peak) + loss operations / (devices * float32 peak),
                   bytes of the ring / one way of it + other bytes sent by a device / its links)

The losses' ring sends each hop to one neighbour: on a torus over one link of a chip, one way, between nodes of GPUs
over one network card. Gathers and reductions use all links. With operations from the architecture (`step_flops`, and
`loss_flops` below) and bytes from the compiled program. Towers compute in bfloat16, losses in float32 at the highest
precision: on a GPU outside of the tensor cores, on a TPU in six bfloat16 passes.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

TOKENS, VOCABULARY, ROWS_AT_A_TIME, FSDP = 32, 49408, 256, 8
# Width, layers and heads of the image tower and of the text tower; patch; embedding.
MODELS = {"b16": ((768, 12), (512, 12), 16, 512), "l14": ((1024, 24), (768, 12), 14, 768)}
# Peak bf16 FLOP/s, peak float32 FLOP/s at the highest precision (on TPUs a sixth of bf16), bytes of memory, bytes/s out
# of a chip over all fast links, and over the one that a ring of neighbours takes. docs.cloud.google.com/tpu/docs/v5e,
# v5p, v6e and tpu7x give 400, 1,200 and 800 GB/s a chip, both ways and all links; v5e and v6e have four links, v5p six.
# NVIDIA's data sheets: NVLink of an H100 SXM 900 GB/s both ways, all of it to any other GPU of the node.
CHIPS = {
    "TPU v5e": (197e12, 197e12 / 6, 16e9, 200e9, 50e9),
    "TPU v5p": (459e12, 459e12 / 6, 95e9, 600e9, 100e9),
    "TPU v6e": (918e12, 918e12 / 6, 32e9, 400e9, 100e9),
    "H100 SXM": (989e12, 67e12, 80e9, 450e9, 450e9),
}
# Beyond the eight GPUs of a node a ring waits for its slowest hop: 400 Gb/s a GPU (data sheet of the DGX H100).
NODE, BETWEEN_NODES = 8, 50e9


def clip_spec(vision: dict, text: dict, dim: int):
    """As `perf/measuring.py` has it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "perf"))
    from measuring import clip_spec

    return clip_spec(vision, text, dim)


def spec_of(name: str):
    """CLIP's architecture in one of the sizes."""
    (width, layers), (text_width, text_layers), patch, dim = MODELS[name]
    text = {"vocabulary_size": VOCABULARY, "context_length": TOKENS, "width": text_width, "layers": text_layers}
    return clip_spec({"patch_size": patch, "width": width, "layers": layers}, text, dim)


def config_of(batch: int, devices: int):
    """Config of the step."""
    from rococo_jax.training.config import default_config

    config = default_config()
    config.batch_size, config.dtype, config.remat, config.fsdp = batch, "bfloat16", "full", FSDP
    config.micro_batches = max(1, batch // devices // ROWS_AT_A_TIME)
    config.losses.sc.weight = config.losses.vc.weight = 1.0
    return config


def tower_flops(config, spec) -> float:
    """Operations of the towers in a step: three passes, and what rematerialised blocks and micro-batches compute again.

    A block's last product, whose result only the residual sum takes, is not computed again.
    """
    import math

    from rococo_jax.training.inputs.loss_input import items_per_pair
    from rococo_jax.training.program import step_flops

    passes = {"vision": 1, "text": 1}
    for field, items in items_per_pair(config).items():
        passes[field.tower] += math.prod(items)
    model, again = step_flops(config, spec, TOKENS), 0
    for tower, tokens, side in ((spec.vision, spec.vision.grid**2 + 1, "vision"), (spec.text, TOKENS, "text")):
        of_block = 8 * tower.width**2 + 4 * tokens * tower.width + 2 * tower.width * tower.mlp_width
        again += passes[side] * tower.layers * tokens * of_block
    return model + (1 - config.kept_micro_batches / config.micro_batches) * model / 3 + config.batch_size * again


def loss_flops(batch: int, dim: int) -> float:
    """Operations of the losses. Contrastive, SC and VC compare three pairs of tables of B rows; each pair costs one
    product forward, the same product again backward, and one product for each of its two gradients."""
    return 3 * 4 * 2.0 * batch * batch * dim


def compile_step(model: str, batch: int, devices: list) -> dict:
    """Compile one step and return its line of the output."""
    import numpy as np
    from hlo_cost import bytes_sent
    from jax.sharding import Mesh

    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.runtime import AXES
    from rococo_jax.training.step import lower_step

    started = time.perf_counter()
    spec, config = spec_of(model), config_of(batch, len(devices))
    mesh = Mesh(np.array(devices).reshape(-1, FSDP), AXES)
    preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=(0.5,) * 3, std=(0.25,) * 3)
    compiled = lower_step(config, spec, preprocessing, mesh, TOKENS).compile()
    memory = compiled.memory_analysis()
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "sent": bytes_sent(compiled.as_text(), len(devices)),
        "tower_flops": tower_flops(config, spec),
        "loss_flops": loss_flops(batch, spec.vision_head.dim),
        "seconds_to_compile": round(time.perf_counter() - started, 1),
    }


def cost_model(model: str, batch: int, devices: int) -> dict:
    """A line from the analytic cost model; `docs/scaling.md` has the terms."""
    import math

    from rococo_jax.checkpoints.parameters import parameter_shapes

    spec, config = spec_of(model), config_of(batch, devices)
    parameters = sum(math.prod(shape) for shape in parameter_shapes(spec).values())
    rows, parts, dim = batch // devices, config.micro_batches, spec.vision_head.dim
    others = (FSDP - 1) / FSDP
    return {
        "model": model,
        "batch": batch,
        "devices": devices,
        "platform": "cost model",
        "arguments": 12 * parameters // FSDP + rows * (224 * 224 * 3 + 5 * 2 * TOKENS),
        "temporary": 0,
        "sent": {
            "gathered": 2 * parameters * (3 * parts - 1) * others,
            "scattered": 4 * parameters * parts * others + 8 * parameters / FSDP * (devices > FSDP),
            "embeddings": 9 * 4 * dim * rows * (devices - 1),
        },
        "tower_flops": tower_flops(config, spec),
        "loss_flops": loss_flops(batch, dim),
    }


def table(lines: list[dict]) -> None:
    """Print the lines as a Markdown table."""
    lines.sort(key=lambda line: (line["model"], line["batch"], line["devices"], line["platform"]))
    chips = " | ".join(CHIPS)
    print(
        f"| model | batch | devices | compiled for | state and batch, GB | temporary, GB | sent, GB | PFLOP | {chips} |"
    )
    print("| --- " * 4 + "| ---: " * (4 + len(CHIPS)) + "|")
    for line in lines:
        flops, sent = line["tower_flops"] + line["loss_flops"], sum(line["sent"].values())
        held = line["arguments"] + line["temporary"]
        bounds = []
        ring = line["sent"].get("collective-permute", line["sent"].get("embeddings", 0))
        for chip, (peak, float32_peak, memory, links, one_way) in CHIPS.items():
            compute = (line["tower_flops"] / peak + line["loss_flops"] / float32_peak) / line["devices"]
            if chip.startswith("H100") and line["devices"] > NODE:
                one_way = BETWEEN_NODES
            links_time = ring / one_way + (sent - ring) / links
            bound = "compute" if compute >= links_time else "links"
            bounds.append(f"{max(compute, links_time):.3g} s ({bound})" if held <= memory else "too large")
        cells = [line["model"], f"{line['batch']:,}", f"{line['devices']:,}", line["platform"]]
        cells += [f"{value / 1e9:.2f}" if value else "" for value in (line["arguments"], line["temporary"], sent)]
        print("| " + " | ".join([*cells, f"{flops / 1e15:.1f}", *bounds]) + " |")


def main() -> None:
    """Compile the missing lines, or print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="b16,l14")
    parser.add_argument("--devices", default="", help="numbers of virtual devices, each a multiple of 8")
    parser.add_argument("--tpu", default="", help="TPU topologies such as v5p:4x4x4")
    parser.add_argument("--batches", default="32768")
    parser.add_argument("--out", default="scaling.jsonl", type=Path)
    parser.add_argument("--table", type=Path, help="only print the lines of this file")
    parser.add_argument("--cost-model", action="store_true", help="print the analytic cost model, compile nothing")
    arguments = parser.parse_args()
    counts = [int(each) for each in arguments.devices.split(",") if each]
    batches = [int(each) for each in arguments.batches.split(",")]
    if arguments.table:
        table([json.loads(line) for line in arguments.table.read_text().splitlines()])
        return
    if arguments.cost_model:
        models = arguments.models.split(",")
        table([cost_model(m, b, d) for m in models for b in batches for d in counts if b // d >= 256])
        return
    # JAX reads these once, when it starts.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={max(counts, default=1)}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax.experimental import topologies

    where = {f"{count} virtual": jax.devices()[:count] for count in counts}
    for name in filter(None, arguments.tpu.split(",")):
        where[name] = list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    kept = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {(line["model"], line["batch"], line["devices"], line["platform"]) for line in map(json.loads, kept)}
    for platform, devices in where.items():
        for model in arguments.models.split(","):
            for batch in batches:
                kind = "virtual CPU" if "virtual" in platform else platform.partition(":")[0]
                key = (model, batch, len(devices), kind)
                if key in done or batch % len(devices):
                    continue
                line = dict(zip(("model", "batch", "devices", "platform"), key, strict=True))
                line |= compile_step(model, batch, devices)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
