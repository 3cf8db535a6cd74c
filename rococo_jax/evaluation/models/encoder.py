"""Encoder as a model: embed a benchmark's tables once, cached, and score its tasks, or rerank the best candidates.

A `PromptedModel` has different prompts for queries and documents: two encoders of one object, one for each role. The
queries are images in rankings of texts, in choices among texts and in classification; in all other tasks they are
texts.
"""

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.checkpoints.model_directory import MODEL_FILE, read_description
from rococo_jax.checkpoints.zoo import demo_folder
from rococo_jax.data.images import source_files
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import Embeds
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.model import (
    Loading,
    Model,
    embed_benchmark,
    identity_of,
    no_pairs,
    score_tasks,
    without_truncated_twins,
)
from rococo_jax.evaluation.models.pairs import check_count
from rococo_jax.evaluation.pairs import Candidates, outcomes_by_pairs


class EncoderModel(Model):
    """Model with one encoder, of this project or of any other."""

    def __init__(self, encoder: Embeds):
        self.encoder, self.training_images, self.notes = encoder, encoder.training_images, []

    @property
    def name(self) -> str:
        """Name of the encoder."""
        return self.encoder.name

    @name.setter
    def name(self, name: str) -> None:
        self.encoder.name = name

    def describe(self) -> dict[str, Any]:
        """Return everything that decides its embeddings."""
        return identity_of(self.encoder)[0]

    def facts(self) -> dict[str, Any]:
        """Return provenance, size, cost and warnings of the encoder."""
        return self.encoder.facts()

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Check a request for reranking.

        Raises InputError: the model does not score pairs, or a task does not rank a gallery.
        """
        if settings.rerank:
            if self.encoder.pair_scorer is None:
                raise no_pairs(self.name)
            for benchmark in benchmarks:
                if not all(task.is_ranking for task in benchmark.tasks):
                    problem, expected = (
                        "tasks that do not rank a gallery",
                        "rank tasks, such as RoCOCO's, or by='pairs'",
                    )
                    raise InputError(benchmark.name, "rerank", problem, expected)
            check_count(self.name, benchmarks, settings.rerank)

    def adapt_benchmark(self, benchmark: Benchmark) -> Benchmark:
        """Return the benchmark without altered texts that are truncated to the tokens of their originals."""
        return without_truncated_twins(self.encoder.token_rows, benchmark)

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks."""
        embeddings = embed_benchmark(self.encoder, self.encoder, benchmark, cache)
        if settings.rerank:
            method = self.encoder.pair_scorer.score_name
            self.notes = [
                *self.notes,
                f"reranked: the {settings.rerank} best candidates of every query, by the {method}",
            ]
            return outcomes_by_pairs(
                benchmark, self.encoder.pair_scorer, cache, Candidates(embeddings, settings.rerank)
            )
        return score_tasks(benchmark.tasks, embeddings, self.encoder.mesh)


def open_encoder(source: Any, loading: Loading) -> EncoderModel:
    """Open a source with embeddings."""
    model, size = EncoderModel(loading.loaded.require_embedder()), loading.options.image_size
    vision = None if size is None else loading.loaded.spec.vision
    if vision is not None and (border := vision.border_pixels):
        problem = f"{border} of {size} pixels at the right and at the bottom fill no patch and are cut"
        model.notes.append(
            f"image size: {problem}, as in the source libraries; images of {size - border} have no such border"
        )
    return model


def announce_pixels(sources: Sequence[str], benchmarks: Sequence[Benchmark]) -> None:
    """Register the preprocessing of all models, so that each image file is decoded once for all of them.

    Altered images are made once for models with the same preprocessing. Only the preprocessing of model directories is
    known before they are loaded.
    """
    views, models = {}, Counter()
    for source in sources:
        with contextlib.suppress(InputError, OSError):  # reported when the model is evaluated
            path = (demo_folder(source) or Path(source)) / MODEL_FILE
            preprocessing = read_description(path.parent)[1]["preprocessing"] if path.is_file() else None
            if preprocessing:
                view = Preprocessing.from_json(preprocessing, path).pixel_view
                views[view.key] = view
                models[view.key] += 1
    for images in (images for benchmark in benchmarks for images in benchmark.image_sets.values()):
        files = source_files(images)
        for key, view in views.items():
            if files is not None and (images is files or models[key] > 1):
                images.pixel_cache.announce(view)


class PromptedModel(EncoderModel):
    """Embeddings with prompts by role; a role without a prompt is encoded with the model's default."""

    def __init__(self, encoder: Embeds, prompts: dict[str, str]):
        by_role = {role: encoder.with_prompt(prompt, role) for role, prompt in prompts.items()}
        super().__init__(by_role.get("query", encoder))
        self.document, self.prompts = by_role.get("document", encoder), prompts
        self.notes = [f"{role} prompt: {prompt!r}" for role, prompt in prompts.items()]

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the embeddings of both roles."""
        query, document = identity_of(self.encoder, self.document)
        return {**query, "document": document, "prompts": self.prompts}

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Raise InputError if reranking is requested."""
        if settings.rerank:
            raise InputError(self.name, "rerank", "reranking and prompts", "only one of the two, or by='pairs'")

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcome of each of a benchmark's tasks; tables are embedded in the roles that the tasks need."""
        by_place = {}
        for with_images in (True, False):
            places = [place for place, task in enumerate(benchmark.tasks) if task.asks_with_images is with_images]
            if places:
                sides = (self.encoder, self.document) if with_images else (self.document, self.encoder)
                embeddings = embed_benchmark(*sides, benchmark, cache)
                scored = score_tasks([benchmark.tasks[place] for place in places], embeddings, self.encoder.mesh)
                by_place |= zip(places, scored, strict=True)
        return [by_place[place] for place in range(len(benchmark.tasks))]


def open_prompted(source: Any, loading: Loading) -> PromptedModel | None:
    """Open a model with embeddings and prompts. Raises InputError: it takes no prompts."""
    prompts = loading.options.prompts
    return PromptedModel(loading.loaded.require_embedder(), prompts) if prompts else None
