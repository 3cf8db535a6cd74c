"""The sections of tasks that choose among few: accuracy by part, and the mean over parts.

One for each question: texts of an image, images of a text, both at once, texts alone.
"""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from rococo_jax.benchmarks.variants import MEAN
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.published_field import (
    MEASURED,
    RECOGNITION,
    above_the_line,
    huber_line,
    published_field,
)
from rococo_jax.report.blocks import Charts, Note, Notes, Part, Tiles, rich
from rococo_jax.report.collection import Figure, Run, variants_of
from rococo_jax.report.sections.generic import BOARD_NOTE, HOW_TO_READ, TABLE_NOTE, Blocks, TaskSection, results_part
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.tables import extreme, has_any, interval_panels, leaderboard, tile
from rococo_jax.report.vocabulary import percent

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
        return [*made, field_part(runs, task)]

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


_WHOLE = 5000  # images of the test split
_COLUMN_OF = {task: column for column, (task, _, _) in MEASURED.items() if column not in (RECOGNITION, "coco_t2i")}


def recognition_of(run: Run) -> Figure:
    """R@1 of COCO, image to text; empty where it was not measured on the whole test split."""
    task, variant, metric = MEASURED[RECOGNITION]
    whole = run.sizes(task).get(variant, {}).get("queries") == _WHOLE
    return run.figure(task, variant, metric) if whole else Figure(None)


def field_part(runs: Sequence[Run], task: str) -> Part | None:
    """The part of a task's section; None for tasks without published figures."""
    column = _COLUMN_OF.get(task)
    if column is None:
        return None
    field, (_, variant, metric) = published_field(), MEASURED[column]
    shown = [(run, recognition_of(run), run.figure(task, variant, metric)) for run in runs]
    shown = [each for each in shown if each[2].value is not None]
    if not shown:
        return None
    note = (
        f"{metric_of(metric).label} (up) against R@1 of COCO, image to text (across), in per cent. Small points: "
        f"{len(field.names)} published checkpoints ({field.source}); the line is a Huber regression over them. "
        "Published averages may weigh the parts of a benchmark otherwise."
    )
    lines = [_told(column, run, across, up) for run, across, up in shown]
    return Part("Among published models", [Note(note), Notes(lines), Charts([("", _scatter(column, task, shown))])])


def _told(column: str, run: Run, across: Figure, up: Figure) -> Markup:
    below = 100 * float(np.mean(published_field().figures[column] < up.value))
    said = f"{percent(up.value)} %, above {percent(below)} % of the published checkpoints"
    if across.value is None:
        return rich("<b>{}</b>: {}; its recognition was not measured on the whole test split.", run.label, said)
    points, low, high = above_the_line(column, across.value, up.value)
    side = "above" if points >= 0 else "below"
    return rich(
        "<b>{}</b>: {}; {:.1f} points {} the line ({:+.1f} to {:+.1f}).", run.label, said, abs(points), side, low, high
    )


def _scatter(column: str, task: str, shown: Sequence[tuple[Run, Figure, Figure]]) -> Markup:
    field = published_field()
    x, y = field.figures[RECOGNITION], field.figures[column]
    slope, intercept = huber_line(x, y)
    with chart_of(f"{task} against recognition", 440, 300) as chart:
        axes = chart.axes(40, 8, 380, 246)
        axes.set(xlabel="R@1 of COCO, image to text")
        axes.plot(x, y, "o", ms=3, mfc=colour_of("soft"), mec="none", alpha=0.5)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, slope * ends + intercept, color=colour_of("soft"), lw=1.2)
        for run, across, up in shown:
            told = f"{run.label}: {percent(up.value)} %"
            if across.value is None:
                axes.plot(ends, [up.value] * 2, color=colour_of("own"), lw=1.2, ls=(0, (4, 4)), gid=chart.title(told))
                continue
            axes.plot(across.value, up.value, "o", ms=8, mfc=colour_of("own"), mec=colour_of("paper"), mew=1,
                      gid=chart.title(told))  # fmt: skip
        return chart.markup()
