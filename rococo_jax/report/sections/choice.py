"""The sections of tasks that choose among few: accuracy by part, and the mean over parts.

One for each question: texts of an image, images of a text, both at once, texts alone.
"""

import functools
from collections.abc import Sequence

from rococo_jax.benchmarks.variants import MEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Note, Part
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.tables import has_any, interval_panels


def _section(question: str, *figures: str) -> TaskSection:
    """The section of one kind of choice; the first of its figures orders the models."""
    main = figures[0]
    return TaskSection(
        lead=(MEAN, main),
        compared=(main,),
        figures=(*figures, "ties", "drop"),
        correlated=(main, "ata", "brittleness", "blind", "grounding"),
        question=f"{question} Every comparison is strict, so a tie counts as an error.",
        first=(*figures, "ties", "blind", "grounding"),
        others=(*figures, "ties"),
        tiles=(
            ("Mean accuracy", "lead", main, max),
            ("Hardest part", "parts", main, min),
            ("Easiest part", "parts", main, max),
            ("Accuracy", "part", main, max),
        ),
        charts=functools.partial(_charts, figures),
        errors=(
            "Examples of wrong choices",
            "Items whose wrong answer scored at least as high as the right one, the most confident errors first. Parts "
            "take turns.",
        ),
    )


def _charts(figures: Sequence[str], runs: Sequence[Run], task: str) -> list[Part]:
    parts = []
    for name in figures:
        if metric_of(name).better == "higher" and has_any(runs, task, variants_of(runs, task), name):
            drawn = interval_panels(runs, task, variants_of(runs, task, name), name, "own")
            metric = metric_of(name)
            note = f"{metric.label}: {metric.definition}, in per cent. Whiskers span the 95 % interval."
            title = "Accuracy by part" if name == figures[0] else f"{metric.label} by part"
            parts += [] if drawn is None else [Part(title, [Note(note), drawn])]
    return parts


CHOICES = {
    "choice": _section(
        "Which of a few texts belongs to the image? Of two, guessing gives 50 %.",
        *("ota", "ata", "tot", "brittleness", "negative_on_top"),
    ),
    "image_choice": _section("Which of a few images belongs to the text?", "image_score"),
    "group_choice": _section(
        "Which texts belong to which images? Guessing with two of each gives a group score of 16.7 %.",
        *("group_score", "text_score", "image_score"),
    ),
    "text_choice": _section(
        "Without images: are two texts that say the same more alike than either and one that says another thing?",
        "tot",
    ),
}
