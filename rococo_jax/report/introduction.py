"""Subtitle of a page of results, and the warning that stands before its first number."""

from collections.abc import Sequence

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.report.blocks import Alert
from rococo_jax.report.collection import Group, Run, corrupted_by, tasks_of
from rococo_jax.report.overview import attacks_of
from rococo_jax.report.sections.choice import CHOICES
from rococo_jax.report.sections.classify import CLASSES
from rococo_jax.report.task_tests import is_at_chance
from rococo_jax.report.vocabulary import task_label

# What joins the gallery of a task.
_GALLERIES = {"image_to_text": "captions with one wrong word", "text_to_image": "mixed images"}


def lede(runs: Sequence[Run]) -> str:
    """Return the questions of the page in one sentence, from the tasks that are there."""
    tasks = tasks_of(runs)
    kinds = {kind for run in runs for task in run.tasks for kind in run.kinds(task)}
    attacked = {task for task in tasks if attacks_of(runs, task)}
    galleries = [words for task, words in _GALLERIES.items() if task in attacked]
    galleries += ["altered items"] * bool(attacked - _GALLERIES.keys())
    clauses = [f"when {' or '.join(galleries)} join the gallery"] if galleries else []
    if "rank" in kinds and not attacked:
        clauses.append("when they rank images and texts")
    if kinds & CHOICES.keys():
        clauses.append("when texts or images differ in a detail only")
    if kinds & CLASSES.keys():
        clauses.append("when they assign images to classes")
    if corrupted_by(runs)[0]:
        clauses.append("when images are corrupted")
    text = ", ".join([*clauses[:-2], " and ".join(clauses[-2:])])
    trusted = ", and whether their confidence can be trusted" if kinds & CLASSES.keys() else ""
    return f"How image-text models perform {text}".rstrip() + f"{trusted}."


def chance_alert(group: Group) -> Alert | None:
    """Return one warning on all models whose numbers of a task cannot be told from chance."""
    weak: dict[str, list[str]] = {}
    for task in tasks_of(group.runs):
        for run in (run for run in group.runs if CLEAN in run.tasks.get(task, {})):
            if is_at_chance(run, task, CLEAN):
                weak.setdefault(task_label(task), []).append(run.label)
    if not weak:
        return None
    text = "; ".join(f"{task}: {', '.join(labels)}" for task, labels in weak.items())
    why = "Too few images, an untrained model, or images or tokens that are not read as in its training"
    return Alert("At chance, without alterations.", f"{text}. Drops and verdicts of these are not meaningful. {why}.")
