"""Estimates the time and disk of a run before it starts.

    seconds = images x (time to read one, measured on a few) + operations / (a share of a measured rate)

Operations are those of the towers (`models.flops`) and of ranking, 2 x queries x gallery x dimensions. The rate is
that of a bare matrix product on this machine, timed now; towers are taken to reach `TOWER_SHARE` of it. Compilation,
and what the cache of embeddings holds already, are not counted.
"""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.encoders.matching import TEXTS
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import RESULTS
from rococo_jax.models.flops import image_flops, matching_flops, text_flops
from rococo_jax.models.spec import ModelSpec
from rococo_jax.storage import read_json

# A tower of usual width beside the bare product on two CPU cores; on accelerators rather less.
TOWER_SHARE = 0.6
# Tokens of a caption by its words: CLIP's tokenizer makes 13.4 of COCO's 10.5 words, ends included, and the length
# buckets pad that to 14.5.
_TOKENS_A_WORD, _TOKENS_BESIDE = 1.19, 2
# A row of per_query.parquet on disk, ranks, scores and dictionary-coded texts: 35 to 60 bytes on COCO's captions.
_BYTES_A_QUERY = 60
_FLOAT = 4
_TIMED_IMAGES = 8


@dataclasses.dataclass(frozen=True)
class Work:
    """Amount of work, the same for every model.

    Attributes:
        images: to be read and embedded, altered ones included.
        texts: distinct captions.
        tokens: of a text, as it is padded.
        queries: over all tasks.
        pairs: queries times gallery items, over all tasks.
        judged: of these, how many the matching head is asked for; fewer where tasks share them.
    """

    images: int
    texts: int
    tokens: int
    queries: int
    pairs: int
    judged: int = 0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Time and disk that one model is expected to take."""

    seconds: float
    bytes: int


def work_of(benchmarks: Sequence[Benchmark], rerank: int = 0) -> Work:
    """Count the work of benchmarks for any model, with the best `rerank` of each query judged by its matching head."""
    texts = {text for benchmark in benchmarks for text in benchmark.texts}
    words = statistics.fmean(len(text.split()) for text in texts) if texts else 0.0
    sizes = [task.queries_and_pairs for benchmark in benchmarks for task in benchmark.tasks]
    return Work(
        images=sum(len(images) for benchmark in benchmarks for images in benchmark.image_sets.values()),
        texts=len(texts),
        tokens=round(words * _TOKENS_A_WORD) + _TOKENS_BESIDE,
        queries=sum(queries for queries, _ in sizes),
        pairs=sum(pairs for _, pairs in sizes),
        judged=sum(min(queries * rerank, pairs) for queries, pairs in sizes),
    )


def estimate(
    folders: Mapping[str, Path], benchmarks: Sequence[Benchmark], rerank: int = 0, compute: Compute | None = None
) -> list[str]:
    """Estimate an evaluation of models into folders, as lines to print; models with results there cost nothing.

    Raises InputError: an image among the few that are timed is not whole, or a model that is known already has no
    matching head to rerank with.
    """
    work, compute = work_of(benchmarks, rerank), compute or Compute()
    waiting = [source for source, folder in folders.items() if not (folder / RESULTS).exists()]
    specs = [spec_before_loading(source) for source in waiting]
    for source, known in zip(waiting, specs, strict=True):
        if rerank and known is not None and known[0].matching is None:
            raise InputError(source, "matching head", "none", "one to rerank with, such as BLIP's for retrieval")
    paths = [path for benchmark in benchmarks for path in getattr(benchmark.image_sets.get(ORIGINALS), "paths", ())]
    rate, image_seconds = measured_rate(compute), measured_image_seconds(paths)
    costs = [known and cost_of(known[0], work, rate, image_seconds, known[1]) for known in specs]
    return estimate_lines(costs, len(folders) - len(waiting), work, rate, image_seconds, compute)


def cost_of(spec: ModelSpec, work: Work, rate: float, image_seconds: float, fixed_length: int | None = None) -> Cost:
    """The estimate for one model; a missing tower costs nothing here and is found out when the model is used.

    Args:
        spec: of the model.
        work: what there is to do.
        rate: floating-point operations a second of a bare product.
        image_seconds: to read an image.
        fixed_length: the one length to which the tokenizer pads every text, if it does.
    """
    images = work.images * image_flops(spec) if spec.vision is not None else 0
    tokens = min(fixed_length or work.tokens, spec.text.context_length) if spec.text is not None else 0
    texts = work.texts * text_flops(spec, tokens) if spec.text is not None else 0
    if work.judged and spec.matching is not None:
        images *= 2  # once for the vectors, once for the tokens
        texts += work.judged * matching_flops(spec, tokens, TEXTS) // TEXTS
    seconds = (images + texts) / (TOWER_SHARE * rate) + 2 * work.pairs * spec.dim / rate + work.images * image_seconds
    widths = [(work.images, spec.vision), (work.texts, spec.text)]
    size = sum(count * tower.features * _FLOAT for count, tower in widths if tower is not None)
    return Cost(seconds, size + work.queries * _BYTES_A_QUERY)


def measured_rate(compute: Compute) -> float:
    """Operations a second of a matrix product as the towers compute it, over all devices: the best of three, after one
    that compiles.
    """
    devices = jax.devices()
    on_cpu = devices[0].platform == "cpu"
    side = 1024 if on_cpu else 8192
    product = jax.jit(partial(jnp.dot, precision=compute.products_on(devices[0])))
    matrix = jax.device_put(jnp.ones((side, side), compute.dtype), devices[0])
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    # Virtual CPU devices share the cores that one of them uses alone.
    return 2 * side**3 / min(seconds) * (1 if on_cpu else len(devices))


def measured_image_seconds(paths: Sequence[Path]) -> float:
    """Seconds to read one image, the median over a few of them. Raises InputError: one of them is no whole image."""
    from rococo_jax.data.pictures import as_rgb, open_image

    seconds = []
    for path in paths[:: max(1, len(paths) // _TIMED_IMAGES)][:_TIMED_IMAGES]:
        start = time.perf_counter()
        as_rgb(open_image(path))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) if seconds else 0.0


def spec_before_loading(source: str) -> tuple[ModelSpec, int | None] | None:
    """Spec and fixed text length of a model directory, or spec of a local Hugging Face folder, without its weights.

    None for what only loading can tell, broken models included: they are reported when their turn comes.
    """
    from rococo_jax.checkpoints.families import spec_from_config
    from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description

    try:
        folder = demo_folder(source) or Path(source)
        if (folder / MODEL_FILE).is_file():
            spec, description = read_description(folder)
            return spec, (description["tokenizer"] or {}).get("fixed_length")
        if (folder / "config.json").is_file():
            path = folder / "config.json"
            return spec_from_config(read_json(path, "a config"), path, ()), None
    except (InputError, ValueError, OSError):
        pass
    return None


def estimate_lines(
    costs: Sequence[Cost | None],
    done: int,
    work: Work,
    rate: float,
    image_seconds: float,
    compute: Compute | None = None,
) -> list[str]:
    """Format the estimate that is printed before a run.

    Args:
        costs: one a model that is still to be done; None where nothing is known before loading.
        done: models that have results already.
        work, rate, image_seconds: as in `cost_of`.
        compute: how the towers compute.
    """
    known = [cost for cost in costs if cost is not None]
    lines = [f"{done} model(s) have results here; they are checked and kept"] if done else []
    if not known:
        return lines + ([f"estimate: none for {len(costs)} model(s) of unknown size"] if costs else [])
    # Where a size is not known, the mean of the others stands in.
    scale = len(costs) / len(known)
    seconds, size = scale * sum(cost.seconds for cost in known), scale * sum(cost.bytes for cost in known)
    unknown = len(costs) - len(known)
    guessed = f"; {unknown} of unknown size taken as the mean of the others" if unknown else ""
    return [
        *lines,
        f"estimate: {duration(seconds)} and {size / 1e6:,.1f} MB of disk for {len(costs)} model(s), "
        f"{work.images:,} images and {work.texts:,} captions each, {(compute or Compute()).summary()}{guessed}",
        f"  from {TOWER_SHARE:.0%} of {rate / 1e9:,.0f} GFLOP/s (a matrix product, timed now) and "
        f"{1e3 * image_seconds:.1f} ms an image; compiling not counted, nor what the cache saves",
    ]


def duration(seconds: float) -> str:
    """A time for people, in two places at most.

    >>> duration(0.4), duration(42.0), duration(754.0), duration(7500.0)
    ('under a second', '42 s', '13 min', '2 h 5 min')
    """
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
