"""Model card of the Hugging Face hub from results: tables and a chart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.errors import InputError
from rococo_jax.metrics import metric_of
from rococo_jax.report.collection import Run, group_by_fingerprint, label_of, load_results
from rococo_jax.report.comparison import compare_groups
from rococo_jax.report.markdown import markdown_lines
from rococo_jax.report.page import report_page
from rococo_jax.report.vocabulary import order_metrics, task_label
from rococo_jax.storage import atomic_write
from rococo_jax.version import __version__

CARD, PICTURE = "README.md", "figures.png"
# The chart shows the first of these that is measured and not always 0.
_CHARTED = ("fr1", "ota", "group_score", "r1", "top1")


def model_card(results: Sequence[str | Path], licence: str = "other", weights: str | None = None):
    """Return the card (`huggingface_hub.ModelCard`) of one model's results.

    Args:
        results: files or folders of results.
        licence: identifier of the model's licence on the hub.
        weights: hash of the model's weights; the fingerprints of the results must contain it.

    Raises:
        InputError: the results are of several models or of another model, or cannot be read.
    """
    from huggingface_hub import ModelCard, ModelCardData

    groups = group_by_fingerprint(load_results(results))
    runs = [run for group in groups for run in group.runs]
    names = sorted({run.results["model"] for run in runs})
    if len(names) != 1:
        raise InputError(", ".join(map(str, results)), "models", ", ".join(names) or "none", "results of one model")
    hashes = {run.results["fingerprint"].get("model", {}).get("weights") for run in runs}
    if weights is not None and hashes != {weights}:
        raise InputError(
            runs[0].path, "fingerprint", f"results of other weights, of {names[0]!r}", "those of this model"
        )
    data = ModelCardData(
        license=licence,
        library_name="transformers",
        pipeline_tag="zero-shot-image-classification",
        tags=["rococo-jax", "robustness", "image-text"],
        model_name=names[0],
    )
    text = "\n".join(markdown_lines(report_page(groups, {}, compare_groups(groups)).blocks))
    intro = f"Evaluated by rococo_jax {__version__}. Percentages; 95 % intervals over images."
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {names[0]}\n\n{intro}\n\n![Figures]({PICTURE})\n{text}\n")


def write_card(folder: str | Path, card, results: Sequence[str | Path]) -> None:
    """Write the card and the picture of the first results into a model's folder, by rename."""
    run = group_by_fingerprint(load_results(results))[0].runs[0]
    metrics = [metrics_of_variant for variants in run.tasks.values() for metrics_of_variant in variants.values()]
    measured = order_metrics(
        name for metrics_of_variant in metrics for name, value in metrics_of_variant.items() if value
    )
    metric = next((name for name in (*_CHARTED, *measured) if name in measured), _CHARTED[0])
    with atomic_write(Path(folder) / PICTURE) as temporary:
        _bars(run, metric).savefig(temporary, format="png", dpi=120, metadata={"Software": None})
    with atomic_write(Path(folder) / CARD) as temporary:
        temporary.write_text(str(card), encoding="utf-8")


def _bars(run: Run, metric: str) -> Figure:
    """A metric of each task and variant with its interval; not of the clean gallery where it is 0 by definition."""
    rows: list[tuple[str, str, Any]] = [
        (task, variant, run.estimate(task, variant, metric)) for task in run.tasks for variant in run.variants(task)
    ]
    rows = [row for row in rows if row[2].value is not None and (row[1] != CLEAN or row[2].value)]
    drawing = Figure(figsize=(6.4, 0.8 + 0.35 * max(len(rows), 1)), layout="constrained")
    axes = drawing.subplots()
    for place, (*_, each) in enumerate(rows):
        axes.barh(place, each.value or 0.0, color="#2f6fa8")
        if each.low is not None and each.high is not None:
            axes.plot([each.low, each.high], [place, place], color="0.3")
    axes.set_yticks(
        range(len(rows)), [f"{task_label(task)}, {label_of([run], task, variant)}" for task, variant, _ in rows]
    )
    axes.set(xlabel=", ".join(filter(None, (metric_of(metric).label, metric_of(metric).unit))))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return drawing
