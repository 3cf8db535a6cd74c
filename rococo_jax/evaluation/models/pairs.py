"""Scorer of pairs as a model: choices and classes by the pairs of their items, rankings in two stages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import Embeds, ScoresPairs
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.model import (
    Loading,
    Model,
    embed_benchmark,
    identity_of,
    no_pairs,
    without_truncated_twins,
)
from rococo_jax.evaluation.pairs import Candidates, outcomes_by_pairs
from rococo_jax.progress import say

# Largest number of pairs of a gallery, or of images and classes, that are scored without candidates.
MOST_PAIRS = 2_000_000


class PairModel(Model):
    """Model that is scored pair by pair.

    Args:
        scorer: scores image-text pairs.
        candidates: encoder whose embeddings choose `Settings.rerank` items of a gallery to score.
        needs_count: whether candidates were requested, so that `Settings.rerank` is required.
    """

    def __init__(self, scorer: ScoresPairs, candidates: Embeds | None = None, needs_count: bool = False):
        self.scorer, self.candidates, self.needs_count, self.name = scorer, candidates, needs_count, scorer.name
        self.training_images = scorer.training_images
        self.notes = []

    def describe(self) -> dict[str, Any]:
        """Return everything that decides a score and the choice of candidates."""
        if self.candidates is None:
            return {**identity_of(self.scorer)[0], "asked": "by pairs"}
        scorer, candidates = identity_of(self.scorer, self.candidates)
        return {**scorer, "asked": "by pairs", "candidates": candidates}

    def facts(self) -> dict[str, Any]:
        """Return facts about the scorer."""
        return self.scorer.facts()

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Check the number of pairs and print its upper bound.

        Raises InputError: candidates without their number or vice versa, more than `MOST_PAIRS` pairs without
        candidates, or a text that the scorer cannot read.
        """
        if settings.rerank and self.candidates is None:
            expected = "a model whose embeddings choose the gallery items to score"
            raise InputError(self.name, "candidates", "none", expected)
        if self.needs_count and not settings.rerank:
            raise InputError(self.name, "rerank", 0, "the number of candidates to score for each query")
        check_count(self.name, benchmarks, settings.rerank)
        for each in benchmarks:
            self.scorer.check_texts(each.texts)
        count, tasks = 0, [task for each in benchmarks for task in with_images(self.name, each).tasks]
        for task in tasks:
            queries, pairs = task.queries_and_pairs
            if task.is_ranking and settings.rerank:
                pairs = min(pairs, queries * settings.rerank)
            elif (task.is_ranking or task.has_classes) and pairs > MOST_PAIRS:
                expected = f"at most {MOST_PAIRS:,}; " + (
                    "candidates and rerank, to score only the K best of each query"
                    if task.is_ranking
                    else "fewer classes or templates (templates=1), or limit"
                )
                raise InputError(self.name, f"pairs of {task.name}, {task.variant}", f"{pairs:,}", expected)
            count += pairs
        say(f"{self.name}: scoring at most {count:,} image-text pairs, each distinct pair once")

    def adapt_benchmark(self, benchmark: Benchmark) -> Benchmark:
        """Return the benchmark without text-only items and without altered texts whose tokens equal their originals'.

        Raises InputError: no task remains.
        """
        return without_truncated_twins(self.scorer.token_rows, with_images(self.name, benchmark))

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks."""
        candidates = None
        if settings.rerank and any(task.is_ranking for task in benchmark.tasks):
            candidates = Candidates(
                embed_benchmark(self.candidates, self.candidates, benchmark, cache), settings.rerank
            )
            count = f"{settings.rerank} candidates for every query"
            self.notes.append(f"rankings: {self.candidates.name} chooses {count} by cosine similarity")
        outcomes = outcomes_by_pairs(benchmark, self.scorer, cache, candidates)
        if not any(outcome.left_out for outcome in outcomes):  # its note says the same
            self.notes.append("scored pair by pair: a score for each image with each text, no embeddings")
        return outcomes


def check_count(name: str, benchmarks: Sequence[Benchmark], count: int) -> None:
    """Raise InputError if there are more candidates than items in every gallery."""
    galleries = [len(task.gallery) for each in benchmarks for task in each.tasks if task.is_ranking]
    if galleries and count > max(galleries):
        raise InputError(name, "rerank", count, f"at most {max(galleries)}, the largest gallery")


def with_images(name: str, benchmark: Benchmark) -> Benchmark:
    """Return the benchmark without text-only items, which a note names. Raises InputError: no task remains."""
    tasks = tuple(task for task in benchmark.tasks if task.has_images)
    if not tasks:
        raise InputError(
            name, benchmark.name, "only tasks without images", "a model with embeddings of texts, or other tasks"
        )
    text_only = sorted({f"{task.name}, {task.variant}" for task in benchmark.tasks if not task.has_images})
    note = [f"not evaluated, because the model has no text embeddings: {'; '.join(text_only)}"] if text_only else []
    return dataclasses.replace(benchmark, tasks=tasks, notes=(*benchmark.notes, *note))


def open_pairs(source: Any, loading: Loading) -> PairModel | None:
    """Open a model that is scored pair by pair. Raises InputError: it scores no pairs, or takes no prompt."""
    if not loading.by_pairs:
        return None
    loaded, candidates = loading.loaded, loading.candidates
    if (scorer := loaded.pair_scorer) is None:
        raise no_pairs(loaded.name)
    for role, prompt in loading.options.prompts.items():
        scorer = scorer.with_prompt(prompt, role)
    return PairModel(scorer, candidates or loaded.embedder, candidates is not None)
