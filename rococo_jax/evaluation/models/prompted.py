"""A model that is told what a query and what a document is: two encoders of one object, by the role of each side.

A ranking of texts asks with images, a ranking of images with texts; a choice among texts and a class ask with the
image, all other choices with the text.
"""

from collections.abc import Sequence
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import Loading, embed_benchmark, identity_of, score_tasks


class PromptedModel(EncoderModel):
    """Vectors under prompts, by role; a role without one is encoded as the model does by itself."""

    def __init__(self, encoder: LoadedModel, prompts: dict[str, str]):
        under = {role: encoder.with_prompt(prompt, role) for role, prompt in prompts.items()}
        super().__init__(under.get("query", encoder))
        self.document, self.prompts = under.get("document", encoder), prompts
        self.notes = [f"{role} prompt: {prompt!r}" for role, prompt in prompts.items()]

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the embeddings of both roles."""
        query, document = identity_of(self.encoder, self.document)
        return {**query, "document": document, "prompts": self.prompts}

    def check(self, benchmarks: Sequence[Benchmark], settings: Settings) -> None:
        """Raises InputError: settings ask for reranking."""
        if settings.rerank:
            raise InputError(self.name, "rerank", "prompts for vectors", "one of them, or by='pairs'")

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcome of each of a benchmark's tasks; each table is embedded in the roles that tasks need."""
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
    """Open what has vectors under prompts. Raises InputError: it takes none."""
    prompts = loading.options.prompts
    return PromptedModel(loading.loaded, prompts) if prompts else None
