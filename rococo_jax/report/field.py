"""A model among published ones: its score against recognition, above or below a robust line.

Recognition is R@1 of COCO, image to text, on the whole test split. Without it a model has no place across, and is
compared by its score alone.
"""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.published_field import (
    MEASURED,
    RECOGNITION,
    above_the_line,
    huber_line,
    published_field,
)
from rococo_jax.report.blocks import Charts, Note, Notes, Part, rich
from rococo_jax.report.collection import Figure, Run
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import percent

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
