"""Compile a program for chips that need not be here, and print what it computes, moves and sends, as one JSON object.

    python perf/compiled.py step --topology v5e:2x2 --pairs 128 --remat full             the training step
    python perf/compiled.py big_vision --source GIT_DIRECTORY                            SigLIP's trainer
    python perf/compiled.py jimm --source GIT_DIRECTORY
    python perf/compiled.py images --dtype float32                                       another program of this project

Needs libtpu beside jaxlib, or JAX's plugin for CUDA. Steps train a SigLIP B/16 in bfloat16 (224 pixels, 64 tokens,
sigmoid loss, AdamW); other programs run a CLIP B/16. All numbers are of one device and one run, read from the compiled
program, with each loop as often as it runs, and of a conditional the branch that does most:

    tflop        of matrix products and convolutions, in passes of bfloat16: a float32 product at the highest precision
                 has six of them, at `high` three
    vector_gop   elementwise operations and reductions, each counted as one; the vector unit may need several for it
    gb           bytes that instructions read from the memory of the chip and write to it. An array in on-chip memory
                 (memory space S(1)) does not count, nor does what a slice leaves out of its operand; padding of tiles
                 is not included. `logits_gb` are those of arrays as large as the attention logits of all heads
    collectives  instructions and megabytes of operands, in loops (of one turn) and outside; asynchronous ones among all
    peak_gb      arguments, temporaries and results
    limit        the part of the chip that would be busy longest if all ran at their peaks

None of this is a time. PYTHONPATH=TREE compiles another version of this project.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import siglip_peers
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from program_costs import Costs
from run_all import clip_spec
from siglip_peers import TOKENS, VOCABULARY, rows_on, shapes_on

from rococo_jax.cli.train import _LIBTPU_WITHOUT_CHIPS
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import programs
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec, VisionSpec, fused_attention
from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.runtime import AXES, device_array
from rococo_jax.training.plan import asynchronous_collectives, collectives_of, topology_devices

# libtpu reads them when it is loaded.
for variable, value in _LIBTPU_WITHOUT_CHIPS.items():
    os.environ.setdefault(variable, value)
END_OF_TEXT = 49_407


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published peaks of a chip, per second: products in bfloat16, bytes of its memory, and other operations."""

    products: float
    memory: float
    vector: float


def _tpu(products: float, memory: float, matrix_cells: int) -> Chip:
    """Return a TPU whose 8 x 128 vector lanes start four operations a cycle, an upper bound.

    The cycle follows from the matrix units (v5e: four of 128 x 128, v6e: two of 256 x 256).
    """
    return Chip(products, memory, products / (2 * matrix_cells) * 8 * 128 * 4)


# https://cloud.google.com/tpu/docs/v5e and .../v6e; NVIDIA H100 data sheet, SXM: bfloat16 without sparsity, float32.
CHIPS = {"v5e": _tpu(197e12, 819e9, 4 * 128**2), "v6e": _tpu(918e12, 1638e9, 2 * 256**2),
         "h100": Chip(989e12, 3350e9, 67e12)}  # fmt: skip


def siglip(layers: int, width: int = 768, side: int = 224) -> ModelSpec:
    """Return the spec of a SigLIP B/16 with this number of layers, width of the image tower and side of an image."""
    shape = {"layers": layers, "activation": "gelu_tanh", "norm_eps": 1e-6}
    vision = VisionSpec(
        image_size=side, patch_size=16, class_token=False, patch_bias=True, norm_before_blocks=False,
        layer_scale=False, pooling="attention", width=width, heads=width // 64, mlp_width=4 * width, **shape,
    )  # fmt: skip
    text = TextSpec(
        VOCABULARY, TOKENS, width=768, heads=12, mlp_width=3072, **shape, attention="full", norm_after_blocks=False,
        pooling="last",
    )  # fmt: skip
    return ModelSpec(vision, text, HeadSpec(), HeadSpec("linear", width, bias=True), logit_bias=True)


def training_step(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the step of `rococo train`."""
    from rococo_jax.training.config import default_config
    from rococo_jax.training.step import lower_step

    config = default_config()
    config.batch_size, config.fsdp = arguments.pairs * mesh.size, arguments.fsdp
    config.micro_batches, config.remat, config.dtype = arguments.micro_batches, arguments.remat, arguments.dtype
    config.unroll = arguments.unroll
    config.losses.contrastive.kind = "sigmoid"
    for name in filter(None, arguments.losses.split(",")):
        config.losses[name].weight = 1.0
    config.gradient_dtype = arguments.gradient_dtype
    spec = siglip(arguments.layers, arguments.width, arguments.side)
    if arguments.splash_from:
        fused_attention.SplashAttention = functools.partial(fused_attention.SplashAttention, arguments.splash_from)
    return lower_step(config, spec, _preprocessing(arguments.side), mesh, TOKENS)


def gradients(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the sum over devices of a step's gradients, alone."""
    from rococo_jax.checkpoints.parameters import parameter_shapes
    from rococo_jax.models.fsdp import copy_parameters

    shapes = parameter_shapes(siglip(arguments.layers))
    copies = {path: rows_on(mesh, (mesh.size, *shape), jnp.float32) for path, shape in shapes.items()}

    def total(copies):
        parameters = {path: jnp.zeros(shape) for path, shape in shapes.items()}
        _, backward = jax.vjp(lambda each: copy_parameters(each, mesh, arguments.gradient_dtype), parameters)
        return backward(copies)

    return jax.jit(total).lower(copies)


def _preprocessing(side: int) -> Preprocessing:
    return Preprocessing(shortest_edge=side, crop_size=(side, side), mean=(0.5,) * 3, std=(0.5,) * 3)


def images(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the image tower of evaluations, with as many images as it takes at once."""
    spec, graph, state, products = _encoder(arguments, mesh)
    rows = programs.images_at_once(spec, "tpu") * mesh.size
    pixels = rows_on(mesh, (rows, arguments.side, arguments.side, 3), jnp.uint8)
    return programs.image_features.lower(mesh, graph, _preprocessing(arguments.side), products, state, pixels)


def texts(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the text tower of evaluations, for captions of 13 or 14 tokens."""
    spec, graph, state, products = _encoder(arguments, mesh)
    length = programs.bucket_length(13, spec.text.context_length)
    shape = (programs.text_tokens_at_once(spec, "tpu") // length * mesh.size, length)
    ids, mask = rows_on(mesh, shape, jnp.int32), rows_on(mesh, shape, jnp.bool_)
    return programs.text_features.lower(mesh, graph, products, state, ids, mask)


def influence(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the text tower over a tree of tokens on each device."""
    from rococo_jax.perturb.text import shared_prefix

    _, graph, state, _ = _encoder(arguments, mesh)
    texts = [[number, END_OF_TEXT] for number in range(64)]
    tree = next(shared_prefix.build_prefix_trees(texts, shared_prefix._ACCELERATOR_TOKENS, 77))
    arrays = [rows_on(mesh, (mesh.size, *array.shape), array.dtype) for array in tree[:-1]]
    return shared_prefix.embed_trees.lower(graph, state, *arrays)


def ranks(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the ranking of 25,000 texts by 5,000 images: one tile of the gallery with the query tiles of a device."""
    from rococo_jax.similarity import counting
    from rococo_jax.similarity.ranks import tile_shape

    size, items = tile_shape("tpu")
    tiles = -(-25_000 // size // mesh.size) * mesh.size
    queries = counting.Queries(np.zeros((tiles, size, 512), np.float32), np.zeros((tiles, size), np.int32))
    item = np.zeros(items, np.int32)
    gallery = counting.GalleryTile(np.zeros((items, 512), np.float32), item, item, item > 0, np.bool_(0))
    counts = jax.eval_shape(lambda: counting.no_counts(tiles, size))
    counts, queries, work = shapes_on((counts, queries, np.zeros(tiles, np.int32)), mesh, PartitionSpec(AXES))
    return counting.compiled_step(mesh).lower(counts, queries, shapes_on(gallery, mesh, PartitionSpec()), work)


def mixing(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower the mixing of the images of a training batch, in groups of eight."""
    from rococo_jax.perturb.images.mixing import Mixing, mix_batch

    pixels = rows_on(mesh, (arguments.pairs * mesh.size, arguments.side, arguments.side, 3), jnp.uint8)
    key = shapes_on(jax.eval_shape(lambda: jax.random.key(0)), mesh, PartitionSpec())
    return jax.jit(lambda images, key: mix_batch(images, key, Mixing(group=8), mesh)).lower(pixels, key)


def corruption(arguments: argparse.Namespace, mesh: Mesh) -> jax.stages.Lowered:
    """Lower a corruption of severity 3: the images that a device corrupts at once."""
    from rococo_jax.perturb.images import corruptions

    at_a_time = corruptions._AT_A_TIME_ON_ACCELERATORS
    rows = 2 * at_a_time * mesh.size
    pixels, ids = (
        rows_on(mesh, (rows, arguments.side, arguments.side, 3), jnp.uint8),
        rows_on(mesh, (rows,), jnp.uint32),
    )
    key = shapes_on(jax.eval_shape(lambda: jax.random.key(0)), mesh, PartitionSpec())
    turns = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return corruptions._program(arguments.kind, 3, at_a_time, mesh).lower(pixels, key, ids, turns)


def _encoder(arguments: argparse.Namespace, mesh: Mesh) -> tuple[ModelSpec, Any, Any, Any]:
    """Return a CLIP B/16 as an evaluation runs it: spec, graph, shapes of the state, and the precision of products."""
    precision = {"float32": "high"}.get(arguments.dtype, arguments.dtype)
    spec = clip_spec("b16", END_OF_TEXT)
    graph, state = abstract_model(spec, arguments.dtype)
    products = programs.Compute(precision).products_on(mesh.devices.flat[0])
    return spec, graph, shapes_on(state, mesh, PartitionSpec()), products


def numbers_of(compiled: jax.stages.Compiled, chip: Chip, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the numbers of a compiled program."""
    program = compiled.as_text()
    costs, sizes = Costs(program), compiled.memory_analysis()
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        (arguments.keep / f"{arguments.program}.hlo").write_text(program)
        for name, size in costs.bytes_by_array.most_common(30):
            print(f"{size / 1e9:8.2f} GB  {name}", file=sys.stderr)
    collectives = collectives_of(program)
    inside = [row for name, row in collectives.items() if "loop" in name]
    outside = [row for name, row in collectives.items() if "loop" not in name]
    counts = [
        {"count": sum(row["instructions"] for row in rows), "mb": round(sum(row["bytes"] for row in rows) / 1e6, 1)}
        for rows in (inside, outside)
    ]
    peak = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
    peak += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    logits = sum(size for name, size in costs.bytes_by_array.items() if _is_of_logits(name, arguments))
    limit, relative = limit_of(costs, chip)
    return {
        "tflop": round(costs.flops / 1e12, 4),
        "vector_gop": round(costs.vector / 1e9, 2),
        "gb": round(costs.bytes / 1e9, 3),
        "logits_gb": round(logits / 1e9, 2),
        "temporaries_gb": round(sizes.temp_size_in_bytes / 1e9, 3),
        "collectives_in_loops": counts[0],
        "collectives_outside": counts[1],
        "asynchronous": asynchronous_collectives(program),
        "peak_gb": round(peak / 1e9, 3),
        "limit": limit,
        "others_of_limit": relative,
    }


def _is_of_logits(array: str, arguments: argparse.Namespace) -> bool:
    """Return whether an array has the size of the image tower's attention logits: pairs x heads x patches x patches."""
    lengths = re.findall(r"\d+", array.partition("[")[2])
    return math.prod(map(int, lengths)) == arguments.pairs * 12 * ((arguments.side // 16) ** 2) ** 2


def limit_of(costs: Costs, chip: Chip) -> tuple[str, dict[str, float]]:
    """Return which part of the chip would be busy longest at its peak, and how busy the others would be beside it."""
    busy = {
        "matrix units": costs.flops / chip.products,
        "memory": costs.bytes / chip.memory,
        "vector unit": costs.vector / chip.vector,
    }
    limit = max(busy, key=busy.get)
    return limit, {name: round(value / busy[limit], 2) for name, value in busy.items() if name != limit}


PROGRAMS = {
    "step": training_step, "gradients": gradients, "big_vision": siglip_peers.big_vision_step,
    "jimm": siglip_peers.jimm_step, "images": images,
    "texts": texts, "influence": influence, "ranks": ranks, "mixing": mixing, "corruption": corruption,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--source", help="git directory of big_vision or jimm")
    parser.add_argument("--topology", default="v5e:2x2", help="as v5e:4x4, v6e:2x2, h100:8")
    parser.add_argument("--pairs", type=int, default=128, help="pairs a device (default: 128)")
    parser.add_argument("--layers", type=int, default=12, help="layers of both towers (default: 12)")
    parser.add_argument("--width", type=int, default=768, help="of the image tower of `step` (default: 768)")
    parser.add_argument("--side", type=int, default=224, help="pixels of an image's side (default: 224)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the towers")
    parser.add_argument("--remat", default="full", help="none, dots or full (default: full)")
    parser.add_argument("--unroll", action="store_true", help="compile every layer of `step` by itself")
    parser.add_argument("--splash-from", type=int, metavar="TOKENS", help="use splash attention from so many tokens on")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--fsdp", type=int, default=1)
    parser.add_argument("--losses", default="", help="further losses of the step: sc,vc,grounding")
    parser.add_argument("--gradient-dtype", default="float32", help="of gradients that are sent")
    parser.add_argument("--kind", default="gaussian_noise", help="kind of corruption")
    parser.add_argument("--options", default="", help="compiler options, NAME=VALUE,...")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the program, print the arrays that move most")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # only compilers are needed, so no device is started
    mesh = Mesh(device_array(topology_devices(arguments.topology), arguments.fsdp), AXES)
    options = dict(option.split("=") for option in arguments.options.split(",") if option)
    options = {name: {"true": True, "false": False}.get(value, value) for name, value in options.items()}
    compiled = PROGRAMS[arguments.program](arguments, mesh).compile(compiler_options=options or None)
    print(json.dumps(numbers_of(compiled, CHIPS[arguments.topology.partition(":")[0]], arguments)))


if __name__ == "__main__":
    main()
