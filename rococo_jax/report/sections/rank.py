"""Section of a retrieval task: recall, false recall, drops, and what ranks first."""

from collections.abc import Sequence

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.metrics import metric_of
from rococo_jax.report.blocks import Charts, Note, Part
from rococo_jax.report.charts import Dot, Stack, common_ticks, scatter, stacked_bars
from rococo_jax.report.collection import Estimate, Run, best_first, variants_of
from rococo_jax.report.sections.generic import TaskSection
from rococo_jax.report.tables import MOST_PANELS, bars_note, interval_panels, panels
from rococo_jax.report.vocabulary import ALTERED, QUERIES, percent, variant_label

_LEAD = (CLEAN, "r1")
_SPLIT = ("top1_own", "top1_own_altered", "top1_other_altered", "top1_other")
_DROP = (
    "The share of its clean R@1 that a model loses: 100 × (clean − altered) / clean, in per cent. The paper reports a "
    "drop rate without a formula; this one is a definition of this project. Whiskers span the 95 % interval."
)
_SCATTER = (
    "R@1 on the clean gallery (horizontal) and on the altered gallery (vertical), in per cent. On the dashed line "
    "nothing is lost; points further below it lose more. Lines through a point are its 95 % intervals; the points are "
    "named below."
)


def _altered(runs: Sequence[Run], task: str, metric: str | None = None) -> list[str]:
    return variants_of(runs, task, metric, lambda each: not each.is_clean)


def _charts(runs: Sequence[Run], task: str) -> list[Part | None]:
    queries = QUERIES.get(task, "queries")
    false_recall = (
        f"FR@1: share of {queries} for which {ALTERED.get(task, 'an altered item')} ranks first, whether it was made "
        "from the query's own item or from another one, in per cent. Lower is better. Whiskers span the 95 % "
        "interval."
    )
    split = f"What ranks first for each of the {queries}; the four shares sum to 100 %."
    drop = interval_panels(runs, task, _altered(runs, task, "drop"), "drop", "drop")
    fooled = interval_panels(runs, task, _altered(runs, task, "fr1"), "fr1", "false-recall")
    pair = [_part("Drop in R@1", _DROP, drop), _part("False recall", false_recall, fooled)]
    return [
        _part("Clean against altered", _SCATTER, _scatters(runs, task)),
        Part("", pair, style="panels pair" if len(runs) == 1 else "") if any(pair) else None,
        _part("What ranks first", split, _splits(runs, task)),
    ]


def _part(title: str, note: str, charts: Charts | None) -> Part | None:
    return None if charts is None else Part(title, [Note(note), charts])


def _scatters(runs: Sequence[Run], task: str) -> Charts | None:
    """Return a panel for each altered variant, with a point for each model; None with fewer than two models."""
    runs = best_first(runs, task, _LEAD)
    points_of: dict[str, list[tuple[int, Run, Estimate, Estimate]]] = {}
    for variant in variants_of(runs, task, "r1", lambda each: not (each.is_clean or each.unseen))[:MOST_PANELS]:
        pairs = [
            (place, run, run.estimate(task, *_LEAD), run.estimate(task, variant, "r1"))
            for place, run in enumerate(runs, 1)
        ]
        points_of[variant] = [each for each in pairs if None not in (each[2].value, each[3].value)]
    points_of = {variant: points for variant, points in points_of.items() if len(points) > 1}
    if not points_of:
        return None
    ticks = common_ticks([estimate for points in points_of.values() for each in points for estimate in each[2:]])
    charts = []
    for variant, points in points_of.items():
        dots = [
            Dot(
                str(place),
                f"{run.label}: clean {percent(clean.value)} %, altered {percent(altered.value)} %",
                clean,
                altered,
            )
            for place, run, clean, altered in points
        ]
        label = variant_label(variant)
        charts.append(
            (label, scatter(f"Clean against altered R@1: {label}", dots, ticks, ticks, "clean R@1", "altered R@1"))
        )
    return Charts(charts, numbered=[run.label for run in runs], style="scatters")


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
