"""How each kind of task is shown, one file a kind; a kind that is not listed gets the generic section."""

from collections.abc import Sequence

from rococo_jax.report.collection import Run, best_first
from rococo_jax.report.sections.choice import CHOICES
from rococo_jax.report.sections.classify import CLASSES
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.sections.rank import RANK
from rococo_jax.report.tables import Lead

__all__ = ["SECTIONS", "TaskSection", "ordered", "section_of", "section_of_kind"]

SECTIONS = {"rank": RANK, **CHOICES, **CLASSES}


def section_of_kind(kind: str, headline: Lead | None = None) -> TaskSection:
    """How tasks of a kind are shown, whose models are ranked by `headline` (variant, metric) where results have one."""
    section = SECTIONS.get(kind, TaskSection())
    return section if headline is None else section.with_headline(headline)


def section_of(runs: Sequence[Run], task: str) -> TaskSection:
    """How a task is shown, by the kind and the headline that the results give it."""
    headline = next((each for run in runs if (each := run.headline(task)) is not None), None)
    kind = next((run.kind(task) for run in runs if task in run.tasks), "")
    return section_of_kind(kind, None if headline is None else (headline.variant, headline.metric))


def ordered(runs: Sequence[Run], task: str) -> list[Run]:
    """The runs that measured a task, the best first."""
    return best_first(runs, task, section_of(runs, task).ranked_by)
