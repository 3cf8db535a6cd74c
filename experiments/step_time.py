"""Predict time, model FLOPs use and memory of a training step on GPUs, kernel by kernel, without running it.

    python experiments/step_time.py                                      32,768 pairs of B/16 with SC and VC, 8 H100
    python experiments/step_time.py --attention einsum --remat full --micro-batches 16
    python experiments/step_time.py --fused-gelu

A block of width w over N tokens, forward, a token:

    products        24 w^2 operations at `PRODUCTS` of the bfloat16 peak
    attention       4 N w operations; fused: at `ATTENTION` of the peak; einsum: at `PRODUCTS`, and 12 bytes a weight
                    (float32 logits written and read, bfloat16 weights written and read)
    the rest        16 w elements of two bytes read and written: two norms with their residual sums (4 w each) and the
                    activation (8 w; 0 where the compiler puts it into the product)

The backward pass takes twice as long, einsum attention 28 bytes a weight. `remat=full` runs a forward pass again,
"dots" what is no product; micro-batches run one more (gradient cache). Losses: three pairs of tables in float32.
Parameters are gathered and gradients scattered once a pass and micro-batch (`experiments/scaling.py`), without overlap.
The shares are assumptions, stated in the constants; the memory is counted from shapes (`training/memory.py`).
"""

import argparse
import json
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import scaling

PRODUCTS, ATTENTION, BANDWIDTH, FLOAT32, LINKS = 0.70, 0.30, 0.85, 0.80, 0.80
BYTES_PER_SECOND = 3.35e12  # HBM3 of an H100 SXM; data sheet
CHIP = "H100 SXM"


def tower_seconds(spec, tokens: int, attention: str, fused_gelu: bool) -> dict[str, float]:
    """Seconds of a row through the blocks of a tower: forward, backward, and the forward pass without its products."""
    peak = scaling.CHIPS[CHIP][0]
    width, rows = spec.width, tokens * spec.layers
    products = rows * 24 * width**2 / (peak * PRODUCTS)
    rest = rows * (8 if fused_gelu else 16) * width * 2 / (BYTES_PER_SECOND * BANDWIDTH)
    weights = rows * tokens * spec.heads / (BYTES_PER_SECOND * BANDWIDTH)
    operations = rows * 4 * tokens * width / peak
    share = ATTENTION if attention == "fused" else PRODUCTS
    attend, back = operations / share, 2 * operations / share
    if attention == "einsum":
        attend, back = attend + 12 * weights, back + 28 * weights
    return {
        "forward": products + rest + attend,
        "backward": 2 * products + 2 * rest + back,
        "again_without_products": rest + attend,
    }


def predict(model: str, batch: int, devices: int, attention: str, remat: str, parts: int, fused_gelu: bool) -> dict:
    """The step with one altered caption and one mixed image a pair."""
    from rococo_jax.training.throughput import step_flops

    spec, config = scaling.spec_of(model), scaling.config_of(batch, devices)
    config.micro_batches, config.remat = parts, remat
    peak, float32_peak, memory, links = scaling.CHIPS[CHIP]
    pairs = batch // devices
    seconds = {"forward passes": 0.0, "backward passes": 0.0, "passes again": 0.0}
    for tower, tokens in ((spec.vision, spec.vision.grid**2 + 1), (spec.text, scaling.TOKENS)):
        of_row = tower_seconds(tower, tokens, attention, fused_gelu)
        again = {"none": 0.0, "full": of_row["forward"], "dots": of_row["again_without_products"]}[remat]
        seconds["forward passes"] += 2 * pairs * of_row["forward"]
        seconds["backward passes"] += 2 * pairs * of_row["backward"]
        seconds["passes again"] += 2 * pairs * (again + (parts > 1) * of_row["forward"])
    seconds["losses"] = scaling.loss_flops(batch, spec.vision_head.dim) / devices / (float32_peak * FLOAT32)
    seconds["links"] = sum(scaling.cost_model(model, batch, devices, parts)["sent"].values()) / (links * LINKS)
    step = sum(seconds.values())
    return {
        "attention": attention, "remat": remat, "micro_batches": parts, "fused_gelu": fused_gelu,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "step": round(step, 3),
        "mfu": round(step_flops(config, spec, scaling.TOKENS).model / devices / peak / step, 3),
        "gigabytes": round(held(config, spec, devices) / 1e9, 1), "of": memory / 1e9,
    }  # fmt: skip


def held(config, spec, devices: int) -> int:
    """Bytes that a device holds: state, gradients, batch, what the backward pass keeps, and a block of logits."""
    import jax
    import jax.numpy as jnp

    from rococo_jax.checkpoints.parameters import parameter_shapes
    from rococo_jax.data.preprocessing import Preprocessing
    from rococo_jax.runtime import make_mesh
    from rococo_jax.training.memory import Estimate
    from rococo_jax.training.optimizer import make_optimizer
    from rococo_jax.training.state import state_shapes

    mesh = make_mesh(jax.devices()[:devices], fsdp=config.fsdp)
    shapes = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in parameter_shapes(spec).items()}
    state = state_shapes(shapes, make_optimizer(config.optimizer, config.steps, spec, shapes), mesh, averaged=False)
    preprocessing = Preprocessing(shortest_edge=224, crop_size=(224, 224), mean=(0.5,) * 3, std=(0.25,) * 3)
    return Estimate(config, spec, preprocessing, scaling.TOKENS, state, {}, mesh)(config.micro_batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="b16", choices=scaling.MODELS)
    parser.add_argument("--batch", type=int, default=32768)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--attention", default="fused", choices=("einsum", "fused"))
    parser.add_argument("--remat", default="full", choices=("none", "dots", "full"))
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--fused-gelu", action="store_true", help="the activation costs no memory traffic of its own")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"
    print(json.dumps(predict(options.model, options.batch, options.devices, options.attention, options.remat,
                             options.micro_batches, options.fused_gelu)))  # fmt: skip


if __name__ == "__main__":
    main()
