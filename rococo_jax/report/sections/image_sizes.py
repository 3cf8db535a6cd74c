"""Section on models that were evaluated at several image sizes: each metric against the side of the images in pixels.

Figure 3 of the holistic study of CLIP's robustness (arXiv 2410.01534) shows shape bias and accuracy in this way.
"""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.ticker import FixedFormatter, FixedLocator

from rococo_jax.errors import is_whole, object_of
from rococo_jax.evaluation.model_list import size_suffix
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Cell, Charts, Head, Note, Part, Table, estimate_cell
from rococo_jax.report.charts import common_ticks, short_number
from rococo_jax.report.collection import Run, tasks_of
from rococo_jax.report.sections import section_of
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.tables import has_any, heads_of
from rococo_jax.report.vocabulary import order_metrics, task_label
from rococo_jax.storage import hash_json

_QUESTION = (
    "The same weights at several image sizes, with interpolated position embeddings. Results at other sizes than that "
    "of the training also contain the effect of the interpolation."
)
# Parts of a model's fingerprint that its image size changes.
_OF_SIZE = ("spec", "preprocessing")
# The runs of a model by image size, ascending, by its name.
_Sizes = dict[str, dict[int, Run]]


def runs_by_size(runs: Sequence[Run]) -> _Sizes:
    """Return the runs of each model that was evaluated at two or more image sizes, by its name and the size."""
    by_model: dict[str, dict[int, Run]] = {}
    for run in runs:
        size = object_of(run.results.get("about")).get("image_size")
        if is_whole(size):
            model = object_of(run.results["fingerprint"].get("model"))
            key = hash_json({name: value for name, value in model.items() if name not in _OF_SIZE})
            by_model.setdefault(key, {}).setdefault(size, run)
    several = (dict(sorted(of_size.items())) for of_size in by_model.values() if len(of_size) > 1)
    return {_name(*next(iter(of_size.items()))): of_size for of_size in several}


def _name(size: int, run: Run) -> str:
    return run.label.removesuffix(size_suffix(size))


def one_size_each(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without further image sizes of the same model, which are no further models."""
    further_sizes = {id(run) for of_size in runs_by_size(runs).values() for run in list(of_size.values())[1:]}
    return [run for run in runs if id(run) not in further_sizes]


def image_sizes_part(runs: Sequence[Run], anchor: str) -> Part | None:
    """Return the section; None if no model was evaluated at two or more image sizes."""
    by_size = runs_by_size(runs)
    if not by_size:
        return None
    charts: list[tuple[str, Markup]] = []
    measured = []
    for task in tasks_of(runs):
        section = section_of(runs, task)
        variant, names = section.lead[0], dict.fromkeys([section.lead[1], section.ranked_by[1]])
        names = [name for name in names if name and has_any(runs, task, [variant], name)]
        if names:
            measured.append((task, variant, names))
        for name in names:
            title = f"{task_label(task)}: {metric_of(name).label}"
            charts.append((title, _chart(title, by_size, task, variant, name)))
    if not measured:
        return None
    columns = order_metrics(name for _, _, names in measured for name in names)
    rows = [
        [
            Cell(model),
            Cell(task_label(task), words=True),
            Cell(str(size), value=size),
            *(estimate_cell(run.estimate(task, variant, name)) for name in columns),
        ]
        for task, variant, _ in measured
        for model, of_size in by_size.items()
        for size, run in of_size.items()
    ]
    heads = [*heads_of(["Model", "Task"]), Head("Image size"), *heads_of([], columns)]
    table = Table("Image sizes", heads, rows, lead=3, sortable=True, filterable=True)
    legend = [(f"curve-{number % 8}", model) for number, model in enumerate(by_size)] if len(by_size) > 1 else []
    return Part("Image size", [Note(_QUESTION, "question"), Charts(charts, legend), table], "task", anchor)


def _chart(title: str, by_size: _Sizes, task: str, variant: str, name: str) -> Markup:
    """Draw a curve for each model with 95 % intervals: the metric against the side of the images."""
    sizes = sorted({size for of_size in by_size.values() for size in of_size})
    estimates = [run.estimate(task, variant, name) for of_size in by_size.values() for run in of_size.values()]
    ticks, margin = common_ticks(estimates), 0.08 * (sizes[-1] - sizes[0])
    with chart_of(title, 320, 280) as chart:
        axes = chart.axes(44, 10, 264, 220)
        axes.set(xlim=(sizes[0] - margin, sizes[-1] + margin), ylim=(min(ticks), max(ticks)))
        axes.set_xlabel("Side of the images, in pixels")
        for axis, places in ((axes.xaxis, sizes), (axes.yaxis, ticks)):
            axis.set_major_locator(FixedLocator(places))
            axis.set_major_formatter(FixedFormatter([short_number(float(place)) for place in places]))
        for number, (model, of_size) in enumerate(by_size.items()):
            colour = colour_of(f"curve-{number % 8}")
            points = [(size, run.estimate(task, variant, name)) for size, run in of_size.items()]
            points = [(size, estimate) for size, estimate in points if estimate.value is not None]
            axes.plot([size for size, _ in points], [estimate.value for _, estimate in points], color=colour, lw=1.6)
            for size, estimate in points:
                tooltip = f"{model}, {size} pixels: {short_number(round(estimate.value, estimate.digits))}"
                if estimate.has_interval:
                    axes.plot([size, size], [estimate.low, estimate.high], color=colour, lw=1.2, alpha=0.45)
                    tooltip += f", 95 % interval {estimate.bounds}"
                axes.plot(size, estimate.value, "o", ms=7, mfc=colour, mec=colour_of("paper"), gid=chart.title(tooltip))
        return chart.markup()
