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
from rococo_jax.encoders.foreign import ForeignEncoder
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.encoder import EncoderModel
from rococo_jax.evaluation.models.model import embed_benchmark, score_tasks


class PromptedModel(EncoderModel):
    """Vectors under prompts.

    Args:
        query, document: the object as encoder of each role.
        prompts: by role; a role without one is encoded as the object does by itself.
    """

    def __init__(self, query: ForeignEncoder, document: ForeignEncoder, prompts: dict[str, str]):
        super().__init__(query)
        self.document, self.prompts = document, prompts
        self.notes = [f"{role} prompt: {prompt!r}" for role, prompt in prompts.items()]

    def describe(self) -> dict[str, Any]:
        """What decides the vectors of both roles."""
        document = {key: value for key, value in self.document.describe().items() if key != "name"}
        return {**super().describe(), "document": document, "prompts": self.prompts}

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
