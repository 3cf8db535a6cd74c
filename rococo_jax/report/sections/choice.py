"""Sections for multiple-choice tasks: accuracy by part, and pooled over parts.

There is one section for each question: texts for an image, images for a text, both at once, texts alone.
"""

import functools
from collections.abc import Sequence

from rococo_jax.benchmarks.variants import MEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Note, Part
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.tables import has_any, interval_panels


def _section(question: str, *metrics: str) -> TaskSection:
    """Return the section of one kind of choice; models are ranked by the first of its metrics."""
    main = metrics[0]
    return TaskSection(
        group="Compositional",
        lead=(MEAN, main),
        compared=(main,),
        metrics=(*metrics, "ties", "drop"),
        correlated=(main, "ata", "brittleness", "blind", "grounding"),
        question=f"{question} Every comparison is strict, so a tie counts as an error.",
        first=(*metrics, "ties", "blind", "grounding"),
        rest=(*metrics, "ties"),
        tiles=(
            ("Mean accuracy", "lead", main, max),
            ("Hardest part", "parts", main, min),
            ("Easiest part", "parts", main, max),
            ("Accuracy", "part", main, max),
        ),
        charts=functools.partial(_charts, metrics),
        errors=(
            "Examples of wrong choices",
            "Items with a wrong answer that scored at least as high as the right one, most confident errors first. The "
            "parts alternate.",
        ),
    )


def _charts(metrics: Sequence[str], runs: Sequence[Run], task: str) -> list[Part]:
    parts = []
    for name in metrics:
        if metric_of(name).better == "higher" and has_any(runs, task, variants_of(runs, task), name):
            bars = interval_panels(runs, task, variants_of(runs, task, name), name, "own")
            metric = metric_of(name)
            note = f"{metric.label}: {metric.definition}, in per cent. Whiskers span the 95 % interval."
            title = "Accuracy by part" if name == metrics[0] else f"{metric.label} by part"
            parts += [] if bars is None else [Part(title, [Note(note), bars])]
    return parts


CHOICES = {
    "choice": _section(
        "Each item is an image with a few texts, of which one is correct. With two texts, guessing gives 50 %.",
        *("ota", "ata", "tot", "brittleness", "negative_on_top"),
    ),
    "image_choice": _section("Each item is a text with a few images, of which one is correct.", "image_score"),
    "group_choice": _section(
        "Each item is a set of texts and images, to be matched with each other. With two of each, guessing gives a "
        "group score of 16.7 %.",
        *("group_score", "text_score", "image_score"),
    ),
    "text_choice": _section(
        "No images: two texts with the same meaning should be more similar to each other than to a text with another "
        "meaning.",
        "tot",
    ),
}
