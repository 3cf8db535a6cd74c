"""The sections of tasks that classify: accuracy and calibration, what the model is sure of, shape against texture."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.errors import object_of
from rococo_jax.metrics import ood
from rococo_jax.report.blocks import Charts, Note, Part
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.report.vocabulary import percent, variant_label

_FIGURES = (
    *("top1", "shape_bias", "saw_texture", "top5", "per_class", "prior", "confidence", "ece", "ece_mass", "ece_scaled"),
    *("nll", "nll_scaled", "brier", "ties"),
)
_SHORT = ("top1", "shape_bias", "per_class", "ece", "ece_scaled", "nll", "drop")
_READ = (
    " NLL and Brier are plain numbers. Class prior answers the most frequent class without looking. Scaled: at the "
    "temperature of lowest NLL on the other half of the images; it never changes which class comes first."
)


_ERRORS = ("Examples of wrong classes", "Images of whose wrong class the model was most sure.")


def _charts(runs: Sequence[Run], task: str) -> list[Part | None]:
    return [reliability_part(runs, task, CLEAN), shape_part(runs, task, CLEAN)]


def _section(question: str) -> TaskSection:
    named = (("Top-1", "top1"), ("Shape bias", "shape_bias"), ("ECE", "ece"), ("ECE, scaled", "ece_scaled"))
    return TaskSection(
        lead=(CLEAN, "top1"),
        compared=("top1",),
        figures=_SHORT,
        correlated=("top1", "shape_bias", "ece"),
        question=f"{question} Classes are compared as texts; a tie counts as an error.",
        first=_FIGURES,
        others=_SHORT,
        note=_READ,
        tiles=tuple((label, "lead", name, max) for label, name in named),
        charts=_charts,
        errors=_ERRORS,
    )


_OOD = ("auroc_mcm", "aupr_in_mcm", "aupr_out_mcm", "fpr95_mcm")
_OUT_OF_DISTRIBUTION = TaskSection(
    lead=("", _OOD[0]),
    figures=tuple(metric.name for metric in ood.METRICS if not metric.name.startswith("aupr")),
    correlated=_OOD[:1],
    question="Does the model know images of its classes from others, by how sure it is of any class?",
    others=_OOD,
    note=" The others are images of none of the classes; guessing has an AUROC of 50.",
    charts=lambda runs, task: [roc_part(runs, task, variants_of(runs, task))],
    errors=_ERRORS,
)
CLASSES = {
    "out_of_distribution": _OUT_OF_DISTRIBUTION,
    "classify": _section("Which class does the image show, and how sure is the model?"),
    "shape": _section("The shape is of one class, the texture of another: which of them does the model see?"),
}


_RELIABILITY = (
    "Accuracy (up) of the images whose confidence is in a bin (across), in per cent; on the line, a model is right as "
    "often as it says. The size of a dot grows with the images in its bin. Filled: as it is; open: scaled."
)
_ROC = (
    "True positives (images of the classes, up) against false ones (other images, across) over all thresholds, in per "
    "cent; on the line a score tells nothing."
)
_SHAPE = (
    "Of the images answered by shape or by texture, the share of shape (across) by class of shape; the bar is that of "
    "all. To the right a model goes by shape."
)


def curves_of(run: Run, task: str, variant: str) -> dict[str, Any]:
    """What the results have for charts of a variant; empty where nothing."""
    return object_of(object_of(object_of(run.results.get("curves")).get(task)).get(variant))


def reliability_part(runs: Sequence[Run], task: str, variant: str) -> Part | None:
    """A reliability diagram for each model."""
    charts = [(run.label, _reliability(run.label, task, found)) for run in runs
              if (found := object_of(curves_of(run, task, variant).get("reliability")))]  # fmt: skip
    return Part("Reliability", [Note(_RELIABILITY), Charts(charts)]) if charts else None


def _reliability(label: str, task: str, curves: dict[str, list[list[float | int]]]) -> Markup:
    with chart_of(f"{label}, {task}: reliability", 300, 300) as chart:
        axes = chart.axes(40, 8, 244, 244)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="Confidence")
        axes.plot([0, 100], [0, 100], color=colour_of("soft"), lw=1)
        most = max(row[0] for rows in curves.values() for row in rows) or 1
        for name, rows in curves.items():
            colour, filled = (colour_of("own"), True) if name == "as it is" else (colour_of("false-recall"), False)
            shown = [row for row in rows if row[0]]
            axes.plot([100 * row[1] for row in shown], [100 * row[2] for row in shown], color=colour, lw=1.2)
            for count, confidence, accuracy in shown:
                told = f"{name}: {count} images, confidence {percent(100 * confidence)} %, "
                told += f"right {percent(100 * accuracy)} %"
                axes.plot(100 * confidence, 100 * accuracy, "o", ms=3 + 8 * (count / most) ** 0.5, mec=colour, mew=1.4,
                          mfc=colour if filled else colour_of("paper"), gid=chart.title(told))  # fmt: skip
        return chart.markup()


def shape_part(runs: Sequence[Run], task: str, variant: str) -> Part | None:
    """The known diagram of shape against texture, a line of points for each model."""
    found = [
        (run, shares) for run in runs if (shares := object_of(curves_of(run, task, variant).get("shape_by_class")))
    ]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, shares in found for name in shares))
    with chart_of(f"{task}: shape against texture", 440, 60 + 24 * len(names)) as chart:
        axes = chart.axes(90, 8, 336, 24 * len(names))
        axes.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5), xlabel="Share of shape, in per cent")
        axes.set_yticks(range(len(names)), names)
        for number, (run, shares) in enumerate(found):
            colour = colour_of(f"curve-{number % 8}")
            total = [sum(each) for each in zip(*shares.values(), strict=True)]
            if sum(total):
                axes.axvline(100 * total[0] / sum(total), color=colour, lw=1.6)
            for place, name in enumerate(names):
                shape, texture = shares.get(name, (0, 0))
                if shape + texture:
                    share = 100 * shape / (shape + texture)
                    told = f"{run.label}, {name}: {shape} by shape, {texture} by texture, {percent(share)} %"
                    axes.plot(share, place, "o", ms=7, mfc=colour, mec=colour_of("paper"), gid=chart.title(told))
        drawn = chart.markup()
    legend = [(f"curve-{number % 8}", run.label) for number, (run, _) in enumerate(found)] if len(found) > 1 else []
    return Part("Shape or texture", [Note(_SHAPE), Charts([("", drawn)], legend)])


def roc_part(runs: Sequence[Run], task: str, variants: Sequence[str]) -> Part | None:
    """The ROC curves of every score, a chart for each model and set of other images."""
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
    """The scores that any run has a curve of."""
    of_task = [object_of(object_of(run.results.get("curves")).get(task)) for run in runs]
    return list(dict.fromkeys(name for each in of_task for found in each.values() for name in found.get("roc", {})))


def _roc(name: str, curves: dict[str, list[list[float]]]) -> Markup:
    with chart_of(f"{name}: ROC", 300, 300) as chart:
        axes = chart.axes(40, 8, 244, 244)
        axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="False positive rate")
        axes.plot([0, 100], [0, 100], color=colour_of("soft"), lw=1)
        for number, (score, points) in enumerate(curves.items()):
            across, up = ([100 * point[side] for point in points] for side in (0, 1))
            axes.plot(across, up, color=colour_of(f"curve-{number % 8}"), lw=1.6, gid=chart.title(score))
        return chart.markup()
