"""Results over time: a line for each evaluation, a chart, and a badge with the latest number."""

import dataclasses
import datetime
from collections.abc import Sequence

from markupsafe import escape
from matplotlib.ticker import FixedFormatter, FixedLocator

from rococo_jax.errors import InputError, unknown_name
from rococo_jax.evaluation.journal import evaluation_time
from rococo_jax.metrics import metric_of
from rococo_jax.report.charts import CURVES, common_ticks, short_labels, short_number
from rococo_jax.report.collection import Group, Run, measured_places
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import Place, percent, printable

_LEFT, _WIDTH, _RIGHT, _ABOVE, _PANEL, _BELOW, _LINE = 48, 420, 150, 32, 160, 40, 14  # px
_LETTER, _PADDING, _BADGE_HEIGHT = 7, 6, 20  # px


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of one model at one time.

    Attributes:
        differences: conditions in which they differ from the first results, so that numbers are not comparable.
    """

    time: datetime.datetime
    run: Run
    differences: tuple[str, ...]

    @property
    def model(self) -> str:
        """Name of the model."""
        return printable(self.run.results["model"])


def evaluations_of(groups: Sequence[Group]) -> list[Evaluation]:
    """Return all results, the oldest first."""
    evaluations = [
        Evaluation(evaluation_time(run.path, run.results), run, tuple(field for field, _, _ in group.differences))
        for group in groups
        for run in group.runs
    ]
    return sorted(evaluations, key=lambda each: (each.time, each.run.label))


def numbers_of(evaluations: Sequence[Evaluation], requested: Sequence[str]) -> list[Place]:
    """Return the requested numbers, or the headline of each task.

    Raises InputError: no results have a requested number.
    """
    measured = measured_places(each.run for each in evaluations)
    for name in requested:
        if name not in measured:
            raise unknown_name("numbers", "number", name, measured, "rococo report")
    if requested:
        return [measured[name] for name in dict.fromkeys(requested)]
    headlines = [(task, each.run.headline(task)) for each in evaluations for task in each.run.tasks]
    numbers = dict.fromkeys(Place(task, each.variant, each.metric) for task, each in headlines if each is not None)
    if not numbers:
        raise InputError("numbers", "headlines", "none", "the numbers to show, as TASK/VARIANT/METRIC")
    return [*numbers]


def history_table(evaluations: Sequence[Evaluation], numbers: Sequence[Place]) -> tuple[list[str], list[list[str]]]:
    """Return the names of columns, and a row of texts for each evaluation."""
    rows = []
    for each in evaluations:
        estimates = [each.run.estimate(*number) for number in numbers]
        cells = [f"{one.value:.1f} ({one.bounds})" if one.has_interval else percent(one.value) for one in estimates]
        rows.append([f"{each.time:%Y-%m-%d %H:%M}", each.model, *cells, ", ".join(each.differences)])
    names = ["date (UTC)", "model", *(number.label for number in numbers), "not comparable with the first: other"]
    return (names, rows) if any(row[-1] for row in rows) else (names[:-1], [row[:-1] for row in rows])


def history_chart(evaluations: Sequence[Evaluation], numbers: Sequence[Place]) -> str:
    """Return an SVG file with a panel for each number and a curve for each model, with 95 % intervals.

    A curve is interrupted where conditions change.
    """
    models = list(dict.fromkeys(each.model for each in evaluations))
    labels = dict(zip(models, short_labels(models, 20), strict=True))
    first, last = evaluations[0].time, evaluations[-1].time
    span = max((last - first).total_seconds(), 1.0)
    panel = _ABOVE + _PANEL + _BELOW
    with chart_of("Results over time", _LEFT + _WIDTH + _RIGHT, panel * len(numbers)) as chart:
        for place, number in enumerate(numbers):
            axes = chart.axes(_LEFT, place * panel + _ABOVE, _WIDTH, _PANEL)
            ticks = common_ticks([each.run.estimate(*number) for each in evaluations])
            axes.set(xlim=(-0.03, 1.03), ylim=(min(ticks), max(ticks)))
            axes.yaxis.set_major_locator(FixedLocator(ticks))
            axes.yaxis.set_major_formatter(FixedFormatter([short_number(tick) for tick in ticks]))
            dates = {(time - first).total_seconds() / span: f"{time:%Y-%m-%d}" for time in (first, last)}
            axes.xaxis.set_major_locator(FixedLocator([*dates]))
            axes.xaxis.set_major_formatter(FixedFormatter([*dates.values()]))
            axes.tick_params(axis="x", pad=_LINE)
            axes.text(0, 1.06, number.label, transform=axes.transAxes, weight="bold", va="bottom")
            ends: list[tuple[float, float, str, str]] = []
            measured = [each for each in evaluations if each.run.estimate(*number).value is not None]
            for curve, model in enumerate(models):
                colour = colour_of(f"curve-{curve % CURVES}")
                points = [each for each in measured if each.model == model]
                for each, before in zip(points, [None, *points], strict=False):
                    x, estimate = (each.time - first).total_seconds() / span, each.run.estimate(*number)
                    tooltip = f"{model}, {each.time:%Y-%m-%d}: {percent(estimate.value)} {estimate.bounds}".rstrip()
                    if estimate.has_interval:
                        axes.plot([x, x], [estimate.low, estimate.high], color=colour, lw=1.2, alpha=0.45)
                    if before is not None and before.differences == each.differences:
                        start = (before.time - first).total_seconds() / span
                        axes.plot(
                            [start, x], [before.run.estimate(*number).value, estimate.value], color=colour, lw=1.5
                        )
                    axes.plot(
                        x, estimate.value, "o", ms=6, mfc=colour, mec=colour_of("paper"), gid=chart.title(tooltip)
                    )
                    if each is points[-1]:
                        ends.append((estimate.value, x, labels[model], colour))
            last_y = -float("inf")
            for value, x, label, colour in sorted(ends):
                y = (value - min(ticks)) / (max(ticks) - min(ticks)) * _PANEL
                last_y = max(y, last_y + _LINE)
                place_of_label = {"xytext": (8, last_y - y), "textcoords": "offset pixels", "va": "center_baseline"}
                axes.annotate(label, (x, value), color=colour, fontsize=12, **place_of_label)
        return chart.file()


def badge(evaluations: Sequence[Evaluation], number: Place) -> str:
    """Return an SVG file with the latest value of a number, for a README.

    Raises InputError: the results are of several models, or none have the number.
    """
    models = dict.fromkeys(each.model for each in evaluations)
    if len(models) > 1:
        raise InputError("badge", "models", ", ".join(models), "results of one model")
    measured = [each for each in evaluations if each.run.estimate(*number).value is not None]
    if not measured:
        raise InputError("badge", "number", f"no results with {number.path}", "a number that was measured")
    latest, metric = measured[-1], metric_of(number.metric)
    estimate = latest.run.estimate(*number)
    texts = metric.label, " ".join(filter(None, (percent(estimate.value, estimate.digits), metric.unit)))
    left, right = (len(text) * _LETTER + 2 * _PADDING for text in texts)
    title = f"{latest.model}, {number.label}: {texts[1]}"
    title += f" ({estimate.bounds}, 95 % interval)" if estimate.has_interval else ""
    title += f", {latest.time:%Y-%m-%d}"
    style = 'fill="#ffffff" text-anchor="middle" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11"'
    boxes = ((0, left, "#555555", texts[0]), (left, right, "#2f6fa8", texts[1]))
    parts = [
        f'<rect x="{x}" width="{width}" height="{_BADGE_HEIGHT}" fill="{colour}"/>'
        f'<text x="{x + width / 2:g}" y="14" {style}>{escape(text)}</text>'
        for x, width, colour, text in boxes
    ]
    size = f'width="{left + right}" height="{_BADGE_HEIGHT}" role="img" aria-label="{escape(title)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><title>{escape(title)}</title>'
    return f"{head}{''.join(parts)}</svg>\n"
