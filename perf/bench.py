"""Measure the throughput of a model and of the kernels on the available devices; print one JSON object.

    python perf/bench.py                                                    the demo's model
    python perf/bench.py models/clip-b32 --what images,text --dtype bfloat16
    python perf/bench.py models/clip-b32 --what train --batch 512 --dtype bfloat16
    python perf/bench.py --what ranks --ranks 100000x500000

Each measurement calls the code that the commands call, on random inputs of the model's sizes: once to compile it, then
repeatedly until its time is over (at least three times). The median call counts. Operations are computed from the spec
(`rococo_jax/models/flops.py`), so rematerialisation and padding do not count as work:

    images, text    a forward pass of the tower and its head
    influence       the texts that a plain loop would encode, without shared prefixes: useful work, not work done
    ranks           2 N M d
    loss            8 B^2 d: one product forward, three backward (the logits are not kept)
    train           `training.program.step_flops`: three forward passes of what is trained, one of the rest
"""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import measuring
import numpy as np

from rococo_jax.encoders import Encoder, load_model
from rococo_jax.errors import InputError
from rococo_jax.losses import Embeddings, softmax_contrastive
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.runtime import enable_compilation_cache
from rococo_jax.similarity import ShardedLogits, rank_statistics
from rococo_jax.training.config import default_config
from rococo_jax.training.inputs.batches import text_length
from rococo_jax.training.program import peak_flops, step_bytes, step_flops
from rococo_jax.training.step import lower_step
from rococo_jax.version import __version__

_WORDS = "a man woman dog red small house stands near the old tree with two birds on its green roof".split()
_MIN_CALLS = 3
_WIDTH = 512


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one call.

    Attributes:
        unit: name of the items, in the plural.
        items: number of items in a call.
        flops: operations of a call on all devices together.
        call: does the work and returns its result, on the host or on the devices.
        memory: bytes that the program needs on one device, None if unknown.
        details: further entries of the result.
    """

    unit: str
    items: int
    flops: float
    call: Callable[[], Any]
    memory: int | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Size of a call. None means as much as the encoder takes in one step, or a size that suits the platform."""

    images: int | None = None
    captions: int | None = None
    ranks: tuple[int, int] | None = None
    pairs: int | None = None
    batch: int | None = None

    @classmethod
    def of_platform(cls, platform: str) -> "Sizes":
        """Return the defaults: about a second of work in each call."""
        if platform == "cpu":
            return cls(captions=256, ranks=(2_000, 20_000), pairs=2_048, batch=32)
        return cls(captions=4_096, ranks=(100_000, 500_000), pairs=32_768, batch=1_024)


def images_work(encoder: Encoder, sizes: Sizes) -> Work:
    rows = sizes.images or encoder.images_at_once
    side = encoder.spec.vision.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (rows, side, side, 3), np.uint8)
    return Work("images", rows, float(rows * image_flops(encoder.spec)), lambda: encoder.encode_image(pixels))


def random_captions(count: int) -> list[str]:
    """Return different captions of 8 to 14 words, the length of COCO's."""
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(_WORDS, rng.integers(8, 15))) for _ in range(count)]


def total_text_flops(encoder: Encoder, texts: list[str]) -> tuple[float, int]:
    """Return the operations and the tokens of encoding each text once, without padding."""
    token_counts = [len(ids) for ids in encoder.tokenizer.encode(texts)]
    return float(sum(text_flops(encoder.spec, count) for count in token_counts)), sum(token_counts)


def text_work(encoder: Encoder, sizes: Sizes) -> Work:
    captions = random_captions(sizes.captions)
    flops, tokens = total_text_flops(encoder, captions)
    return Work("captions", len(captions), flops, lambda: encoder.encode_text(captions), details={"tokens": tokens})


def influence_work(encoder: Encoder, sizes: Sizes) -> Work:
    captions = random_captions(sizes.captions)
    split_captions = [caption.split() for caption in captions]
    shortened = [
        " ".join(words[:index] + words[index + 1 :]) for words in split_captions for index in range(len(words))
    ]
    flops, _ = total_text_flops(encoder, [*captions, *shortened])
    details = {"words": len(shortened)}
    return Work("captions", len(captions), flops, lambda: list(word_influence(encoder, captions)), details=details)


def ranks_work(encoder: Encoder, sizes: Sizes) -> Work:
    queries, gallery_items = sizes.ranks
    query = measuring.unit_vectors(queries, _WIDTH, 0)
    gallery = measuring.unit_vectors(gallery_items, _WIDTH, 1)
    columns = {
        "query_group": np.arange(queries),
        "gallery_group": np.arange(gallery_items) % queries,
        "gallery_altered": np.arange(gallery_items) >= max(queries, gallery_items // 2),
    }

    def call():
        return rank_statistics(query, gallery, **columns, mesh=encoder.mesh)

    details = {"queries": queries, "gallery": gallery_items, "width": _WIDTH}
    similarities = queries * gallery_items
    return Work("similarities", similarities, 2.0 * similarities * _WIDTH, call, details=details)


def loss_work(encoder: Encoder, sizes: Sizes) -> Work:
    mesh = encoder.mesh
    pairs = sizes.pairs + -sizes.pairs % mesh.size
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
    images, texts = (jax.device_put(measuring.unit_vectors(pairs, _WIDTH, seed), rows) for seed in (0, 1))
    scale = jax.device_put(jnp.float32(100), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

    def loss(images, texts, scale):
        return softmax_contrastive(Embeddings(images, texts, jnp.arange(pairs), scale), ShardedLogits(mesh))

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(images, texts, scale).compile()
    flops = 8.0 * pairs**2 * _WIDTH
    return Work("pairs", pairs, flops, lambda: step(images, texts, scale), step_bytes(step), {"width": _WIDTH})


def train_work(encoder: Encoder, sizes: Sizes) -> Work:
    """Run a plain contrastive step on zeros: the values do not change the time."""
    config = default_config()
    config.batch_size, config.dtype = sizes.batch, str(jnp.dtype(encoder.model.dtype))
    requested = 0 if encoder.tokenizer.spec.fixed_length else min(32, encoder.spec.text.context_length)
    tokens = text_length(requested, encoder)
    lowered = lower_step(config, encoder.spec, encoder.preprocessing, encoder.mesh, tokens)
    step = lowered.compile()
    shapes = lowered.in_tree.unflatten([*jax.tree.leaves(lowered.in_avals)])[0]
    state, frozen, batch = jax.tree.map(
        lambda shape, sharding: jax.device_put(np.zeros(shape.shape, shape.dtype), sharding),
        shapes,
        step.input_shardings[0],
    )

    def call():
        nonlocal state  # the step donates its state, so each call continues from the last one's
        state, metrics = step(state, frozen, batch)
        return metrics

    flops = step_flops(config, encoder.spec, tokens, encoder.preprocessing)
    details = {"dtype": config.dtype, "text_length": tokens}
    return Work("pairs", config.batch_size, flops, call, step_bytes(step), details)


MEASUREMENTS: dict[str, Callable[[Encoder, Sizes], Work]] = {
    "images": images_work,
    "text": text_work,
    "influence": influence_work,
    "ranks": ranks_work,
    "loss": loss_work,
    "train": train_work,
}
_REQUIRED_TOWERS = {
    "images": ("vision",), "text": ("text",), "influence": ("text",), "train": ("vision", "text"),
}  # fmt: skip


def bench(encoder: Encoder, what: str, sizes: Sizes, seconds: float = 5.0) -> dict[str, Any]:
    """Run one measurement.

    Args:
        encoder: the model; `ranks` and `loss` use only its mesh.
        what: a key of `MEASUREMENTS`.
        sizes: size of a call.
        seconds: time for the calls; at least three are made.

    Returns:
        `unit`, `items_per_second`, `seconds` (a call, the median), `rounds`, `first_call_seconds` (with compilation),
        `flops_per_second`, `share_of_peak` and `peak_flops` (None on CPUs, which have no published peak),
        `share_of_product` (of the speed of one large product of the same precision on these devices in this run),
        `memory_bytes_per_device` if the compiler reports it.

    Raises:
        InputError: the model lacks a tower that the measurement needs.
    """
    for side in _REQUIRED_TOWERS.get(what, ()):
        if getattr(encoder.spec, side) is None:
            raise InputError(encoder.name, side, "no such tower", f"a model with one, to measure {what}")
    work = MEASUREMENTS[what](encoder, sizes)
    first, calls = seconds_of(work.call), []
    while len(calls) < _MIN_CALLS or sum(calls) < seconds:
        calls.append(seconds_of(work.call))
    median = statistics.median(calls)
    device = encoder.mesh.devices.flat[0]
    towers_in_bfloat16 = what in _REQUIRED_TOWERS and encoder.model.dtype == jnp.bfloat16
    product = product_flops(device, "bfloat16" if towers_in_bfloat16 else "float32") * encoder.mesh.size
    peak = peak_flops(device)
    return {
        "what": what,
        "unit": work.unit,
        "items_per_second": work.items / median,
        "items": work.items,
        "seconds": median,
        "rounds": len(calls),
        "first_call_seconds": first,
        "flops_per_second": work.flops / median,
        "peak_flops": peak and peak * encoder.mesh.size,
        "share_of_peak": peak and work.flops / median / (peak * encoder.mesh.size),
        "share_of_product": work.flops / median / product,
        "memory_bytes_per_device": work.memory,
        **work.details,
    }


def product_flops(device: jax.Device, dtype: str) -> float:
    """Return the operations per second of one large product on a device: float32 at highest precision, or bfloat16."""
    size = 1024 if device.platform == "cpu" else 8192
    operand = jax.device_put(jnp.ones((size, size), dtype), device)
    precision = jax.lax.Precision.HIGHEST if dtype == "float32" else jax.lax.Precision.DEFAULT
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision, preferred_element_type=jnp.float32).sum())
    seconds_of(lambda: product(operand, operand))
    return 2.0 * size**3 / min(seconds_of(lambda: product(operand, operand)) for _ in range(5))


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def size_of_ranks(text: str) -> tuple[int, int]:
    """Parse NxM: the numbers of queries and of gallery items."""
    queries, items = map(int, text.split("x"))
    if not 1 <= queries <= items:
        raise ValueError
    return queries, items


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("model", nargs="?", default="demo:plain", help="model directory, Hugging Face folder, hub name")
    parser.add_argument("--what", default=",".join(MEASUREMENTS), help="names of measurements, separated by commas")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the towers")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each measurement, without compilation")
    parser.add_argument("--images", type=int, help="images in a call (default: one step of the encoder)")
    parser.add_argument("--captions", type=int, help="captions in a call of text and influence")
    parser.add_argument("--ranks", type=size_of_ranks, metavar="NxM", help="queries and gallery items of ranks")
    parser.add_argument("--pairs", type=int, help="global batch of loss")
    parser.add_argument("--batch", type=int, help="global batch of train")
    arguments = parser.parse_args()
    names = arguments.what.split(",")
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        parser.error(f"--what: no measurement {unknown[0]!r}; known are {', '.join(MEASUREMENTS)}")
    enable_compilation_cache()
    encoder = load_model(arguments.model, dtype=arguments.dtype)
    device = jax.devices()[0]
    sizes = Sizes.of_platform(device.platform)
    requested = {name: value for name, value in vars(arguments).items() if hasattr(sizes, name) and value is not None}
    sizes = dataclasses.replace(sizes, **requested)
    report = {
        "model": encoder.name,
        "dtype": arguments.dtype,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "rococo_jax": __version__,
        "measurements": {name: bench(encoder, name, sizes, arguments.seconds) for name in names},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
