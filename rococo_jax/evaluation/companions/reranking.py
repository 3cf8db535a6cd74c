"""The note on results whose best were judged again by a matching head (`evaluation.reranking`)."""

from collections.abc import Sequence

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.evaluation.companions import Beside, Companion, TrainingCaptions
from rococo_jax.evaluation.models.model import Model


class Reranking(Companion):
    """Adds a note where settings ask for reranking."""

    def beside(
        self,
        model: Model,
        benchmark: Benchmark,
        outcomes: Sequence[Outcome],
        settings: Settings,
        cache: EmbeddingCache,
    ) -> Beside:
        """How many are judged again."""
        note = f"reranked: the {settings.rerank} best of every query by the matching head's logit + cosine"
        return Beside(notes=[note] if settings.rerank else [])


def make(training: TrainingCaptions | None) -> Reranking:
    """The companion."""
    return Reranking()
