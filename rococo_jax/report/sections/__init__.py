"""How each kind of task is shown, one file a kind; a kind that is not listed gets the generic section."""

from collections.abc import Sequence

from rococo_jax.report.collection import Run, best_first
from rococo_jax.report.sections.choice import CHOICES
from rococo_jax.report.sections.classify import CLASSES
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.sections.rank import RANK

__all__ = ["SECTIONS", "TaskSection", "ordered", "section_of", "section_of_kind"]

SECTIONS = {"rank": RANK, **CHOICES, **CLASSES}


def section_of_kind(kind: str) -> TaskSection:
    """How tasks of a kind are shown."""
    return SECTIONS.get(kind, TaskSection())


def section_of(runs: Sequence[Run], task: str) -> TaskSection:
    """How a task is shown, by the kind that the results give it."""
    return section_of_kind(next((run.kind(task) for run in runs if task in run.tasks), ""))


def ordered(runs: Sequence[Run], task: str) -> list[Run]:
    """The runs that measured a task, the best first."""
    return best_first(runs, task, section_of(runs, task).lead)
