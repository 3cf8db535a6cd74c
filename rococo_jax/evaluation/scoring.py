"""From embeddings or similarities to outcomes: every task of a benchmark ranked, whoever made the numbers."""

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, RankBenchmark
from rococo_jax.evaluation.results import Outcome
from rococo_jax.similarity import rank_statistics, rank_statistics_of_matrix


def rank_by_embeddings(
    benchmark: RankBenchmark,
    image_embeddings: Float[np.ndarray, "images width"],
    caption_embeddings: Float[np.ndarray, "captions width"],
    *,
    mesh: jax.sharding.Mesh | None = None,
) -> list[Outcome]:
    """Ranks every task of `benchmark`; row `i` of the embeddings is entry `i` of its tables."""
    outcomes = []
    for task in benchmark.tasks:
        tables = (image_embeddings, caption_embeddings)
        queries, gallery = tables if task.name == IMAGE_TO_TEXT else tables[::-1]
        statistics = rank_statistics(
            queries,
            gallery,
            query_rows=task.queries,
            gallery_rows=task.gallery,
            query_group=task.query_group,
            gallery_group=task.gallery_group,
            gallery_altered=task.gallery_altered,
            mesh=mesh,
        )
        outcomes.append((task, statistics))
    return outcomes


def rank_by_similarities(
    benchmark: RankBenchmark, similarities: Float[np.ndarray, "images captions"], source: str = "similarities"
) -> list[Outcome]:
    """The same from a matrix with one row an image and one column a caption of the benchmark's tables."""
    outcomes = []
    for task in benchmark.tasks:
        statistics = rank_statistics_of_matrix(
            similarities if task.name == IMAGE_TO_TEXT else similarities.T,
            query_rows=task.queries,
            gallery_columns=task.gallery,
            query_group=task.query_group,
            gallery_group=task.gallery_group,
            gallery_altered=task.gallery_altered,
            source=source,
        )
        outcomes.append((task, statistics))
    return outcomes
