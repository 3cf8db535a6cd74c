"""Page sections, one file for each kind of task; an unknown kind has the generic section."""

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
    """Return the section of a kind of task, with models ranked by `headline` (variant, metric) if there is one."""
    section = SECTIONS.get(kind, TaskSection())
    return section if headline is None else section.with_headline(headline)


def section_of(runs: Sequence[Run], task: str) -> TaskSection:
    """Return the section of a task, from the kind and the headline in the results."""
    headline = next((each for run in runs if (each := run.headline(task)) is not None), None)
    kind = next((run.kind(task) for run in runs if task in run.tasks), "")
    return section_of_kind(kind, None if headline is None else (headline.variant, headline.metric))


def ordered(runs: Sequence[Run], task: str) -> list[Run]:
    """Return the runs that measured a task, best first."""
    return best_first(runs, task, section_of(runs, task).ranked_by)
