"""Model with different prompts for queries and documents: two encoders of one object, one for each role.

The queries are images in rankings of texts, in choices among texts and in classification; in all other tasks they are
texts.
"""

from collections.abc import Sequence
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import Embeds
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import Loading, embed_benchmark, identity_of, score_tasks


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
