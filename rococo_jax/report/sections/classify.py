"""Sections for classification tasks: accuracy and calibration, out-of-distribution detection, shape against texture."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.errors import object_of
from rococo_jax.metrics import ood
from rococo_jax.report.blocks import Charts, Note, Part
from rococo_jax.report.charts import CURVES, Bar, dot_rows
from rococo_jax.report.collection import Estimate, Run, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import percent, variant_label

_METRICS = (
    *(
        "top1",
        "guessing",
        "shape_bias",
        "saw_texture",
        "top5",
        "per_class",
        "prior",
        "confidence",
        "ece",
        "ece_calibrated",
        "ece_mass",
        "ece_scaled",
    ),
    *("nll", "nll_scaled", "brier", "ties"),
)
# The names of the two curves in results.json, and their labels.
_UNCALIBRATED = "as it is"
_CURVE_LABELS = {_UNCALIBRATED: "uncalibrated", "scaled": "after temperature scaling"}
_SHORT = ("top1", "shape_bias", "per_class", "ece", "ece_calibrated", "ece_scaled", "nll", "drop")
_MAJORITY = " The majority class is predicted without looking at the image."
_READ = (
    " NLL and the Brier score are not percentages. After temperature scaling: with the temperature of lowest NLL on "
    "the other half of the images, which never changes the predicted class."
)


_ERRORS = ("Examples of wrong classes", "The errors with the highest confidence.")


def _charts(runs: Sequence[Run], task: str) -> list[Part | None]:
    return [reliability_part(runs, task, CLEAN), shape_part(runs, task, CLEAN)]


def _section(question: str, note: str = _READ + _MAJORITY) -> TaskSection:
    tiles = (
        ("Top-1", "top1"),
        ("Shape bias", "shape_bias"),
        ("ECE", "ece"),
        ("ECE after temperature scaling", "ece_scaled"),
    )
    return TaskSection(
        group="Classification",
        lead=(CLEAN, "top1"),
        compared=("top1",),
        metrics=_SHORT,
        correlated=("top1", "shape_bias", "ece"),
        question=f"{question} A tie counts as an error.",
        first=_METRICS,
        rest=_SHORT,
        note=note,
        tiles=tuple((label, "lead", name, max) for label, name in tiles),
        charts=_charts,
        errors=_ERRORS,
    )


_OOD = ("auroc_mcm", "aupr_in_mcm", "aupr_out_mcm", "fpr95_mcm")
_OUT_OF_DISTRIBUTION = TaskSection(
    group="Classification",
    lead=("", _OOD[0]),
    metrics=tuple(metric.name for metric in ood.METRICS if not metric.name.startswith("aupr")),
    correlated=_OOD[:1],
    question="Can out-of-distribution images be told from images of the classes by the model's confidence?",
    rest=_OOD,
    note=" Out-of-distribution images show none of the classes; guessing has an AUROC of 50.",
    charts=lambda runs, task: [roc_part(runs, task, variants_of(runs, task))],
    errors=_ERRORS,
)
CLASSES = {
    "out_of_distribution": _OUT_OF_DISTRIBUTION,
    "classify": _section(
        "Each image is assigned to one of the classes, with a confidence. Classes are compared as texts."
    ),
    "options": _section(
        "Each question about an image has its own options. The model chooses one, with a confidence.",
        f"{_READ} Guessing is right for the mean of 1 / K over questions with K options.",
    ),
    "shape": _section(
        "Each image has the shape of one class and the texture of another. Shape bias is how often the model names "
        "the shape. Classes are compared as texts."
    ),
}


_RELIABILITY = (
    "Accuracy (vertical) of the images in each bin of confidence (horizontal), in per cent. On the line, accuracy "
    "equals confidence. Larger dots have more images. Filled: uncalibrated; open: after temperature scaling."
)
_ROC = (
    "True positives (images of the classes, vertical) against false positives (out-of-distribution images, horizontal) "
    "over all thresholds, in per cent. On the line, a score is no better than chance."
)
_SHAPE = (
    "Among the images classified by their shape or by their texture, the share classified by shape, for each class of "
    "shape, in per cent. Models further to the right rely more on shape."
)


def curves_of(run: Run, task: str, variant: str) -> dict[str, Any]:
    """Return the curves that the results contain for a variant; empty if there are none."""
    return object_of(object_of(object_of(run.results.get("curves")).get(task)).get(variant))


def reliability_part(runs: Sequence[Run], task: str, variant: str) -> Part | None:
    """Return a reliability diagram for each model; None if the results contain none."""
    curves_of_runs = [(run, object_of(curves_of(run, task, variant).get("reliability"))) for run in runs]
    charts = [(run.label, _reliability(run.label, task, curves)) for run, curves in curves_of_runs if curves]
    return Part("Reliability", [Note(_RELIABILITY), Charts(charts)]) if charts else None


def _reliability(label: str, task: str, curves: dict[str, list[list[float | int]]]) -> Markup:
    with chart_of(f"{label}, {task}: reliability", 300, 300) as chart:
        axes = chart.axes(40, 8, 244, 244)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="Confidence")
        axes.plot([0, 100], [0, 100], color=colour_of("soft"), lw=1)
        most = max(row[0] for rows in curves.values() for row in rows) or 1
        for name, rows in curves.items():
            is_raw = name == _UNCALIBRATED
            colour = colour_of("own" if is_raw else "false-recall")
            filled_bins = [row for row in rows if row[0]]
            axes.plot(
                [100 * row[1] for row in filled_bins], [100 * row[2] for row in filled_bins], color=colour, lw=1.2
            )
            for count, confidence, accuracy in filled_bins:
                title = f"{_CURVE_LABELS.get(name, name)}: {count} images, confidence {percent(100 * confidence)} %, "
                title += f"accuracy {percent(100 * accuracy)} %"
                size, face = 3 + 8 * (count / most) ** 0.5, colour if is_raw else colour_of("paper")
                x, y, tooltip = 100 * confidence, 100 * accuracy, chart.title(title)
                axes.plot(x, y, "o", ms=size, mec=colour, mew=1.4, mfc=face, gid=tooltip)
        return chart.markup()


def shape_part(runs: Sequence[Run], task: str, variant: str) -> Part | None:
    """Return the diagram of shape against texture by class (Geirhos et al. 2019), with one colour for each model."""
    curves = [(run, object_of(curves_of(run, task, variant).get("shape_by_class"))) for run in runs]
    measured = [(run, shares) for run, shares in curves if shares][:CURVES]
    if not measured:
        return None

    def bar(run: Run, shape: int, texture: int) -> Bar:
        share = 100 * shape / (shape + texture) if shape + texture else None
        return Bar(f"{run.label}: {shape} by shape, {texture} by texture", Estimate(share))

    totals = [bar(run, *map(sum, zip(*shares.values(), strict=True))) for run, shares in measured]
    names = dict.fromkeys(name for _, shares in measured for name in shares)
    rows = [("All classes", totals)]
    rows += [(name, [bar(run, *shares.get(name, (0, 0))) for run, shares in measured]) for name in names]
    chart = dot_rows(f"{task}: shape against texture", rows, [0.0, 25.0, 50.0, 75.0, 100.0])
    legend = [(f"curve-{number}", run.label) for number, (run, _) in enumerate(measured)] if len(measured) > 1 else []
    return Part("Shape or texture", [Note(_SHAPE), Charts([("", chart)], legend)])


def roc_part(runs: Sequence[Run], task: str, variants: Sequence[str]) -> Part | None:
    """Return the ROC curves of every score, a chart for each model and set of out-of-distribution images."""
    charts = []
    for run in runs:
        for variant in variants:
            curves = object_of(curves_of(run, task, variant).get("roc"))
            if curves:
                title = ", ".join([variant_label(variant), *([run.label] if len(runs) > 1 else [])])
                charts.append((title, _roc(f"{run.label}, {task}, {variant}", curves)))
    if not charts:
        return None
    legend = [(f"curve-{number}", name.replace("_", " ")) for number, name in enumerate(curves_names(runs, task))]
    return Part("ROC", [Note(_ROC), Charts(charts, legend)])


def curves_names(runs: Sequence[Run], task: str) -> list[str]:
    """Return the names of the scores with a curve in any run."""
    of_task = [object_of(object_of(run.results.get("curves")).get(task)) for run in runs]
    return list(dict.fromkeys(name for each in of_task for curves in each.values() for name in curves.get("roc", {})))


def _roc(name: str, curves: dict[str, list[list[float]]]) -> Markup:
    with chart_of(f"{name}: ROC", 300, 300) as chart:
        axes = chart.axes(40, 8, 244, 244)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="False positive rate")
        axes.plot([0, 100], [0, 100], color=colour_of("soft"), lw=1)
        for number, (score, points) in enumerate(curves.items()):
            across, up = ([100 * point[side] for point in points] for side in (0, 1))
            axes.plot(across, up, color=colour_of(f"curve-{number % 8}"), lw=1.6, gid=chart.title(score))
        return chart.markup()
