"""Task kinds. Each kind scores itself from embeddings; the runner knows no kind by name."""

from rococo_jax.benchmarks.tasks.choice import ChoiceTask
from rococo_jax.benchmarks.tasks.classify import ClassifyTask
from rococo_jax.benchmarks.tasks.rank import IMAGE_TO_TEXT, TEXT_TO_IMAGE, RankTask
from rococo_jax.benchmarks.tasks.task import Example, Outcome, Side, Task

__all__ = [
    "IMAGE_TO_TEXT",
    "TEXT_TO_IMAGE",
    "ChoiceTask",
    "ClassifyTask",
    "Example",
    "Outcome",
    "RankTask",
    "Side",
    "Task",
]
