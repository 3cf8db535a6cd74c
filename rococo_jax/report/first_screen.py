"""The first screen of the page: what was tested, what happened and what to conclude, then a line for each model.

The conclusion uses the primary tests of the first task alone; `report.verdicts` has all of them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.evaluation.examples import Example
from rococo_jax.metrics import metric_of
from rococo_jax.metrics.paired import Verdict
from rococo_jax.report.blocks import Block, Cell, Charts, Head, Note, Part, Table, estimate_cell, rich
from rococo_jax.report.charts import Dot, round_ticks, scatter
from rococo_jax.report.collection import Estimate, Group, Run, label_of, tasks_of, variants_of
from rococo_jax.report.comparison import Comparison
from rococo_jax.report.difference import Difference
from rococo_jax.report.examples import example_cards
from rococo_jax.report.facts import model_line
from rococo_jax.report.overview import attacks_of, in_order
from rococo_jax.report.sections import lead_of, section_of_variant
from rococo_jax.report.tables import MOST_BARS, MOST_PANELS, has_any, interval_panels
from rococo_jax.report.task_tests import is_at_chance
from rococo_jax.report.verdicts import COLUMNS, INTERVAL, cells_of, leader_sentence
from rococo_jax.report.vocabulary import (
    ALTERED,
    QUERIES,
    QUESTIONS,
    count,
    percent,
    task_label,
    variant_definition,
    variant_label,
)

# More names than this are counted instead of listed.
_MOST_NAMES = 4
_SIGNIFICANT = "Significant: p below 0.05, paired by image and corrected (max-T) over {}."
_BETTER_END = {"higher": "higher is better", "lower": "lower is better"}


@dataclasses.dataclass(frozen=True)
class Focus:
    """Task, variant and metric that the sentences of the first screen are about.

    Attributes:
        runs: the models that were measured: the reference, then the others as they were named.
        described: the reference of the comparison, else the first model.
        variant, metric: of the main number: where altered items join a gallery, FR@1 of the first altered variant in
            reading order, whatever the results, so that they do not choose what leads the page.
        comparison: of the task; None where there is one model.
    """

    runs: Sequence[Run]
    described: Run
    task: str
    variant: str
    metric: str
    comparison: Comparison | None

    @property
    def is_attack(self) -> bool:
        """Whether altered items join a gallery."""
        return self.metric == "fr1"

    def main(self, run: Run) -> Estimate:
        """Return the main number of a model."""
        return run.estimate(self.task, self.variant, self.metric)

    def difference(self, run: Run, variant: str, metric: str) -> Difference | None:
        """Return the primary difference between a model and the reference, if it was tested."""
        return self.comparison.primary.get((run.label, variant, metric)) if self.comparison else None


def first_screen(
    group: Group,
    examples: Mapping[str, Sequence[Example]],
    facts: Part,
    compared: Mapping[str, Comparison],
    leaderboard: Part | None,
) -> Part:
    """Return the first screen of a group of results.

    It describes the first task in which altered items can rank first, else the first task.

    Args:
        examples: by label of the model.
        facts: what was measured on, shown last.
        compared: the comparison with the reference, by task.
        leaderboard: of the group.
    """
    focus = _focus(group, compared)
    sentences = [
        rich("<b>What was tested.</b> {}", _tested(focus)),
        rich("<b>What happened.</b> {}", _happened(focus)),
        rich("<b>What to conclude.</b> {}", _conclusion(focus)),
    ]
    blocks: list[Block | None] = [Note(sentence, "verdict") for sentence in sentences]
    blocks.append(leaderboard)
    many = len(focus.runs) > MOST_PANELS
    if not many:
        blocks.append(_models(focus))
    if focus.comparison:
        blocks.append(Note(_SIGNIFICANT.format(focus.comparison.family)))
    if focus.is_attack:
        # In a part of its own, the names below the chart stay beside the example.
        blocks.append(Part("", [_field(focus)], "") if many else _bars(focus))
        blocks.append(_example(focus, examples))
    return Part("In short", [*blocks, facts], "task headline", "headline")


def _focus(group: Group, compared: Mapping[str, Comparison]) -> Focus:
    tasks = tasks_of(group.runs)
    for task in tasks:
        if attacks := attacks_of(group.runs, task):
            return _focus_on(group, task, attacks[0], "fr1", compared.get(task))
    variant, metric = lead_of(group.runs, tasks[0])
    return _focus_on(group, tasks[0], variant, metric, compared.get(tasks[0]))


def _focus_on(group: Group, task: str, variant: str, metric: str, comparison: Comparison | None) -> Focus:
    runs = [run for run in group.runs if task in run.tasks]
    measured = [run for run in runs if run.estimate(task, variant, metric).value is not None] or runs
    measured = in_order(measured, comparison.reference if comparison else None)
    return Focus(measured, measured[0], task, variant, metric, comparison)


def _tested(focus: Focus) -> Markup:
    """Describe what each model had to do."""
    task, sizes = focus.task, focus.described.sizes(focus.task)
    if not focus.is_attack:
        question = QUESTIONS.get(task) or section_of_variant(focus.runs, task, focus.variant).question
        items = sizes.get(focus.variant, {})
        size = next((f" ({count(items[name])} {name})" for name in ("items", "queries", "images") if name in items), "")
        return rich("{}{}: {}", task_label(task), size, question)
    queries = QUERIES.get(task, "queries")
    gallery = {"images": "captions", "captions": "images"}.get(queries, "items")
    clean, altered = sizes.get(CLEAN, {}), sizes.get(focus.variant, {})
    ranked = f"{count(clean['gallery'])} {gallery}" if "gallery" in clean else f"all {gallery}"
    number = count(clean["queries"]) if "queries" in clean else "the"
    has_sizes = "gallery" in altered and "gallery" in clean
    altered_count = count(altered["gallery"] - clean["gallery"]) if has_sizes else "the"
    subject = "The model" if len(focus.runs) == 1 else f"Each of {len(focus.runs)} models"
    kind = "mixed images" if task == "text_to_image" else f"altered {gallery}"
    definition = variant_definition(focus.variant)
    explanation = f": {definition}" if definition else ""
    text = rich("{} ranked {} for each of {} {}.", subject, ranked, number, queries)
    text += rich(" Then {} {} joined the gallery", altered_count, kind)
    text += rich(" (<i>{}</i>{}).", variant_label(focus.variant), explanation)
    return text + " None of them is a correct answer."


def _happened(focus: Focus) -> Markup:
    """Give the main number of the described model, and the range over all."""
    run, queries = focus.described, QUERIES.get(focus.task, "queries")
    main = focus.main(run)
    bounds = f" (95 % interval {main.bounds})" if main.bounds else ""
    if not focus.is_attack:
        variant = label_of(focus.runs, focus.task, focus.variant)
        name = f"{metric_of(focus.metric).label}, {variant.lower()}"
        text = rich("<b>{}</b> reaches <b>{}</b>{} ({}).", run.label, percent(main.value), bounds, name)
    else:
        before, after = (run.estimate(focus.task, variant, "r1").value for variant in (CLEAN, focus.variant))
        altered = ALTERED.get(focus.task, "an altered item")
        text = rich("With <b>{}</b>, {} ranks first for <b>{} %</b>", run.label, altered, percent(main.value))
        text += rich(" of the {}{}; this is FR@1, and lower is better.", queries, bounds)
        if before is not None and after is not None:
            text += rich(
                " A correct answer ranks first (R@1) for {} % before and {} % after.", percent(before), percent(after)
            )
    values = [value for each in focus.runs if (value := focus.main(each).value) is not None]
    return text + _range(metric_of(focus.metric).label, values) if len(values) > 1 else text


def _range(name: str, values: Sequence[float | int]) -> Markup:
    """Return the sentence on a metric over several models."""
    low, high = percent(min(values)), percent(max(values))
    if low == high:
        return rich(" {} is the same for {} models.", name, "both" if len(values) == 2 else f"all {len(values)}")
    return rich(" Over the {} models, {} ranges from {} to {}.", str(len(values)), name, low, high)


# Endings of the sentence about the models of each verdict.
_FOOLED: Mapping[Verdict, str] = {
    "better": "significantly less often fooled than {}",
    "worse": "significantly more often fooled than {}",
    "undecided": "not significantly different from {} in FR@1",
    "identical answers": "equal to {} in FR@1 on every image",
}
_BLIND: Mapping[Verdict, str] = {
    "text bias": "significantly further from 50 in Blind than {}: text bias, which recognises altered items without "
    "looking",
}
_RECALL: Mapping[Verdict, str] = {
    "better": "significantly better than {} in clean R@1",
    "worse": "significantly worse than {} in clean R@1",
}
_OTHER: Mapping[Verdict, str] = {
    "better": "significantly better than {}",
    "worse": "significantly worse than {}",
    "undecided": "not significantly different from {}",
    "identical answers": "equal to {} on every image",
}


def _conclusion(focus: Focus) -> Markup:
    """State which differences are significant, or what one model alone shows."""
    if focus.comparison is None:
        return _conclusion_of_one(focus)
    reference = focus.comparison.reference
    leader = leader_sentence(focus.comparison)
    weak = [run.label for run in focus.runs if is_at_chance(run, focus.task, focus.variant)]
    sentences = [_chance_sentence(weak, len(focus.runs))] if weak else []
    if len(weak) == len(focus.runs):
        return Markup(" ").join([*filter(None, [leader]), *sentences])
    if focus.is_attack:
        sentences += _by_verdict(focus, focus.variant, "fr1", reference, _FOOLED)
        sentences += _by_verdict(focus, focus.variant, "blind", reference, _BLIND)
        sentences += _by_verdict(focus, CLEAN, "r1", reference, _RECALL)
    else:
        sentences += _by_verdict(focus, focus.variant, focus.metric, reference, _OTHER)
    if leader:
        sentences.append(rich("{}", leader))
    if not sentences:
        name = metric_of(focus.metric).label
        return rich("The difference in {} was not tested: the models have no common items with counts.", name)
    return Markup(" ").join(sentences)


def _chance_sentence(names: Sequence[str], total: int) -> Markup:
    verb, whose = ("finds", "its") if len(names) == 1 else ("find", "their")
    text = (
        "{} {} no more than guessing does, even without alterations, so {} FR@1, drops and verdicts are not meaningful."
    )
    return rich(text, _listing(names, total), verb, whose)


def _by_verdict(
    focus: Focus, variant: str, metric: str, reference: Run, endings: Mapping[Verdict, str]
) -> Iterator[Markup]:
    """Yield a sentence for each verdict that models have in a metric."""
    tests = [(run, focus.difference(run, variant, metric)) for run in focus.runs if run is not reference]
    tested = [(run, row.verdict) for run, row in tests if row is not None]
    for verdict, ending in endings.items():
        names = [run.label for run, each in tested if each == verdict]
        if names:
            verb = "is" if len(names) == 1 else "are"
            yield rich("{} {} {}.", _listing(names, len(tested)), verb, ending.format(reference.label))


def _listing(names: Sequence[str], total: int) -> Markup:
    """Join names with commas and "and"; count them where there are many."""
    if len(names) > _MOST_NAMES:
        return rich("{} of {} models", str(len(names)), str(total))
    bold = [rich("<b>{}</b>", name) for name in names]
    return Markup(" and ").join(filter(None, [Markup(", ").join(bold[:-1]), bold[-1]]))


def _conclusion_of_one(focus: Focus) -> Markup:
    drop = focus.described.estimate(focus.task, focus.variant, "drop_points")
    if focus.is_attack and drop.has_interval:
        points = f"{percent(drop.value)} points of R@1 (95 % interval {drop.bounds})"
        if drop.low > 0:
            text = rich("The alteration costs {}, more than another sample of images would explain.", points)
        else:
            text = rich("The alteration changes R@1 by {}: no significant effect on these images.", points)
    else:
        text = Markup("The interval shows what another sample of items would change.")
    return text + Markup(
        " To know whether that is much for a model of its kind, evaluate a second model and run "
        "<code>rococo compare</code>."
    )


def _models(focus: Focus) -> Table:
    """Return a line for each model: what it is, the main number, and its difference from the reference."""
    columns = [(CLEAN, "r1")] if focus.is_attack else []
    columns.append((focus.variant, focus.metric))
    # Of classes, whether confidence can be trusted as well.
    columns += [(focus.variant, "ece")] * (
        not focus.is_attack and has_any(focus.runs, focus.task, [focus.variant], "ece")
    )
    if focus.is_attack:
        looking = [(focus.variant, name) for name in ("blind", "grounding")]
        columns += [each for each in looking if has_any(focus.runs, focus.task, [focus.variant], each[1])]
    heads = [Head("Model", words=True)]
    for variant, metric in columns:
        about = metric_of(metric)
        label = f"{about.label}, {label_of(focus.runs, focus.task, variant).lower()}"
        direction = f" ({_BETTER_END[about.better]})" if about.better in _BETTER_END else ""
        # Blind and grounding are of the variant before them; short, so that the verdict is on the screen.
        is_short = metric in ("blind", "grounding") and focus.is_attack
        heads.append(Head(about.label if is_short else label + direction, about.definition))
    reference = focus.comparison.reference if focus.comparison else None
    if reference is not None:
        name = f"{metric_of(focus.metric).label}: difference from {reference.label}"
        heads[1:1] = [Head("Verdict", words=True)]
        heads += [Head(name), Head("p (corrected)")]
    rows = []
    for run in focus.runs:
        differences = [] if reference is None else _verdict_cells(focus, run, reference)
        cells = [_estimate_cell(focus, run, *column) for column in columns]
        rows.append(
            [Cell(run.label, tuple(filter(None, [model_line(run)]))), *differences[:1], *cells, *differences[1:]]
        )
    return Table(f"Models in short, {focus.task}", heads, rows)


def _estimate_cell(focus: Focus, run: Run, variant: str, metric: str) -> Cell:
    """Return a number with its interval, and a mark where it shows more text bias than the reference has."""
    cell = estimate_cell(run.estimate(focus.task, variant, metric))
    difference = focus.difference(run, variant, metric)
    is_biased = difference is not None and difference.verdict == "text bias"
    return dataclasses.replace(cell, small=(*cell.small, "text bias")) if is_biased else cell


def _verdict_cells(focus: Focus, run: Run, reference: Run) -> list[Cell]:
    difference = focus.difference(run, focus.variant, focus.metric)
    if run is reference:
        return [Cell("reference", words=True), Cell("–"), Cell("–")]
    if difference is None:
        return [Cell("not tested", words=True), Cell("–"), Cell("–")]
    texts = dict(zip(COLUMNS, cells_of(difference), strict=True))
    interval = texts[INTERVAL].replace(" to ", "\u00a0to ")  # two lines at most on a phone
    verdict = "not meaningful" if difference.verdict == "at chance" else texts["Verdict"]
    return [Cell(verdict, words=True), Cell(texts["Difference"], (interval,)), Cell(texts["p"])]


def _bars(focus: Focus) -> Charts:
    """Return FR@1 as bars: of all models, or of all variants of the one model."""
    one = len(focus.runs) == 1
    variants = variants_of(focus.runs, focus.task, "fr1", lambda each: each.is_attack) if one else [focus.variant]
    bars = interval_panels(focus.runs, focus.task, variants, "fr1", "false-recall")
    title = "FR@1, %" if one else f"FR@1, {variant_label(focus.variant)}, %"
    return dataclasses.replace(bars, charts=[(f"{title} (lower is better)", chart) for _, chart in bars.charts])


def _field(focus: Focus) -> Charts:
    """Return FR@1 against clean R@1, a numbered point for each model, or of very many only those at the ends."""
    pairs = [(run, run.estimate(focus.task, CLEAN, "r1"), focus.main(run)) for run in focus.runs]
    pairs = [each for each in pairs if None not in (each[1].value, each[2].value)]
    ends = [end(pairs, key=lambda each: each[side].value)[0].label for side in (1, 2) for end in (max, min)]
    named = [run.label for run, _, _ in pairs] if len(pairs) <= MOST_BARS else dict.fromkeys(ends)
    numbers = {label: str(number) for number, label in enumerate(named, 1)}
    dots = [
        Dot(
            numbers.get(run.label, ""),
            f"{run.label}: clean R@1 {percent(clean.value)} %, FR@1 {percent(fooled.value)} %",
            Estimate(clean.value),
            Estimate(fooled.value),
        )
        for run, clean, fooled in pairs
    ]
    values = [[each[side].value for each in pairs] for side in (1, 2)]
    across, up = (round_ticks(min(each), max(*each, min(each) + 1), 6) for each in values)
    label = variant_label(focus.variant)
    name = f"FR@1 against clean R@1, {label}"
    up_label = f"FR@1, {label}, % (lower is better)"
    return Charts([("", scatter(name, dots, across, up, "clean R@1, %", up_label, 288))], numbered=list(numbers))


def _example(focus: Focus, examples: Mapping[str, Sequence[Example]]) -> Block | None:
    """Return one error of the described model, if possible an altered caption of the query itself."""
    of_model = examples.get(focus.described.label, ())
    errors = [each for each in of_model if each.role == "error" and each.task == focus.task]
    errors = sorted(errors, key=lambda each: (each.variant != focus.variant, each.kind != "own_altered", each.order))
    return example_cards(errors[:1], model=focus.described.label) if errors else None
