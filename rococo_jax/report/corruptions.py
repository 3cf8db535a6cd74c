"""Corrupted images on the page: means over the kinds first, then a heat map of kinds by severities for each model.

Drops are measured against `uncorrupted`, the same images cut to the same squares without a corruption.
"""

from collections.abc import Sequence

from rococo_jax.benchmarks.image_sets import UNCORRUPTED
from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report import headline, tables
from rococo_jax.report.archive import Archive
from rococo_jax.report.corrupted_pictures import corrupted_strip
from rococo_jax.report.heat_map import Cell, Row, heat_map, scale_legend, top_of_scale
from rococo_jax.report.markup import Markup, element, isolated, join
from rococo_jax.report.scores import Figure, Run, by_clean_recall, corrupted_by, pooled_severities, tasks_of
from rococo_jax.report.variant_families import pooled
from rococo_jax.report.vocabulary import percent, task_label, variant_label

_QUESTION = (
    "The same questions as on clean captions and images, with every image corrupted: noise, blur, weather and digital "
    "damage of ImageNet-C."
)
_MEANS = (
    "Mean R@1 over the kinds of a severity, and how much of the uncorrupted R@1 is lost; below each, its 95 % "
    "bootstrap interval and the standard deviation over kinds (sd)."
)
_MAP = (
    "Drop in R@1 by kind and severity, in per cent of the uncorrupted R@1 (the same images, cut to the same squares of "
    "224 pixels). One scale for all maps of this section; a minus sign is a gain."
)


def corrupted_section(runs: Sequence[Run], anchor: str, archive: Archive) -> Markup | None:
    """Everything on corruptions; None where no run measured any."""
    kinds, severities = corrupted_by(runs)
    if not kinds:
        return None
    names = [task for task in tasks_of(runs) if any(run.corruptions(task) for run in runs)]
    ordered = by_clean_recall(runs, names[0])
    ordered += [run for run in runs if run not in ordered]
    ordered = [run for run in ordered if any(run.corruptions(task) for task in names)]
    return element(
        "section",
        element("h3", "Corrupted images"),
        element("p", _QUESTION, class_="question"),
        _tiles(ordered, names),
        _means(ordered, names),
        _figure("By kind and severity", _MAP, _maps(ordered, names, kinds, severities)),
        corrupted_strip(ordered, names, kinds, severities, archive),
        _all_figures(ordered, names),
        class_="task",
        id=anchor,
    )


def _figure(title: str, note: str, *content: Markup | None) -> Markup:
    return element("section", element("h4", title), element("p", note, class_="note"), content, class_="figure")


def _tiles(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """The mean drop of each task at the lowest and the highest severity."""
    severities = pooled_severities(runs)
    shown = []
    for task in names:
        for severity in dict.fromkeys(severities[:1] + severities[-1:]):
            variant = pooled(severity)
            found = [_known(variant, run.figure(task, variant, "drop")) for run in runs]
            label = f"Mean drop, {task_label(task).lower()}, severity {severity}"
            shown.append(headline.tile(label, runs, found, ours=True))
    return element("div", shown, class_="tiles") if any(shown) else None


def _known(variant: str, figure: Figure) -> tuple[str, Figure] | None:
    return None if figure.value is None else (variant, figure)


def _means(runs: Sequence[Run], names: Sequence[str]) -> Markup | None:
    """One row a model and task: uncorrupted R@1, then R@1 and drop of each severity."""
    severities = pooled_severities(runs)
    if not severities:
        return None
    variants = [pooled(severity) for severity in severities]
    head = element(
        "thead",
        element(
            "tr",
            element("td"),
            element("td"),
            element("th", variant_label(UNCORRUPTED), scope="colgroup", class_="group edge"),
            [element("th", variant_label(name), colspan=2, scope="colgroup", class_="group edge") for name in variants],
        ),
        element(
            "tr",
            tables.header_cell("Model", first=True),
            tables.header_cell("Task", first=True),
            tables.header_cell("R@1", new_group=True),
            [[tables.header_cell("R@1", new_group=True), tables.header_cell("Drop")] for _ in variants],
        ),
    )
    rows = [
        element(
            "tr",
            element("th", isolated(run.label), scope="row"),
            element("td", task_label(task), class_="words"),
            tables.figure_cell(run.figure(task, UNCORRUPTED, "r1"), new_group=True),
            [
                [
                    tables.figure_cell(run.figure(task, variant, "r1"), new_group=True),
                    tables.figure_cell(run.figure(task, variant, "drop")),
                ]
                for variant in variants
            ],
        )
        for task in names
        for run in runs
        if run.corruptions(task)
    ]
    return _figure(
        "Means over kinds", _MEANS, tables.scrolling_table("Means over corruptions", head, rows, len(rows) > 1)
    )


def _maps(runs: Sequence[Run], names: Sequence[str], kinds: Sequence[str], severities: Sequence[int]) -> Markup:
    variants = [f"{kind}_{severity}" for kind in kinds for severity in severities]
    top = top_of_scale([run.figure(task, name, "drop").value for run in runs for task in names for name in variants])
    legend = scale_legend(top, "no drop")
    of_models = [
        element(
            "div", [_map(run, task, kinds, severities, top) for task in names if run.corruptions(task)], class_="maps"
        )
        for run in runs
    ]
    if len(runs) == 1:
        return join(legend, of_models[0])
    folded = [
        element("details", element("summary", isolated(run.label)), maps, open=place == 0)
        for place, (run, maps) in enumerate(zip(runs, of_models, strict=True))
    ]
    return join(legend, folded)


def _map(run: Run, task: str, kinds: Sequence[str], severities: Sequence[int], top: float) -> Markup:
    by_group = {group: [] for group in dict.fromkeys(kind.group for kind in CORRUPTIONS.values())}
    for kind in kinds:
        by_group[CORRUPTIONS[kind].group].append(kind)
    rows = [
        Row(variant_label(kind), tuple(_cell(run, task, f"{kind}_{each}") for each in severities), group.capitalize())
        for group, members in by_group.items()
        for kind in members
    ]
    means = tuple(_cell(run, task, pooled(severity)) for severity in severities)
    if any(cell.value is not None for cell in means):
        rows.insert(0, Row(f"Mean of {len(kinds)} kinds", means))
    drawn = heat_map(f"{run.label}, {task}", "Severity", [str(each) for each in severities], rows, top)
    baseline = percent(run.figure(task, UNCORRUPTED, "r1").value)
    return element(
        "div", element("h5", task_label(task)), element("p", f"Uncorrupted R@1 {baseline} %", class_="note"), drawn
    )


def _cell(run: Run, task: str, variant: str) -> Cell:
    drop, recall = run.figure(task, variant, "drop"), run.figure(task, variant, "r1")
    told = f"{variant_label(variant)}: drop {percent(drop.value)} %"
    if drop.has_interval:
        told += f" (95 % interval {percent(drop.low)} to {percent(drop.high)} %)"
    return Cell(drop.value, f"{told}, R@1 {percent(recall.value)} %")


def _all_figures(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    shown = [
        [element("h5", isolated(f"{run.label}, {task_label(task).lower()}")), table]
        for run in runs
        for task in names
        if (table := tables.model_table(run, task, run.corruptions(task)))
    ]
    return element("details", element("summary", "Every figure of the corruptions"), element("div", shown))
