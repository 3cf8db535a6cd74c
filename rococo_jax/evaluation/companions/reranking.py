"""The note on results whose best were judged again by a matching head (`evaluation.reranking`)."""

from rococo_jax.evaluation.companions import Beside, Companion, Scored, TrainingCaptions


class Reranking(Companion):
    """Adds a note where settings ask for reranking."""

    def beside(self, scored: Scored) -> Beside:
        """How many are judged again."""
        count = scored.settings.rerank
        note = f"reranked: the {count} best of every query by the matching head's logit + cosine"
        return Beside(notes=[note] if count else [])


def make(training: TrainingCaptions | None) -> Reranking:
    """The companion."""
    return Reranking()
