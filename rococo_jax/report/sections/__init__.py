"""Page sections, one file for each kind of task; an unknown kind has the generic section."""

from collections.abc import Sequence

from rococo_jax.report.collection import Run, best_first, by_kind
from rococo_jax.report.sections.choice import CHOICES
from rococo_jax.report.sections.classify import CLASSES
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.sections.rank import RANK
from rococo_jax.report.tables import Lead
from rococo_jax.report.vocabulary import order_metrics

__all__ = ["SECTIONS", "TaskSection", "lead_of", "ordered", "section_of", "section_of_kind", "section_of_variant"]

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


def section_of_variant(runs: Sequence[Run], task: str, variant: str) -> TaskSection:
    """Return the section of a variant of a task whose variants may have several kinds."""
    views = [view for view in by_kind(runs, task).values() if any(variant in run.tasks[task] for run in view)]
    return section_of(views[0] if views else runs, task)


def lead_of(runs: Sequence[Run], task: str) -> Lead:
    """Return variant and metric by which models are ranked; the first ones of a task that does not name them."""
    variant, metric = section_of(runs, task).ranked_by
    measured = [(name, metrics) for run in runs for name, metrics in run.tasks.get(task, {}).items()]
    fitting = [each for each in measured if metric in each[1]] or measured
    if not any(name == variant for name, _ in fitting):
        variant = fitting[0][0]
    return variant, metric or next(iter(order_metrics(dict(fitting)[variant])), "")


def ordered(runs: Sequence[Run], task: str) -> list[Run]:
    """Return the runs that measured a task, best first."""
    return best_first(runs, task, section_of(runs, task).ranked_by)
