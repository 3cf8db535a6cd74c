"""Embeds a benchmark's tables, and scores its tasks on all processes together.

Every process has all embeddings, and scores a share of every task's queries on its own devices. A query's statistics do
not depend on the other queries, to the last bit, so the joined outcome is that of one process alone. Only statistics
are exchanged, some 72 bytes a query.
"""

from collections.abc import Sequence
from typing import Any

import jax

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.benchmarks.tasks import Outcome, Task
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts, images_ahead
from rococo_jax.encoders.protocol import FeatureEncoder
from rococo_jax.errors import InputError
from rococo_jax.processes import gather
from rococo_jax.runtime import make_mesh


def embed_benchmark(encoder: FeatureEncoder, benchmark: Benchmark, cache: EmbeddingCache) -> Embeddings:
    """Unit vectors of every row of every table.

    Raises:
        InputError: the encoder lacks a tower, an image cannot be read, or images and texts have different widths.
    """
    with images_ahead(encoder, list(benchmark.image_sets.values()), cache) as images:
        tables = {TEXTS: embed_texts(encoder, benchmark.texts, cache)}
        tables |= zip(benchmark.image_sets, images(), strict=True)
    widths = {name: vectors.shape[1] for name, vectors in tables.items()}
    if len(set(widths.values())) > 1:
        images, texts = next(width for name, width in widths.items() if name != TEXTS), widths[TEXTS]
        found = f"{images} of an image and {texts} of a text"
        raise InputError(encoder.name, "width of the vectors", found, "one width for both")
    return Embeddings(tables, logit_scale=encoder.logit_scale)


def score_tasks(tasks: Sequence[Task], embeddings: Embeddings, mesh: jax.sharding.Mesh) -> list[Outcome]:
    """The outcome of every task; all processes must ask for the same; each scores on its devices.

    Raises:
        InputError: as `Task.score`, on all processes.
    """
    mesh = make_mesh(jax.local_devices()) if mesh.is_multi_process else mesh
    process, count = jax.process_index(), jax.process_count()
    if count == 1:
        return [task.score(embeddings, mesh) for task in tasks]
    shares = [task.split(count)[process] for task in tasks]

    def score() -> list[Any]:
        return [share.score(embeddings, mesh).result if share.queries_and_pairs[0] else None for share in shares]

    of_processes = gather("ranking", score)
    return [
        task.joined([results[place] for results in of_processes if results[place] is not None])
        for place, task in enumerate(tasks)
    ]
