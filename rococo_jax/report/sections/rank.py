"""Section of a retrieval task: recall, false recall, drops, and what ranks first."""

from collections.abc import Sequence

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Charts, Note, Part
from rococo_jax.report.charts import Stack, stacked_bars
from rococo_jax.report.collection import Run, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.tables import bars_note, dot_plots, panels
from rococo_jax.report.vocabulary import ALTERED, QUERIES

_LEAD = (CLEAN, "r1")
_SPLIT = ("top1_own", "top1_own_altered", "top1_other_altered", "top1_other")


def _charts(runs: Sequence[Run], task: str) -> list[Part | None]:
    queries = QUERIES.get(task, "queries")
    plots = (
        f"R@1 without and with altered items in the gallery, and FR@1, the share of {queries} for which "
        f"{ALTERED.get(task, 'an altered item')} ranks first, whether it was made from the query's own item or from "
        "another one, in per cent. Lines through a point span its 95 % interval."
    )
    split = f"What ranks first for each of the {queries}; the four shares sum to 100 %."
    altered = variants_of(runs, task, "fr1", lambda each: not each.is_clean)
    with_recall = [CLEAN, *variants_of(runs, task, "r1", lambda each: not each.is_clean)]
    rows = (("R@1", "r1", with_recall), ("FR@1", "fr1", altered))
    return [
        _part("With and without altered items", plots, dot_plots(runs, task, rows)) if altered else None,
        _part("What ranks first", split, _splits(runs, task)),
    ]


def _part(title: str, note: str, charts: Charts | None) -> Part | None:
    return None if charts is None else Part(title, [Note(note), charts])


def _splits(runs: Sequence[Run], task: str) -> Charts | None:
    """Return stacked bars of what ranks first; None where no run has the four-way split."""
    rows_of_panels = panels(runs, task, variants_of(runs, task, _SPLIT[0]))
    if not rows_of_panels:
        return None
    charts = []
    for title, rows in rows_of_panels:
        stacks = []
        for run, variant, label in rows:
            shares = [(name, run.estimate(task, variant, name).value or 0.0) for name in _SPLIT]
            parts = ((_colour(name), metric_of(name).label, share) for name, share in shares)
            stacks.append(Stack(label, tuple(parts)))
        charts.append((title if len(rows_of_panels) > 1 else "", stacked_bars(f"What ranks first: {title}", stacks)))
    one, other = ("caption", "caption of another image") if task == "image_to_text" else ("image", "other image")
    names = (f"own {one}", f"own {one}, altered", f"{other}, altered", other)
    legend = [(_colour(name), text) for name, text in zip(_SPLIT, names, strict=True)]
    return Charts(charts, legend, note=bars_note(runs))


def _colour(name: str) -> str:
    return name.removeprefix("top1_").replace("_", "-")


RANK = TaskSection(
    group="Retrieval under attack",
    lead=_LEAD,
    compared=("r1", "fr1"),
    metrics=("r1", "r5", "r10", "fr1", "blind", "grounding", "drop"),
    correlated=("r1", "fr1", "drop", "blind", "grounding"),
    alters=True,
    question="Each query ranks a gallery. It is answered correctly if one of its correct items ranks first.",
    first=("r1", "r5", "r10"),
    rest=("r1", "fr1", "blind", "grounding", "drop"),
    tiles=(
        ("Clean R@1", "lead", "r1", max),
        ("R@1, hardest variant", "attacks", "r1", min),
        ("Largest drop", "attacks", "drop", max),
        ("Largest FR@1", "attacks", "fr1", max),
        ("Clean R@5", "lead", "r5", max),
        ("Clean R@10", "lead", "r10", max),
    ),
    charts=_charts,
    errors=(
        "Examples of fooled {queries}",
        "Among the {queries} for which {altered} ranked first, those with the largest margin between the score of the "
        "wrong answer and that of the best correct one. The variants alternate, and each image is shown once for a "
        "model.",
    ),
)
