"""Counts of a run, the disk that it takes, and what can be refused, before it starts.

Disk is that of the cached embeddings and of `per_query.parquet`; what the cache holds already is not counted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.checkpoints.hub import demo_folder
from rococo_jax.encoders.programs import Compute
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.model import no_pairs
from rococo_jax.evaluation.resume import holds
from rococo_jax.models.spec import ModelSpec
from rococo_jax.storage import read_json

# A row of per_query.parquet on disk, ranks, scores and dictionary-coded texts: 35 to 60 bytes on COCO's captions.
_BYTES_A_QUERY = 60
_FLOAT = 4


class Work(NamedTuple):
    """Images to be read and embedded, altered ones included; distinct captions; queries over all tasks."""

    images: int
    texts: int
    queries: int


def work_of(benchmarks: Sequence[Benchmark]) -> Work:
    """Count the work of benchmarks for any model."""
    return Work(
        images=sum(len(images) for benchmark in benchmarks for images in benchmark.image_sets.values()),
        texts=len({text for benchmark in benchmarks for text in benchmark.texts}),
        queries=sum(task.queries_and_pairs[0] for benchmark in benchmarks for task in benchmark.tasks),
    )


def estimate(
    folders: Mapping[str, Path], benchmarks: Sequence[Benchmark], rerank: int = 0, compute: Compute | None = None
) -> list[str]:
    """Lines to print before an evaluation of models into folders; models with results there cost nothing.

    Raises InputError: a model that is known already scores no pairs to rerank with.
    """
    work = work_of(benchmarks)
    waiting = [source for source, folder in folders.items() if not holds(folder, benchmarks)]
    specs = [spec_before_loading(source) for source in waiting]
    for source, spec in zip(waiting, specs, strict=True):
        if rerank and spec is not None and spec.matching is None:
            raise no_pairs(source)
    sizes = [None if spec is None else bytes_of(spec, work) for spec in specs]
    return estimate_lines(sizes, len(folders) - len(waiting), work, compute)


def bytes_of(spec: ModelSpec, work: Work) -> int:
    """Disk that one model takes; a missing tower takes none."""
    widths = [(work.images, spec.vision), (work.texts, spec.text)]
    size = sum(count * tower.features * _FLOAT for count, tower in widths if tower is not None)
    return size + work.queries * _BYTES_A_QUERY


def spec_before_loading(source: str) -> ModelSpec | None:
    """Spec of a model directory or of a local Hugging Face folder, without its weights.

    None for what only loading can tell, broken models included: they are reported when their turn comes.
    """
    from rococo_jax.checkpoints.families import spec_from_config
    from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description

    try:
        folder = demo_folder(source) or Path(source)
        if (folder / MODEL_FILE).is_file():
            return read_description(folder)[0]
        if (folder / "config.json").is_file():
            path = folder / "config.json"
            return spec_from_config(read_json(path, "a config"), path, ())
    except (InputError, ValueError, OSError):
        pass
    return None


def estimate_lines(sizes: Sequence[int | None], done: int, work: Work, compute: Compute | None = None) -> list[str]:
    """Format what is printed before a run.

    Args:
        sizes: bytes of each model that is still to be done; None where nothing is known before loading.
        done: models that have results already.
        work: of each model.
        compute: how the towers compute.
    """
    lines = [f"{done} model(s) have results here; they are checked and kept"] if done else []
    if not sizes:
        return lines
    known = [size for size in sizes if size is not None]
    # Where a size is not known, the mean of the others stands in.
    disk = f", {sum(known) * len(sizes) / len(known) / 1e6:,.1f} MB of disk" if known else ""
    unknown = f"; {len(sizes) - len(known)} of unknown size" if len(known) < len(sizes) else ""
    return [
        *lines,
        f"{len(sizes)} model(s) to do: {work.images:,} images and {work.texts:,} captions each, "
        f"{(compute or Compute()).summary()}{disk}{unknown}",
    ]
