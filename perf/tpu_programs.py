"""Compile encoders and training steps for a TPU without one, and read memory and bytes off the programs.

    JAX_PLATFORMS=cpu python perf/tpu_programs.py --out tpu_programs.jsonl
    JAX_PLATFORMS=cpu python perf/tpu_programs.py --models so400m --what encoder --attention fused --rows 256
    python perf/tpu_programs.py --table tpu_programs.jsonl

One chip of `--topology`, bfloat16 towers, `--rows` images (and texts of 32 tokens). Needs libtpu (of the JAX release:
`pip show jax`), no TPU. Lines that are in the output file are not compiled again. `einsum` is what a tower computes
without a fused implementation; `fused` is what `rococo_jax.models.attention.fused_attention` chooses.
"""

import argparse
import json
import time
from pathlib import Path

import measuring

# Image tower: width, layers, heads, MLP width, patch, image, pooling, class token.
# Text tower: width, layers. Embedding.
MODELS = {
    "b16": ((768, 12, 12, 3072, 16, 224, "cls", True), (512, 12), 512),
    "l14_336": ((1024, 24, 16, 4096, 14, 336, "cls", True), (768, 12), 768),
    "so400m": ((1152, 27, 16, 4304, 14, 378, "attention", False), (1152, 27), 1152),
}
TOKENS, VOCABULARY = 32, 32000


def spec_of(name: str):
    """The architecture; texts are causal in all of them."""
    (width, layers, heads, mlp, patch, image, pooling, class_token), (text_width, text_layers), dim = MODELS[name]
    vision = {
        "image_size": image, "patch_size": patch, "width": width, "layers": layers, "heads": heads, "mlp_width": mlp,
        "pooling": pooling, "class_token": class_token, "patch_bias": True, "norm_before_blocks": False,
    }  # fmt: skip
    text = {"width": text_width, "layers": text_layers, "vocabulary_size": VOCABULARY, "context_length": TOKENS}
    return measuring.clip_spec(vision, text, dim)


def lowered_encoder(name: str, rows: int, mesh):
    """The image tower from pixels to features."""
    import jax
    import jax.numpy as jnp
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    from rococo_jax.models import attention
    from rococo_jax.models.vision import VisionTower

    spec = spec_of(name).vision
    tower = nnx.eval_shape(lambda: VisionTower(spec, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    attention.use_fused_attention(tower, mesh, jnp.bfloat16)
    graph, state = nnx.split(tower)
    whole = NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=whole), state)
    pixels = jax.ShapeDtypeStruct((rows, spec.image_size, spec.image_size, 3), jnp.float32, sharding=whole)
    return jax.jit(lambda state, pixels: nnx.merge(graph, state)(pixels)).lower(state, pixels)


def lowered_step(name: str, rows: int, mesh, remat):
    """A plain contrastive step."""
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.training.config import default_config
    from rococo_jax.training.step import lower_step

    spec, config = spec_of(name), default_config()
    config.batch_size, config.dtype, config.remat = rows, "bfloat16", remat
    size = spec.vision.image_size
    preprocessing = Preprocessing(shortest_edge=size, crop_size=(size, size), mean=(0.5,) * 3, std=(0.25,) * 3)
    return lower_step(config, spec, preprocessing, mesh, TOKENS)


def compiled(name: str, what: str, kind: str, rows: int, topology: str) -> dict:
    """Compile one program and return its line."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    from rococo_jax.models import attention
    from rococo_jax.runtime import AXES

    if kind == "einsum":
        attention.fused_attention = lambda mesh, dtype: None
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[:1]
    mesh = Mesh(np.array(devices).reshape(1, 1), AXES)
    started = time.perf_counter()
    work, _, remat = what.partition(":")
    if work == "encoder":
        lowered = lowered_encoder(name, rows, mesh)
    else:
        lowered = lowered_step(name, rows, mesh, remat or "none")
    program = lowered.compile()
    memory, costs, text = program.memory_analysis(), program.cost_analysis(), program.as_text()
    tokens = spec_of(name).vision.grid ** 2 + spec_of(name).vision.class_token
    return {
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "bytes_accessed": costs["bytes accessed"],
        "attention_weights_in_float32": f"f32[{rows},{MODELS[name][0][2]},{tokens},{tokens}]" in text,
        "seconds_to_compile": round(time.perf_counter() - started, 1),
    }


def table(lines: list[dict]) -> None:
    """Print the lines as a Markdown table."""
    print("| model | program | attention | images | temporary, GB | bytes moved, GB | float32 weights whole |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- |")
    for line in sorted(lines, key=lambda line: (line["model"], line["what"], line["attention"])):
        sizes = f"{line['temporary'] / 1e9:.2f} | {line['bytes_accessed'] / 1e9:.1f}"
        whole = "yes" if line["attention_weights_in_float32"] else "no"
        print(f"| {line['model']} | {line['what']} | {line['attention']} | {line['rows']} | {sizes} | {whole} |")


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--what", default="encoder,step", help="encoder, step, step:dots, step:full")
    parser.add_argument("--attention", default="einsum,fused")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--out", type=Path, default=Path("tpu_programs.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        table([json.loads(line) for line in options.table.read_text().splitlines()])
        return
    if options.one:
        print(json.dumps(compiled(*options.one, options.rows, options.topology)))
        return
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for name in options.models.split(","):
        for what in options.what.split(","):
            for kind in options.attention.split(","):
                key = {"model": name, "what": what, "attention": kind, "rows": options.rows, "on": options.topology}
                if any(key.items() <= line.items() for line in done):
                    continue
                # A process each: one holds libtpu's compiler at a time, and a failed program leaves the others.
                one = ["--one", name, what, kind, "--rows", options.rows, "--topology", options.topology]
                try:
                    line = measuring.fresh(*one)
                except measuring.NoFigures as error:
                    print(key, error, flush=True)
                    continue
                print(key, line, flush=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(key | line) + "\n")


if __name__ == "__main__":
    main()
