"""Reranks the best of every query by the model's matching head: BLIP's published evaluation (arXiv 2201.12086,
section 5.1, and `train_retrieval.py` of its code, where K is 256 on COCO and 128 on Flickr30K).

    among the K best by cosine     s = matching logit + cosine
    all others                     s = cosine - 100, hence after them, in the order of their cosines

Items that tie with the K-th are judged too, so the order of a gallery does not matter. (The published code gives all
others -100, so that a positive among them has an arbitrary rank there.)

Pairs are chosen from the embeddings alone. A pair that several tasks ask for is judged once, and the
tokens of an image are computed once: images are taken in turn, each with all its pairs. Logits are cached with the
embeddings, one file a run of images; a stopped evaluation continues after the last whole file.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import Embeddings, Rows
from rococo_jax.benchmarks.tasks import Outcome, RankTask
from rococo_jax.benchmarks.tasks.rank import RankOutcome
from rococo_jax.data.images import ImageSet
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import encoding_versions
from rococo_jax.errors import InputError
from rococo_jax.processes import broadcast_from_process_0, gather
from rococo_jax.progress import progress
from rococo_jax.similarity import RankStatistics, rank_statistics_of_matrix, score_blocks, top_k_mask

# Below every sum of a logit and a cosine; where a logit is lower than any trained head says, further down.
_BELOW = 100.0


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
    benchmark: Benchmark, embeddings: Embeddings, count: int, encoder: Encoder, cache: EmbeddingCache
) -> list[Outcome]:
    """Ranks every task with the `count` best of each query judged by the matching head.

    All processes must ask for the same; each judges a share of the images. Memory beside the embeddings: some 30 bytes
    a pair, and the tokens of one part of images (`encoder.images_at_once`), 1.8 MB each for BLIP-base at 384 pixels.

    Args:
        benchmark: the tasks, all of them rank tasks.
        embeddings: unit vectors of its tables.
        count: gallery items of a query that are judged, all of a smaller gallery.
        encoder: a model with a matching head.
        cache: where logits are kept.

    Raises:
        InputError: the model has no matching head, a task cannot be reranked, or an image cannot be read.
    """
    encoder.require_matching()
    if not all(task.is_ranking for task in benchmark.tasks):
        raise InputError(benchmark.name, "rerank", "tasks that are no ranking", "rank tasks, such as RoCOCO's")
    tables = PairTables(benchmark, embeddings)
    pairs = broadcast_from_process_0("choosing pairs", lambda: pairs_to_judge(benchmark.tasks, tables, count))
    scores = _judge(tables, pairs, encoder, cache)
    return broadcast_from_process_0("ranking", lambda: rank_by_scores(benchmark.tasks, tables, count, scores))


class PairTables:
    """Rows of all image sets under one numbering, so that a pair of an image and a caption is one number."""

    def __init__(self, benchmark: Benchmark, embeddings: Embeddings):
        self.benchmark, self.embeddings = benchmark, embeddings
        self.captions = len(benchmark.texts)
        sizes = [len(images) for images in benchmark.image_sets.values()]
        self.first = dict(zip(benchmark.image_sets, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self.images = sum(sizes)

    def numbers(self, rows: Rows) -> Int[np.ndarray, " rows"]:
        """The number of each row: of an image among all sets, of a caption its index."""
        return np.concatenate([self.first.get(name, 0) + index for name, index in rows.parts])

    def pair(self, task: RankTask, queries: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Image numbers and caption numbers of a task's queries and gallery items."""
        of_query, of_item = self.numbers(task.queries)[queries], self.numbers(task.gallery)[items]
        return (of_query, of_item) if task.asks_for_texts else (of_item, of_query)

    def cosines(self, task: RankTask) -> Iterator[tuple[slice, Float[np.ndarray, "queries gallery"]]]:
        """Cosines of some queries with the whole gallery, in turn. Items of one row have the same bits."""
        (table, query_rows), (gallery, gallery_rows) = map(self.embeddings.select, (task.queries, task.gallery))
        return score_blocks(table, gallery, query_rows=query_rows, gallery_rows=gallery_rows)


def pairs_to_judge(tasks: Sequence[RankTask], tables: PairTables, count: int) -> Int[np.ndarray, " pairs"]:
    """Pairs that some query has among its `count` best, as in `PairScores`."""
    pairs = np.empty(0, np.int64)
    with progress("choosing pairs", sum(len(task.queries) for task in tasks), "queries") as advance:
        for task in tasks:
            parts = [pairs]
            for queries, cosines in tables.cosines(task):
                rows, items = np.nonzero(top_k_mask(cosines, count))
                images, captions = tables.pair(task, queries.start + rows, items)
                parts.append(np.unique(images * tables.captions + captions))
                advance(len(cosines))
            pairs = np.unique(np.concatenate(parts))
    return pairs


def rank_by_scores(tasks: Sequence[RankTask], tables: PairTables, count: int, scores: PairScores) -> list[RankOutcome]:
    """The outcome of every task, from the logits of all pairs that it needs."""
    outcomes = []
    with progress("ranking", sum(len(task.queries) for task in tasks), "queries") as advance:
        for task in tasks:
            parts = []
            for queries, cosines in tables.cosines(task):
                judged = top_k_mask(cosines, count)
                rows, items = np.nonzero(judged)
                logits = np.zeros(cosines.shape)
                logits[rows, items] = scores.of(*tables.pair(task, queries.start + rows, items))
                ranked = rank_statistics_of_matrix(
                    reranked(cosines, logits, judged),
                    query_group=task.query_group[queries],
                    gallery_group=task.gallery_group,
                    gallery_altered=task.gallery_altered,
                    source="matching logits",
                )
                parts.append(ranked)
                advance(len(cosines))
            # Most pairs of an image and a text are not judged, so there are no differences and no probabilities.
            outcomes.append(RankOutcome(task, RankStatistics.concatenate(parts)))
    return outcomes


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


@dataclasses.dataclass(frozen=True, eq=False)
class _ImageRun:
    """Some images of one set: their numbers in `PairTables`, and the set with its rows."""

    numbers: Int[np.ndarray, " images"]
    images: ImageSet
    rows: list[int]


def _runs(tables: PairTables, wanted: Bool[np.ndarray, " images"], at_once: int) -> list[_ImageRun]:
    """The wanted images of all sets, about `at_once` in a run."""
    runs = []
    for name, images in tables.benchmark.image_sets.items():
        for run in images.runs(at_once):
            rows = [row for row in run if wanted[tables.first[name] + row]]
            if rows:
                runs.append(_ImageRun(tables.first[name] + np.array(rows), images, rows))
    return runs


def _judge(tables: PairTables, pairs: np.ndarray, encoder: Encoder, cache: EmbeddingCache) -> PairScores:
    """The logits of all pairs: each process takes every N-th run of images."""
    wanted = np.zeros(tables.images, bool)
    wanted[pairs // tables.captions] = True
    at_once = broadcast_from_process_0("images at once", lambda: encoder.images_at_once)
    runs, texts = _runs(tables, wanted, at_once), tables.benchmark.texts

    def judge() -> list[np.ndarray]:
        mine = [(run, pairs[_places(pairs, run, tables.captions)]) for run in runs[process::processes]]
        with progress(f"{encoder.name}: matching", sum(len(each) for _, each in mine), "pairs") as advance:
            return [_judge_run(run, each, texts, encoder, cache, advance) for run, each in mine]

    process, processes = jax.process_index(), jax.process_count()
    logits = np.empty(len(pairs), np.float32)
    for number, judged in enumerate(gather("matching", judge)):
        for run, of_run in zip(runs[number::processes], judged, strict=True):
            logits[_places(pairs, run, tables.captions)] = of_run
    return PairScores(pairs, logits, tables.captions)


def _places(pairs: np.ndarray, run: _ImageRun, captions: int) -> np.ndarray:
    """Places of the pairs of a run's images, image by image in its order."""
    begins = np.searchsorted(pairs, run.numbers * captions)
    ends = np.searchsorted(pairs, (run.numbers + 1) * captions)
    return np.concatenate([np.arange(*ends_of) for ends_of in zip(begins, ends, strict=True)])


def _judge_run(
    run: _ImageRun, pairs: np.ndarray, captions: Sequence[str], encoder: Encoder, cache: EmbeddingCache, advance
) -> np.ndarray:
    rows, of_pair = np.divmod(pairs, len(captions))
    by_row = np.argsort(run.numbers)
    image = by_row[np.searchsorted(run.numbers[by_row], rows)]
    texts, text = np.unique(of_pair, return_inverse=True)
    texts = [captions[row] for row in texts]
    model = [encoder.fingerprint(), encoder.weights_sha256]
    about = {"kind": "matching logits", "model": model, "versions": encoding_versions()}
    places = np.stack([image, text]).astype("<i8").tobytes()
    key = cache.key(about, [*map(run.images.content, run.rows), *(text.encode() for text in texts), places])
    logits = cache.get(key)
    if logits is None or logits.shape != pairs.shape:
        tokens = encoder.image_tokens(run.images.read(run.rows, encoder.prepare))
        logits = encoder.matching_logits(tokens, texts, (image, text), advance)[:, 1]
        cache.put(key, logits)
    else:
        advance(len(pairs))
    return logits
