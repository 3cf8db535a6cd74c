"""Score tasks by image-text pairs: each distinct pair once, cached by content, shared between processes.

Choices and classes need exactly the pairs of their items. A ranking has two stages: embeddings choose the K best
candidates of every query, and pair scores rank these. With K = 0 the whole gallery is scored.

    the K best by cosine     s = score, plus the cosine if the scorer's publication adds it (BLIP)
    all other items          s = cosine - 100, so they follow in the order of their cosines

The sum is BLIP's published evaluation (arXiv 2201.12086, section 5.1, and `train_retrieval.py` of its code, where K is
256 on COCO and 128 on Flickr30K). Items that tie with the K-th are scored too, so the order of a gallery does not
matter. (The published code gives all other items -100, so a positive among them has an arbitrary rank there.)

Images are processed one after the other, each with all its pairs. Scores are cached with the embeddings, in chunks of
images; an interrupted evaluation resumes after the last complete chunk.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.pair_scores import ImageNumbers, ListedScores
from rococo_jax.benchmarks.tables import Embeddings
from rococo_jax.benchmarks.tasks import Outcome, RankTask
from rococo_jax.benchmarks.tasks.rank import RankOutcome
from rococo_jax.data.images import ImageSet
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import cache_key
from rococo_jax.encoders.protocol import OnProgress, ScoresPairs
from rococo_jax.processes import broadcast_from_process_0, gather
from rococo_jax.progress import progress
from rococo_jax.similarity import RankStatistics, rank_statistics_of_matrix, score_blocks, top_k_mask

# Below every sum of a score and a cosine; more is subtracted if a score is lower than those of trained heads.
_UNSCORED_OFFSET = 100.0


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """Embeddings that choose the gallery items to score.

    Attributes:
        embeddings: embeddings of a benchmark's tables.
        count: number of gallery items to score for each query; all of a smaller gallery.
    """

    embeddings: Embeddings
    count: int

    def choose(self, task: RankTask, numbers: ImageNumbers) -> Iterator[tuple[slice, np.ndarray, np.ndarray, tuple]]:
        """Yield blocks of queries: their cosines with the whole gallery, a mask of the candidates, and their pairs.

        Items of the same image or text have bit-identical cosines.
        """
        (table, query_rows), (gallery, gallery_rows) = map(self.embeddings.select, (task.queries, task.gallery))
        for queries, cosines in score_blocks(table, gallery, query_rows=query_rows, gallery_rows=gallery_rows):
            is_scored = top_k_mask(cosines, self.count)
            rows, items = np.nonzero(is_scored)
            yield queries, cosines, is_scored, task.pair(numbers, queries.start + rows, items)


def outcomes_by_pairs(
    benchmark: Benchmark,
    scorer: Any,
    cache: EmbeddingCache,
    candidates: Candidates | None = None,
    score: Callable[[ImageNumbers, np.ndarray], np.ndarray] | None = None,
) -> list[Outcome]:
    """Return the outcome of every task from pair scores.

    All processes must pass the same arguments; each scores a share of the images. Besides the embeddings, this needs
    about 30 bytes per pair and the memory of the scorer for `scorer.images_at_once` images.

    Args:
        scorer: scores pairs; with `score`, any object with a name and a scale.
        cache: cache of scores.
        candidates: choose the pairs of rankings; by default all pairs are scored.
        score: function that returns the scores of distinct pairs, in the order of `ListedScores`; by default the
            scorer.

    Raises:
        InputError: a task cannot be scored by pairs, an image cannot be read, or as `scorer.score`.
    """
    of_candidates = [task for task in benchmark.tasks if task.is_ranking and candidates is not None]
    queries = sum(len(task.queries) for task in of_candidates)
    numbers = ImageNumbers({name: len(images) for name, images in benchmark.image_sets.items()})
    texts = len(benchmark.texts)

    def distinct_pairs() -> Int[np.ndarray, " pairs"]:
        required = [task.pairs_asked(numbers) for task in benchmark.tasks if task not in of_candidates]
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *(image * texts + text for image, text in required)]))
        with progress("choosing pairs", queries, "queries") as advance:
            for task in of_candidates:
                parts = [pairs]
                for _, cosines, _, (image, text) in candidates.choose(task, numbers):
                    parts.append(np.unique(image * texts + text))
                    advance(len(cosines))
                pairs = np.unique(np.concatenate(parts))
        return pairs

    def outcomes() -> list[Outcome]:
        with progress("ranking", queries, "queries") as advance:
            return [
                _rank(task, candidates, scores, scorer.adds_cosine, advance)
                if task in of_candidates
                else task.score_by_pairs(scores)
                for task in benchmark.tasks
            ]

    pairs = broadcast_from_process_0("choosing pairs", distinct_pairs)
    values = score(numbers, pairs) if score else _scored(benchmark, numbers, pairs, scorer, cache)
    scores = ListedScores(numbers, pairs, values, texts, scorer.scale, scorer.name)
    return broadcast_from_process_0("ranking", outcomes)


def _rank(
    task: RankTask, candidates: Candidates, scores: ListedScores, adds_cosine: bool, advance: OnProgress
) -> RankOutcome:
    """Return the outcome of a ranking in two stages."""
    parts, has_candidate = [], []
    for queries, cosines, is_scored, pairs in candidates.choose(task, scores.numbers):
        of_pairs = np.zeros(cosines.shape)
        of_pairs[is_scored] = scores.of(*pairs)
        is_positive = (task.query_group[queries, None] == task.gallery_group) & ~task.gallery_altered
        has_candidate.append((is_scored & is_positive).any(axis=1))
        ranked = rank_statistics_of_matrix(
            reranked(cosines, of_pairs, is_scored, adds_cosine),
            query_group=task.query_group[queries],
            gallery_group=task.gallery_group,
            gallery_altered=task.gallery_altered,
            source=scores.source,
        )
        parts.append(ranked)
        advance(len(cosines))
    # Most image-text pairs are not scored, so there are no differences and no probabilities.
    return RankOutcome(task, RankStatistics.concatenate(parts), has_candidate=np.concatenate(has_candidate))


def reranked(
    cosines: Float[np.ndarray, "queries gallery"],
    scores: Float[np.ndarray, "queries gallery"],
    is_scored: Bool[np.ndarray, "queries gallery"],
    adds_cosine: bool = True,
) -> Float[np.ndarray, "queries gallery"]:
    """Return the values by which a gallery is ranked; see the docstring of this module.

    >>> cosines, is_scored = np.array([[0.5, 0.25, 0.75, 0.0]]), np.array([[True, False, True, False]])
    >>> reranked(cosines, np.array([[3.0, 0.0, -2.0, 0.0]]), is_scored).tolist()
    [[3.5, -99.75, -1.25, -100.0]]
    >>> reranked(cosines, np.array([[3.0, 0.0, -2.0, 0.0]]), is_scored, adds_cosine=False).tolist()
    [[3.0, -99.75, -2.0, -100.0]]
    """
    decided = cosines.astype(np.float64) * adds_cosine + scores
    lowest = np.where(is_scored, decided, np.inf).min(axis=1, keepdims=True)
    below = np.maximum(_UNSCORED_OFFSET, 2 - lowest)
    return np.where(is_scored, decided, cosines - below)


class _ImageRun(NamedTuple):
    """Chunk of images of one set: their rows, the places of their pairs among all pairs, and the row of each pair."""

    images: ImageSet
    rows: list[int]
    places: Int[np.ndarray, " pairs"]
    row_of: Int[np.ndarray, " pairs"]


def _runs(
    benchmark: Benchmark, numbers: ImageNumbers, image: Int[np.ndarray, " pairs"], at_once: int
) -> Iterator[_ImageRun]:
    """Yield chunks of about `at_once` images with pairs, for all sets; `image` of each pair is ascending."""
    for name, images in benchmark.image_sets.items():
        for run in images.runs(at_once):
            of_run = numbers.first[name] + np.array(run)
            spans = [np.arange(*np.searchsorted(image, [number, number + 1])) for number in of_run]
            with_pairs = [place for place, span in enumerate(spans) if len(span)]
            if with_pairs:
                row_of = np.repeat(np.arange(len(with_pairs)), [len(spans[place]) for place in with_pairs])
                yield _ImageRun(images, [run[place] for place in with_pairs], np.concatenate(spans), row_of)


def _scored(
    benchmark: Benchmark, numbers: ImageNumbers, pairs: np.ndarray, scorer: ScoresPairs, cache: EmbeddingCache
) -> Float[np.ndarray, " pairs"]:
    """Return the scores of all pairs; each process scores every N-th chunk of images."""
    at_once = broadcast_from_process_0("images at once", lambda: scorer.images_at_once)
    image, text = np.divmod(pairs, max(1, len(benchmark.texts)))
    runs = list(_runs(benchmark, numbers, image, at_once))
    process, processes = jax.process_index(), jax.process_count()
    described = {key: value for key, value in scorer.describe().items() if key != "name"}
    about = cache_key("pair scores in float64", scorer, described)
    cache = EmbeddingCache(None) if described.get("fingerprint", "") is None else cache

    def score() -> list[np.ndarray]:
        mine = runs[process::processes]
        with progress(f"{scorer.name}: scoring pairs", sum(len(run.places) for run in mine), "pairs") as advance:
            return [_score_run(run, text[run.places], benchmark.texts, scorer, cache, about, advance) for run in mine]

    values = np.empty(len(pairs), np.float64)
    for number, of_process in enumerate(gather("scoring pairs", score)):
        for run, of_run in zip(runs[number::processes], of_process, strict=True):
            values[run.places] = of_run
    return values


def _score_run(
    run: _ImageRun,
    text: Int[np.ndarray, " pairs"],
    texts: Sequence[str],
    scorer: ScoresPairs,
    cache: EmbeddingCache,
    about: dict[str, Any],
    advance: OnProgress,
) -> Float[np.ndarray, " pairs"]:
    """Return the scores of the pairs of a chunk of images, from the cache if possible; `about` is part of its key."""
    contents = [run.images.content(row) for row in run.rows]
    places = zip(run.row_of.tolist(), text.tolist(), strict=True)
    items = [contents[one] + b"\0" + texts[other].encode() for one, other in places]
    scores, is_missing = np.empty(len(items), np.float64), np.ones(len(items), bool)
    for rows, values in cache.find(about, items):
        scores[rows], is_missing[rows] = values, False
        advance(len(rows))
    if len(missing := np.flatnonzero(is_missing)):
        images, image = np.unique(run.row_of[missing], return_inverse=True)
        rows, text = np.unique(text[missing], return_inverse=True)
        pictures = run.images.read([run.rows[each] for each in images.tolist()], scorer.prepare)
        scores[missing] = scorer.score(pictures, [texts[row] for row in rows.tolist()], (image, text), advance)
        cache.add(about, [items[each] for each in missing.tolist()], scores[missing])
    return scores
