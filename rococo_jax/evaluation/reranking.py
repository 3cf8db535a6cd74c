"""The best of every query, judged anew by the model's matching head: BLIP's published evaluation (arXiv 2201.12086,
section 5.1, and `train_retrieval.py` of its code, where K is 256 on COCO and 128 on Flickr30K).

    among the K best by cosine     s = matching logit + cosine
    all others                     s = cosine - 100, hence after them, in the order of their cosines

What ties with the K-th is judged, too, so that the order of a gallery decides nothing. (The published code gives all
others -100, so that a positive among them has an arbitrary rank there.)

Pairs are chosen from the embeddings alone. A pair that several tasks ask for is judged once, and so are the tokens of
an image worked out: images are taken in turn, each with all its pairs, and forgotten. Logits are kept in the cache of
embeddings, one file a part of images; a run that is stopped goes on after the last whole part.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rococo_jax.benchmarks.tasks import IMAGE_TO_TEXT, RankBenchmark, RankTask
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import encoding_versions
from rococo_jax.evaluation.image_parts import ImagePart, image_parts
from rococo_jax.evaluation.results import Outcome
from rococo_jax.evaluation.shared_ranking import joined
from rococo_jax.processes import broadcast_from_process_0, gather
from rococo_jax.progress import progress
from rococo_jax.similarity import rank_statistics_of_matrix
from rococo_jax.similarity.statistics import RankStatistics

# Below every sum of a logit and a cosine; where a logit is lower than any trained head says, further down.
_BELOW = 100.0
_QUERIES_AT_ONCE = 128
# A matrix product has the same bits in every column only where none is in a remainder.
_COLUMNS = 512


@dataclasses.dataclass(frozen=True, eq=False)
class PairScores:
    """Matching logits of pairs.

    Attributes:
        pairs: image row x number of captions + caption row, ascending.
        logits: of each.
        captions: how many there are.
    """

    pairs: Int[np.ndarray, " pairs"]
    logits: Float[np.ndarray, " pairs"]
    captions: int

    def of(self, images: Int[np.ndarray, "..."], captions: Int[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The logits of pairs that are among them."""
        return self.logits[np.searchsorted(self.pairs, images * self.captions + captions)]


def rerank_on_all_processes(
    benchmark: RankBenchmark,
    image_embeddings: Float[np.ndarray, "images width"],
    caption_embeddings: Float[np.ndarray, "captions width"],
    count: int,
    encoder: Encoder,
    files: tuple[Sequence[Path], Sequence[str]],
    cache: EmbeddingCache,
) -> list[Outcome]:
    """Ranks every task with the `count` best of each query judged by the matching head.

    All processes must ask for the same; each judges a share of the images. Memory beside the embeddings: some 30 bytes
    a pair, and the tokens of one part of images (`encoder.images_at_once`), 1.8 MB each for BLIP-base at 384 pixels.

    Args:
        benchmark: the tasks.
        image_embeddings, caption_embeddings: unit vectors of its tables.
        count: gallery items of a query that are judged, all of a smaller gallery.
        encoder: a model with a matching head.
        files: paths of the benchmark's images, and their SHA-256.
        cache: where logits are kept.

    Raises:
        InputError: the model has no matching head, or an image cannot be read.
    """
    encoder.require_matching()
    tables = image_embeddings, caption_embeddings
    pairs = broadcast_from_process_0("choosing pairs", lambda: pairs_to_judge(benchmark, *tables, count))
    scores = _judge(benchmark, pairs, encoder, files, cache)
    statistics = broadcast_from_process_0("ranking", lambda: rank_by_scores(benchmark, *tables, count, scores))
    return list(zip(benchmark.tasks, statistics, strict=True))


def pairs_to_judge(
    benchmark: RankBenchmark,
    image_embeddings: Float[np.ndarray, "images width"],
    caption_embeddings: Float[np.ndarray, "captions width"],
    count: int,
) -> Int[np.ndarray, " pairs"]:
    """What some query has among its `count` best, as in `PairScores`."""
    pairs = np.empty(0, np.int64)
    with progress("choosing pairs", sum(len(task.queries) for task in benchmark.tasks), "queries") as advance:
        for task in benchmark.tasks:
            found = [pairs]
            for queries, cosines in _cosines(task, image_embeddings, caption_embeddings):
                rows, items = np.nonzero(_best(cosines, count))
                images, captions = _pair(task, queries.start + rows, items)
                found.append(np.unique(images * len(caption_embeddings) + captions))
                advance(len(cosines))
            pairs = np.unique(np.concatenate(found))
    return pairs


def rank_by_scores(
    benchmark: RankBenchmark,
    image_embeddings: Float[np.ndarray, "images width"],
    caption_embeddings: Float[np.ndarray, "captions width"],
    count: int,
    scores: PairScores,
) -> list[RankStatistics]:
    """The ranks of every task, from the logits of all pairs that it needs."""
    statistics = []
    with progress("ranking", sum(len(task.queries) for task in benchmark.tasks), "queries") as advance:
        for task in benchmark.tasks:
            parts = []
            for queries, cosines in _cosines(task, image_embeddings, caption_embeddings):
                judged = _best(cosines, count)
                rows, items = np.nonzero(judged)
                logits = np.zeros(cosines.shape)
                logits[rows, items] = scores.of(*_pair(task, queries.start + rows, items))
                parts.append(
                    rank_statistics_of_matrix(
                        reranked(cosines, logits, judged),
                        query_group=task.query_group[queries],
                        gallery_group=task.gallery_group,
                        gallery_altered=task.gallery_altered,
                        source="matching logits",
                    )
                )
                advance(len(cosines))
            statistics.append(joined(parts))
    return statistics


def reranked(
    cosines: Float[np.ndarray, "queries gallery"],
    logits: Float[np.ndarray, "queries gallery"],
    judged: Bool[np.ndarray, "queries gallery"],
) -> Float[np.ndarray, "queries gallery"]:
    """The scores by which a gallery is ranked; see the head of this file.

    >>> cosines, judged = np.array([[0.5, 0.25, 0.75, 0.0]]), np.array([[True, False, True, False]])
    >>> reranked(cosines, np.array([[3.0, 0.0, -2.0, 0.0]]), judged).tolist()
    [[3.5, -99.75, -1.25, -100.0]]
    """
    sums = cosines.astype(np.float64) + logits
    lowest = np.where(judged, sums, np.inf).min(axis=1, keepdims=True)
    below = np.maximum(_BELOW, 2 - lowest)
    return np.where(judged, sums, cosines - below)


def _best(cosines: Float[np.ndarray, "queries gallery"], count: int) -> Bool[np.ndarray, "queries gallery"]:
    """The `count` highest of each row, and what ties with the last of them."""
    place = max(cosines.shape[1] - count, 0)
    return cosines >= np.partition(cosines, place, axis=1)[:, place : place + 1]


def _pair(task: RankTask, queries: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Image rows and caption rows of a task's queries and gallery items."""
    of_query, of_item = task.queries[queries], task.gallery[items]
    return (of_query, of_item) if task.name == IMAGE_TO_TEXT else (of_item, of_query)


def _cosines(
    task: RankTask, images: np.ndarray, captions: np.ndarray
) -> Iterator[tuple[slice, Float[np.ndarray, "queries gallery"]]]:
    """Cosines of some queries with the whole gallery, in turn. Items of one row have the same bits."""
    table, gallery = (images, captions) if task.name == IMAGE_TO_TEXT else (captions, images)
    rows, place = np.unique(task.gallery, return_inverse=True)
    columns = jnp.asarray(np.pad(gallery[rows], ((0, -len(rows) % _COLUMNS), (0, 0))))
    for start in range(0, len(task.queries), _QUERIES_AT_ONCE):
        queries = slice(start, min(start + _QUERIES_AT_ONCE, len(task.queries)))
        vectors = table[task.queries[queries]]
        padded = np.pad(vectors, ((0, _QUERIES_AT_ONCE - len(vectors)), (0, 0)))
        yield queries, np.asarray(_products(padded, columns))[: len(vectors), place]


@jax.jit
def _products(queries: Float[Array, "queries width"], gallery: Float[Array, "gallery width"]) -> Array:
    return jnp.dot(queries, gallery.T, precision=jax.lax.Precision.HIGHEST)


def _judge(
    benchmark: RankBenchmark,
    pairs: np.ndarray,
    encoder: Encoder,
    files: tuple[Sequence[Path], Sequence[str]],
    cache: EmbeddingCache,
) -> PairScores:
    """The logits of all pairs: each process takes every N-th part of the images."""
    captions = len(benchmark.captions)
    wanted = np.zeros(len(benchmark.images) * (1 + len(benchmark.derived)), bool)
    wanted[pairs // captions] = True
    at_once = broadcast_from_process_0("images at once", lambda: encoder.images_at_once)
    parts = list(image_parts(benchmark, *files, encoder.preprocessing, wanted, at_once))

    def judge() -> list[np.ndarray]:
        mine = [(part, pairs[_places(pairs, part, captions)]) for part in parts[process::processes]]
        with progress(f"{encoder.name}: matching", sum(len(each) for _, each in mine), "pairs") as advance:
            return [_judge_part(part, each, benchmark.captions, encoder, cache, advance) for part, each in mine]

    process, processes = jax.process_index(), jax.process_count()
    logits = np.empty(len(pairs), np.float32)
    for number, judged in enumerate(gather("matching", judge)):
        for part, of_part in zip(parts[number::processes], judged, strict=True):
            logits[_places(pairs, part, captions)] = of_part
    return PairScores(pairs, logits, captions)


def _places(pairs: np.ndarray, part: ImagePart, captions: int) -> np.ndarray:
    """Where the pairs of a part's images stand, image by image in its order."""
    begins = np.searchsorted(pairs, part.rows * captions)
    ends = np.searchsorted(pairs, (part.rows + 1) * captions)
    return np.concatenate([np.arange(*ends_of) for ends_of in zip(begins, ends, strict=True)])


def _judge_part(
    part: ImagePart, pairs: np.ndarray, captions: Sequence[str], encoder: Encoder, cache: EmbeddingCache, advance
) -> np.ndarray:
    rows, of_pair = np.divmod(pairs, len(captions))
    by_row = np.argsort(part.rows)
    image = by_row[np.searchsorted(part.rows[by_row], rows)]
    texts, text = np.unique(of_pair, return_inverse=True)
    texts = [captions[row] for row in texts]
    about = {"kind": "matching logits", "model": encoder.describe_matching(), "versions": encoding_versions()}
    places = np.stack([image, text]).astype("<i8").tobytes()
    key = cache.key(about, [*part.contents, *(text.encode() for text in texts), places])
    kept = cache.get(key)
    if kept is None or kept.shape != pairs.shape:
        tokens = encoder.image_tokens(part.read())
        kept = encoder.matching_logits(tokens, texts, (image, text), advance)[:, 1]
        cache.put(key, kept)
    else:
        advance(len(pairs))
    return kept
