"""Throughput of a model and of the kernels on the devices at hand: items a second, operations, share of the peak.

Each measurement calls the code that the commands call, on random inputs of the model's own sizes, once to compile it
and then in rounds until its time is over; the median round counts. Operations are counted from the spec
(`models/flops.py`), so rematerialisation and padding do not count as work:

    images, text    a forward pass of the tower and its head
    influence       the texts that a plain loop would encode, without shared prefixes: useful work, not work done
    ranks           2 N M d
    loss            8 B^2 d: one product forward, three backward (the logits are not kept)
    train           `training.program.step_flops`: three forward passes of what is trained, one of the rest
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.losses import softmax_contrastive
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.similarity import ShardedLogits, rank_statistics
from rococo_jax.training.config import default_config
from rococo_jax.training.inputs.batches import text_length
from rococo_jax.training.program import peak_flops, step_bytes, step_flops
from rococo_jax.training.step import lower_step

_WORDS = "a man woman dog red small house stands near the old tree with two birds on its green roof".split()
_LEAST_ROUNDS = 3
_WIDTH = 512


@dataclasses.dataclass(frozen=True)
class Work:
    """What one call does.

    Attributes:
        unit: what is counted, in the plural.
        items: how many of them a call takes.
        flops: operations of a call on all devices together.
        call: does the work and returns its result, on the host or on the devices.
        memory: bytes that the program takes on one device, None where it is not known.
        about: further facts for the result.
    """

    unit: str
    items: int
    flops: float
    call: Callable[[], Any]
    memory: int | None = None
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much a call takes. None: as much as the encoder takes in one step, or a size that fits the platform."""

    images: int | None = None
    captions: int | None = None
    ranks: tuple[int, int] | None = None
    pairs: int | None = None
    batch: int | None = None

    @classmethod
    def of_platform(cls, platform: str) -> "Sizes":
        """Defaults: about a second of work a call."""
        if platform == "cpu":
            return cls(captions=256, ranks=(2_000, 20_000), pairs=2_048, batch=32)
        return cls(captions=4_096, ranks=(100_000, 500_000), pairs=32_768, batch=1_024)


def _images(encoder: Encoder, sizes: Sizes) -> Work:
    rows = sizes.images or encoder.images_at_once
    side = encoder.spec.vision.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (rows, side, side, 3), np.uint8)
    return Work("images", rows, float(rows * image_flops(encoder.spec)), lambda: encoder.encode_image(pixels))


def _captions(count: int) -> list[str]:
    """Different captions of 8 to 14 words, as COCO's have."""
    random = np.random.default_rng(0)
    return [" ".join(random.choice(_WORDS, random.integers(8, 15))) for _ in range(count)]


def _text(encoder: Encoder, sizes: Sizes) -> Work:
    captions = _captions(sizes.captions)
    tokens = [len(ids) for ids in encoder.tokenizer.encode(captions)]
    flops = float(sum(text_flops(encoder.spec, count) for count in tokens))
    return Work("captions", len(captions), flops, lambda: encoder.encode_text(captions), about={"tokens": sum(tokens)})


def _influence(encoder: Encoder, sizes: Sizes) -> Work:
    captions = _captions(sizes.captions)
    words = [caption.split() for caption in captions]
    shortened = [" ".join(each[:place] + each[place + 1 :]) for each in words for place in range(len(each))]
    tokens = [len(ids) for ids in encoder.tokenizer.encode([*captions, *shortened])]
    flops = float(sum(text_flops(encoder.spec, count) for count in tokens))
    about = {"words": len(shortened)}
    return Work("captions", len(captions), flops, lambda: list(word_influence(encoder, captions)), about=about)


def _unit_vectors(rows: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, _WIDTH), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _ranks(encoder: Encoder | None, sizes: Sizes, mesh: jax.sharding.Mesh) -> Work:
    queries, items = sizes.ranks
    query, gallery = _unit_vectors(queries, 0), _unit_vectors(items, 1)
    group = np.arange(items) % queries
    altered = np.arange(items) >= max(queries, items // 2)
    known = {"query_group": np.arange(queries), "gallery_group": group, "gallery_altered": altered}
    call = lambda: rank_statistics(query, gallery, **known, mesh=mesh)  # noqa: E731
    about = {"queries": queries, "gallery": items, "width": _WIDTH}
    return Work("similarities", queries * items, 2.0 * queries * items * _WIDTH, call, about=about)


def _loss(encoder: Encoder | None, sizes: Sizes, mesh: jax.sharding.Mesh) -> Work:
    pairs = sizes.pairs + -sizes.pairs % mesh.size
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
    images, texts = (jax.device_put(_unit_vectors(pairs, seed), rows) for seed in (0, 1))
    scale = jax.device_put(jnp.float32(100), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

    def loss(images, texts, scale):
        return softmax_contrastive(images, texts, logit_scale=scale, logits=ShardedLogits(mesh))

    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).lower(images, texts, scale).compile()
    about = {"width": _WIDTH}
    return Work("pairs", pairs, 8.0 * pairs**2 * _WIDTH, lambda: step(images, texts, scale), step_bytes(step), about)


def _train(encoder: Encoder, sizes: Sizes, mesh: jax.sharding.Mesh) -> Work:
    """A plain contrastive step of the model on random pixels and ids, from zeros: values do not change the time."""
    config = default_config()
    config.batch_size, config.dtype = sizes.batch, str(jnp.dtype(encoder.model.dtype))
    tokens = text_length(min(32, encoder.spec.text.context_length), encoder)
    lowered = lower_step(config, encoder.spec, encoder.preprocessing, mesh, tokens)
    step = lowered.compile()
    shapes = lowered.in_tree.unflatten([*jax.tree.leaves(lowered.in_avals)])[0]
    shardings = step.input_shardings[0]
    state, frozen, batch = jax.tree.map(
        lambda shape, sharding: jax.device_put(np.zeros(shape.shape, shape.dtype), sharding), shapes, shardings
    )
    held = [state]

    def call():
        held[0], metrics = step(held[0], frozen, batch)
        return metrics

    flops = step_flops(config, encoder.spec, tokens, encoder.preprocessing)
    about = {"dtype": config.dtype, "text_length": tokens}
    return Work("pairs", config.batch_size, flops, call, step_bytes(step), about)


MEASUREMENTS: dict[str, Callable[..., Work]] = {
    "images": _images,
    "text": _text,
    "influence": _influence,
    "ranks": _ranks,
    "loss": _loss,
    "train": _train,
}
_OVER_MESH = ("ranks", "loss", "train")
_NEEDS = {"images": ("vision",), "text": ("text",), "influence": ("text",), "train": ("vision", "text")}


def bench(encoder: Encoder, what: str, sizes: Sizes, seconds: float = 5.0) -> dict[str, Any]:
    """One measurement.

    Args:
        encoder: the model; `ranks` and `loss` use its mesh alone.
        what: a key of `MEASUREMENTS`.
        sizes: how much a call takes.
        seconds: time for the rounds; at least three are run.

    Returns:
        `unit`, `items_per_second`, `seconds` (a call, the median), `rounds`, `first_call_seconds` (with compilation),
        `flops_per_second`, `share_of_peak` and `peak_flops` (None on CPUs, which have no published peak),
        `share_of_product` (of what one large product of the same precision reaches on these devices in this run),
        `memory_bytes_per_device` where the compiler gives it.

    Raises:
        InputError: the model lacks a tower that the measurement needs.
    """
    for side in _NEEDS.get(what, ()):
        if getattr(encoder.spec, side) is None:
            raise InputError(encoder.name, side, "no such tower", f"a model with one, to measure {what}")
    work = MEASUREMENTS[what](encoder, sizes, *((encoder.mesh,) if what in _OVER_MESH else ()))
    first, rounds = _seconds_of(work.call), []
    while len(rounds) < _LEAST_ROUNDS or sum(rounds) < seconds:
        rounds.append(_seconds_of(work.call))
    median = statistics.median(rounds)
    device = encoder.mesh.devices.flat[0]
    towers_in_bfloat16 = what in _NEEDS and encoder.model.dtype == jnp.bfloat16
    product = product_flops(device, "bfloat16" if towers_in_bfloat16 else "float32") * encoder.mesh.size
    peak = peak_flops(device)
    return {
        "what": what,
        "unit": work.unit,
        "items_per_second": work.items / median,
        "items": work.items,
        "seconds": median,
        "rounds": len(rounds),
        "first_call_seconds": first,
        "flops_per_second": work.flops / median,
        "peak_flops": peak and peak * encoder.mesh.size,
        "share_of_peak": peak and work.flops / median / (peak * encoder.mesh.size),
        "share_of_product": work.flops / median / product,
        "memory_bytes_per_device": work.memory,
        **work.about,
    }


def product_flops(device: jax.Device, dtype: str) -> float:
    """Operations a second of one large product on one device: float32 at the highest precision, or bfloat16."""
    size = 1024 if device.platform == "cpu" else 8192
    operand = jax.device_put(jnp.ones((size, size), dtype), device)
    precision = jax.lax.Precision.HIGHEST if dtype == "float32" else jax.lax.Precision.DEFAULT
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision, preferred_element_type=jnp.float32).sum())
    _seconds_of(lambda: product(operand, operand))
    return 2.0 * size**3 / min(_seconds_of(lambda: product(operand, operand)) for _ in range(5))


def _seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
