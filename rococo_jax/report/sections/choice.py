"""The sections of tasks that choose among few: accuracy by part, and the mean over parts.

One for each question: texts of an image, images of a text, both at once, texts alone.
"""

from collections.abc import Sequence

from rococo_jax.benchmarks.variants import MEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Note, Part, Tiles
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import BOARD_NOTE, HOW_TO_READ, TABLE_NOTE, Blocks, TaskSection, results_part
from rococo_jax.report.tables import extreme, has_any, interval_panels, leaderboard, tile

_MEAN_NOTE = " Mean: over the parts, each with the same weight, whatever its size."
_STRICT = "Every comparison is strict, so a tie counts as an error."


def choice_section(question: str, figures: tuple[str, ...]) -> TaskSection:
    """The section of one kind of choice.

    Args:
        question: what is asked.
        figures: metrics of the table; the first orders the models, and all but shares of a whole are compared.
    """
    main = figures[0]

    def tiles(runs: Sequence[Run], task: str) -> Tiles | None:
        """The mean accuracy, and the accuracy of the parts at both ends."""
        parts = [name for name in variants_of(runs, task) if name != MEAN]

        def of(label: str, variants: Sequence[str], end):
            return tile(label, runs, [extreme(run, task, variants, main, end) for run in runs], MEAN)

        shown = [of("Mean accuracy", [MEAN], max)]
        if len(parts) > 1:
            shown += [of("Hardest part", parts, min), of("Easiest part", parts, max)]
        else:
            shown.append(of("Accuracy", parts, max))
        return Tiles.of(shown)

    def results(runs: Sequence[Run], task: str) -> Part:
        variants = variants_of(runs, task)
        tied = any(run.figure(task, name, "ties").value for run in runs for name in variants)
        shown = [name for name in figures if name != "drop" and (tied or name != "ties")]
        note = TABLE_NOTE + (BOARD_NOTE if len(runs) > 1 else "") + (_MEAN_NOTE if MEAN in variants else "")
        groups = [(name, shown) for name in variants]
        if has_any(runs, task, variants, "blind"):
            note += f" {HOW_TO_READ}"
            groups = [(name, [*names, "blind", "grounding"] if name == MEAN else names) for name, names in groups]
        return results_part(runs, task, leaderboard(runs, task, groups, (MEAN, main), figures), [Note(note)])

    def charts(runs: Sequence[Run], task: str) -> Blocks:
        made = []
        for name in figures:
            if metric_of(name).better == "higher" and has_any(runs, task, variants_of(runs, task), name):
                drawn = interval_panels(runs, task, variants_of(runs, task, name), name, "own")
                metric = metric_of(name)
                note = f"{metric.label}: {metric.definition}, in per cent. Whiskers span the 95 % interval."
                title = "Accuracy by part" if name == main else f"{metric.label} by part"
                made += [] if drawn is None else [Part(title, [Note(note), drawn])]
        return made

    return TaskSection(
        lead=(MEAN, main),
        compared=(main,),
        figures=figures,
        correlated=(main, "ata", "brittleness", "blind", "grounding"),
        alters=False,
        question=f"{question} {_STRICT}",
        tiles=tiles,
        results=results,
        charts=charts,
        errors=_errors,
    )


def _errors(task: str) -> tuple[str, str]:
    return (
        "Examples of wrong choices",
        "Items whose wrong answer scored at least as high as the right one, by its lead: the most confident errors. "
        "Parts take turns.",
    )


_HARD_POSITIVES = ("ata", "tot", "brittleness", "negative_on_top")
CHOICES = {
    "choice": choice_section(
        "Which of a few texts belongs to the image? Of two, guessing gives 50 %.",
        ("ota", *_HARD_POSITIVES, "ties", "drop"),
    ),
    "image_choice": choice_section("Which of a few images belongs to the text?", ("image_score", "ties", "drop")),
    "group_choice": choice_section(
        "Which texts belong to which images? Guessing with two of each gives a group score of 16.7 %.",
        ("group_score", "text_score", "image_score", "ties", "drop"),
    ),
    "text_choice": choice_section(
        "Without images: are two texts that say the same more alike than either and one that says another thing?",
        ("tot", "ties", "drop"),
    ),
}
