"""The first screen of the page: one sentence, one chart, one picture for which an altered caption won."""

import dataclasses
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.evaluation.examples import Example
from rococo_jax.report.blocks import Charts, Note, Part, rich
from rococo_jax.report.charts import Dot, round_ticks, scatter
from rococo_jax.report.collection import Figure, Group, Run, best_first, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison, leader_sentence
from rococo_jax.report.examples import example_cards
from rococo_jax.report.tables import MOST_PANELS, interval_panels
from rococo_jax.report.vocabulary import ALTERED, QUERIES, percent, variant_label


def headline(
    group: Group, examples: Mapping[str, Sequence[Example]], facts: Part, compared: Mapping[str, Comparison]
) -> Part | None:
    """The headline of the first task in which altered items can come first, or None if there is none.

    Of several models it describes the reference, and then says whether one of them is clearly the best.
    The facts stand below, or beside the chart if there is no example.
    """
    for task in tasks_of(group.runs):
        altered = variants_of(group.runs, task, "fr1", lambda each: each.is_attack)
        runs = [run for run in best_first(group.runs, task, (CLEAN, "r1")) if _hardest(run, task, altered)]
        if runs:
            break
    else:
        return None
    comparison = compared.get(task)
    described = comparison.reference if comparison and comparison.reference in runs else runs[0]
    variant = _hardest(described, task, altered)
    cards = [each for each in examples.get(described.label, ()) if each.role == "error" and each.task == task]
    # A picture's own altered caption shows best what is asked; else any that won.
    cards = sorted(cards, key=lambda each: (each.kind != "own_altered", each.variant != variant, each.order))[:1]
    sentence = _sentence(described, task, variant)
    if comparison and comparison.first_two:
        sentence += rich(" {}", leader_sentence(comparison.first_two))
    told = Note(sentence, "verdict")
    if len(runs) > MOST_PANELS:
        chart = _field(runs, task, variant)
    else:
        shown = altered if len(runs) == 1 else [variant]
        bars = interval_panels(runs, task, shown, "fr1", "false-recall")
        title = "FR@1, %" if len(runs) == 1 else f"FR@1, {variant_label(variant)}, %"
        chart = dataclasses.replace(bars, charts=[(title, drawn) for _, drawn in bars.charts])
    beside = example_cards(cards) if cards else None
    return Part("In one sentence", [told, chart, beside, facts], 3, "task headline", "headline")


def _field(runs: Sequence[Run], task: str, variant: str) -> Charts:
    """FR@1 against clean R@1, a point a model; the ends of both are numbered."""
    pairs = [(run, run.figure(task, CLEAN, "r1"), run.figure(task, variant, "fr1")) for run in runs]
    pairs = [each for each in pairs if None not in (each[1].value, each[2].value)]
    ends = [end(pairs, key=lambda each: each[side].value)[0].label for side in (1, 2) for end in (max, min)]
    numbers = {label: str(number) for number, label in enumerate(dict.fromkeys(ends), 1)}
    dots = [
        Dot(numbers.get(run.label, ""),
            f"{run.label}: clean R@1 {percent(clean.value)} %, FR@1 {percent(fooled.value)} %",
            Figure(clean.value), Figure(fooled.value))
        for run, clean, fooled in pairs
    ]  # fmt: skip
    values = [[each[side].value for each in pairs] for side in (1, 2)]
    across, up = (round_ticks(min(each), max(*each, min(each) + 1), 6) for each in values)
    name = f"FR@1 against clean R@1, {variant_label(variant)}"
    drawn = scatter(name, dots, across, up, "clean R@1, %", f"FR@1, {variant_label(variant)}, %", 460)
    return Charts([("", drawn)], numbered=list(numbers))


def _hardest(run: Run, task: str, altered: Sequence[str]) -> str | None:
    """The variant by which a model is fooled most often."""
    found = {name: value for name in altered if (value := run.figure(task, name, "fr1").value) is not None}
    return max(found, key=found.get) if found else None


def _sentence(run: Run, task: str, variant: str) -> Markup:
    fooled, clean = run.figure(task, variant, "fr1"), run.figure(task, CLEAN, "r1")
    bounds = f" ({fooled.bounds})" if fooled.bounds else ""
    text = rich(
        "<b>{}</b> puts {} first for <b>{} %</b>{} of the {} ({})",
        run.label, ALTERED.get(task, "an altered item"), percent(fooled.value), bounds,
        QUERIES.get(task, "queries"), variant_label(variant),
    )  # fmt: skip
    now = run.figure(task, variant, "r1").value
    if clean.value is not None and now is not None:
        return text + rich("; its R@1 goes from {} to {}.", percent(clean.value), percent(now))
    return text + rich(".")
