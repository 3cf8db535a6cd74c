"""A scorer of pairs as a model: choices and classes by the pairs of their items, rankings in two stages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.model import Loading, Model, as_read_by, embed_benchmark, identity_of, no_pairs
from rococo_jax.evaluation.pairs import Candidates, outcomes_by_pairs
from rococo_jax.progress import say

# Pairs of whole galleries and of classes that are scored without candidates.
MOST_PAIRS = 2_000_000


class PairModel(Model):
    """What is asked by pairs.

    Args:
        scorer: scores pairs.
        candidates: its vectors choose what is scored of a gallery, as many as `Settings.rerank` says.
        needs_count: whether candidates were asked for, so that their number must be.
    """

    def __init__(self, scorer: LoadedModel, candidates: LoadedModel | None = None, needs_count: bool = False):
        self.scorer, self.candidates, self.needs_count, self.name = scorer, candidates, needs_count, scorer.name
        self.training_images = scorer.training_images
        self.notes = ["asked by pairs: scores of each image with each text, no vectors"]

    def describe(self) -> dict[str, Any]:
        """Return everything that decides a score, and what chooses the candidates."""
        if self.candidates is None:
            return {**identity_of(self.scorer)[0], "asked": "by pairs"}
        scorer, candidates = identity_of(self.scorer, self.candidates)
        return {**scorer, "asked": "by pairs", "candidates": candidates}

    def facts(self) -> dict[str, Any]:
        """Facts of the scorer."""
        return self.scorer.facts()

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Say how many pairs there are at most.

        Raises InputError: candidates without their number, or the other way round, more pairs than are scored without
        candidates, or a text that the scorer cannot read.
        """
        if settings.rerank and self.candidates is None:
            wanted = "a model whose vectors choose what is scored of a gallery"
            raise InputError(self.name, "candidates", "none", wanted)
        if self.needs_count and not settings.rerank:
            raise InputError(self.name, "rerank", 0, "how many candidates of each query are scored")
        check_count(self.name, benchmarks, settings.rerank)
        for each in benchmarks:
            self.scorer.check_texts(each.texts)
        count, tasks = 0, [task for each in benchmarks for task in with_images(self.name, each).tasks]
        for task in tasks:
            queries, pairs = task.queries_and_pairs
            if task.is_ranking and settings.rerank:
                pairs = min(pairs, queries * settings.rerank)
            elif (task.is_ranking or task.has_classes) and pairs > MOST_PAIRS:
                wanted = f"at most {MOST_PAIRS:,}; " + (
                    "candidates and rerank to score the K best of each query"
                    if task.is_ranking
                    else "fewer classes or templates (templates=1), or limit"
                )
                raise InputError(self.name, f"pairs of {task.name}, {task.variant}", f"{pairs:,}", wanted)
            count += pairs
        say(f"{self.name}: at most {count:,} pairs of an image and a text, each distinct one scored once")

    def as_read(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark without items of texts alone, and as the scorer reads texts.

        Raises InputError: nothing is left.
        """
        return as_read_by(self.scorer.token_rows, with_images(self.name, benchmark))

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks."""
        candidates = None
        if settings.rerank and any(task.is_ranking for task in benchmark.tasks):
            candidates = Candidates(
                embed_benchmark(self.candidates, self.candidates, benchmark, cache), settings.rerank
            )
            self.notes.append(f"rankings: {self.candidates.name} chooses {settings.rerank} of every query by cosine")
        return outcomes_by_pairs(benchmark, self.scorer, cache, candidates)


def check_count(name: str, benchmarks: Sequence[Benchmark], count: int) -> None:
    """Raises InputError: more candidates than every gallery has."""
    galleries = [len(task.gallery) for each in benchmarks for task in each.tasks if task.is_ranking]
    if galleries and count > max(galleries):
        raise InputError(name, "rerank", count, f"at most {max(galleries)}, the largest gallery")


def with_images(name: str, benchmark: Benchmark) -> Benchmark:
    """The benchmark without items of texts alone, which a note names. Raises InputError: nothing is left."""
    tasks = tuple(task for task in benchmark.tasks if task.has_images)
    if not tasks:
        raise InputError(name, benchmark.name, "texts alone", "a model with vectors of texts, or other tasks")
    alone = sorted({f"{task.name}, {task.variant}" for task in benchmark.tasks if not task.has_images})
    note = [f"not asked, for want of vectors of texts: {'; '.join(alone)}"] if alone else []
    return dataclasses.replace(benchmark, tasks=tasks, notes=(*benchmark.notes, *note))


def open_pairs(source: Any, loading: Loading) -> PairModel | None:
    """Open what is asked by pairs. Raises InputError: it scores none, or takes no prompt."""
    if not loading.by_pairs:
        return None
    loaded, candidates = loading.loaded, loading.candidates
    if (scorer := loaded.pair_scorer) is None:
        raise no_pairs(loaded.name)
    for role, prompt in loading.options.prompts.items():
        scorer = scorer.with_prompt(prompt, role)
    own = loaded if loaded.embeds else None
    return PairModel(scorer, candidates or own, candidates is not None)
