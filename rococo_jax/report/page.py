"""Page of a report: groups of comparable results, each with a section for every task, in one self-contained file."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import quote

from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.evaluation.examples import EXAMPLES, Example
from rococo_jax.metrics import is_defined, metric_of
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.report.blocks import (
    Alert,
    Block,
    Cards,
    Folded,
    Note,
    Notes,
    Page,
    Part,
    PlainTable,
    Table,
    Terms,
    Text,
    rich,
)
from rococo_jax.report.collection import Group, Run, by_kind, corrupted_by, tasks_of
from rococo_jax.report.comparison import DIFFERENCES, Comparison, Comparisons, comparison_part, left_out_lines
from rococo_jax.report.concepts import concepts_part
from rococo_jax.report.correlations import correlations_part
from rococo_jax.report.examples import ERROR, WON, WON_NOTE, choose_examples, example_cards
from rococo_jax.report.facts import (
    coverage_alerts,
    differences,
    group_name,
    model_cards,
    notes,
    one_size_each,
    repetition,
    setting,
    sizes,
)
from rococo_jax.report.first_screen import first_screen
from rococo_jax.report.leaderboard import leaderboard_part, leaderboard_tables
from rococo_jax.report.overview import attacks_of
from rococo_jax.report.sections import TaskSection, ordered, section_of
from rococo_jax.report.sections.choice import CHOICES
from rococo_jax.report.sections.classify import CLASSES
from rococo_jax.report.sections.corruptions import corrupted_part
from rococo_jax.report.sections.generic import grounding_part, results_of, tiles_of
from rococo_jax.report.task_tests import is_at_chance
from rococo_jax.report.verdicts import verdict_part
from rococo_jax.report.vocabulary import (
    ALTERED,
    PROTOCOLS,
    QUERIES,
    QUESTIONS,
    order_metrics,
    task_label,
    variant_label,
)

# What joins the gallery of a task.
_GALLERIES = {"image_to_text": "captions with one wrong word", "text_to_image": "mixed images"}
_ORIGINS = {"ours": "our definition", "benchmark": "benchmark's code", "paper": "paper"}
_DEFINITION_COLUMNS = ("Metric", "Definition", "Source of the formula")


def lede(runs: Sequence[Run]) -> str:
    """Return the questions of the page in one sentence, from the tasks that are there."""
    tasks = tasks_of(runs)
    kinds = {kind for run in runs for task in run.tasks for kind in run.kinds(task)}
    tasks_with_attacks = {task for task in tasks if attacks_of(runs, task)}
    galleries = [words for task, words in _GALLERIES.items() if task in tasks_with_attacks]
    galleries += ["altered items"] * bool(tasks_with_attacks - _GALLERIES.keys())
    clauses = [f"when {' or '.join(galleries)} join the gallery"] if galleries else []
    if "rank" in kinds and not tasks_with_attacks:
        clauses.append("when they rank images and texts")
    if kinds & CHOICES.keys():
        clauses.append("when texts or images differ in a detail only")
    if kinds & CLASSES.keys():
        clauses.append("when they assign images to classes")
    if corrupted_by(runs)[0]:
        clauses.append("when images are corrupted")
    text = ", ".join([*clauses[:-2], " and ".join(clauses[-2:])])
    trusted = ", and whether their confidence can be trusted" if kinds & CLASSES.keys() else ""
    return f"How image-text models perform {text}".rstrip() + f"{trusted}."


def chance_alert(group: Group) -> Alert | None:
    """Return one warning on all models whose numbers of a task cannot be told from chance."""
    weak: dict[str, list[str]] = {}
    for task in tasks_of(group.runs):
        for run in (run for run in group.runs if CLEAN in run.tasks.get(task, {})):
            if is_at_chance(run, task, CLEAN):
                weak.setdefault(task_label(task), []).append(run.label)
    if not weak:
        return None
    text = "; ".join(f"{task}: {', '.join(labels)}" for task, labels in weak.items())
    why = "Too few images, an untrained model, or images or tokens that are not read as in its training"
    return Alert("At chance, without alterations.", f"{text}. Drops and verdicts of these are not meaningful. {why}.")


def definition_rows(names: Collection[str]) -> list[list[Text]]:
    """Return label, definition and origin of metrics, in reading order."""
    return [
        [
            each.label,
            each.definition,
            rich('<span class="{}">{}</span>', each.origin or "", _ORIGINS.get(each.origin, "")),
        ]
        for each in (metric_of(name) for name in order_metrics(sorted(names)) if is_defined(name))
    ]


def how_to_read(groups: Sequence[Group], is_compared: bool) -> Part:
    """Return the definitions of all metrics and protocols on the page, with their origin."""
    runs = [run for group in groups for run in group.runs]
    names = {name for run in runs for task in run.tasks.values() for metrics in task.values() for name in metrics}
    rows = definition_rows(names)
    tasks = dict.fromkeys(task for group in groups for task in tasks_of(group.runs))
    terms = [(task_label(task), QUESTIONS[task]) for task in tasks if task in QUESTIONS]
    protocols = sorted({run.results["protocol"] for run in runs})
    terms += [(f"Protocol {name}", PROTOCOLS[name].capitalize() + ".") for name in protocols if name in PROTOCOLS]
    terms.append(
        (
            "Intervals",
            "95 % intervals by image, because the captions of one image are not independent: Wilson's for shares, else "
            "bootstrap. They show what another sample of images would change, not what another training run would.",
        )
    )
    if is_compared:
        terms.append(("Differences", DIFFERENCES))
    if corrupted_by(runs)[0]:
        terms.append(
            (
                "Corrupted images",
                "Images are cropped to squares of 224 pixels, for which ImageNet-C chose its constants, corrupted, "
                "then preprocessed as usual for the model. Drops are relative to the same squares without corruption. "
                "ImageNet-C crops 224 pixels from images of 256 and stores JPEG files; its frost is photographed, ours "
                "is drawn.",
            )
        )
    terms.append(("Sections", "Results share a table only if their fingerprints differ in nothing but the model."))
    blocks = [PlainTable(rows, _DEFINITION_COLUMNS), Terms(terms)]
    return Part("How to read this page", blocks, "group", "how-to-read")


# Examples of one model, by how many models share the page: twenty models must not make a page of 50 MB.
_EXAMPLES = ((1, 12), (4, 4), (100_000, 2))


def report_page(
    groups: Sequence[Group],
    files: Mapping[str, str],
    comparisons: Comparisons,
    leaderboards: Sequence[Table] | None = None,
) -> Page:
    """Return the page, with links to files beside it, by their text. Raises InputError: examples.parquet is damaged."""
    blocks, links = [], []
    leaderboards = leaderboard_tables(groups) if leaderboards is None else leaderboards
    for number, (group, leaderboard) in enumerate(zip(groups, leaderboards, strict=True), 1):
        compared = {task: comparison for (place, task), comparison in comparisons.items() if place == number - 1}
        blocks.append(_group(group, number, len(groups) > 1, compared, leaderboard_part(leaderboard)))
        before = f"{number} · " if len(groups) > 1 else ""
        links += [(f"{before}{task_label(task)}", f"#s{number}-{_anchor(task)}") for task in tasks_of(group.runs)]
        if corrupted_by(group.runs)[0]:
            links.append((f"{before}Corrupted images", f"#s{number}-corruptions"))
    links += [("How to read this page", "#how-to-read"), *((text, f"./{quote(name)}") for text, name in files.items())]
    runs = [run for group in groups for run in group.runs]
    title = f"How robust is {runs[0].label}?" if len(runs) == 1 else f"How robust are these {len(runs)} models?"
    return Page(title, "rococo report", lede(runs), blocks, [how_to_read(groups, bool(comparisons))], links)


def _anchor(task: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in task)


def _group(group: Group, number: int, many: bool, compared: dict[str, Comparison], leaderboard: Part | None) -> Part:
    examples = {run.label: run.examples() for run in group.runs}
    title = rich("Section {}: <bdi>{}</bdi>", str(number), group_name(group)) if many else ""
    facts = [setting(group), notes(group), repetition(group), _without_examples(group, examples)]
    facts = Part("", facts, style="facts")
    blocks: list[Block | None] = [
        differences(group) if number > 1 else None,
        *coverage_alerts(group),
        chance_alert(group),
        first_screen(group, examples, facts, compared, leaderboard) if number == 1 else facts,
        leaderboard if number > 1 else None,
        verdict_part(compared),
        _left_out(group, compared),
    ]
    for task in tasks_of(group.runs):
        blocks.append(_task(group, task, f"s{number}-{_anchor(task)}", compared.get(task), examples))
    blocks.append(corrupted_part(group.runs, f"s{number}-corruptions"))
    blocks.append(correlations_part(one_size_each(group.runs), f"s{number}-correlations"))
    blocks.append(concepts_part(group.runs, shipped_lexicon()))
    blocks.append(model_cards(group.runs))
    return Part(title, blocks, "group", f"s{number}")


def _left_out(group: Group, compared: dict[str, Comparison]) -> Folded | None:
    """Return what was not compared, folded; None if that is nothing."""
    lines = left_out_lines([group], {(0, task): comparison for task, comparison in compared.items()})
    return Folded(f"Not compared: {len(lines)}", [Notes(lines)]) if lines else None


def _without_examples(group: Group, examples: dict[str, list[Example]]) -> Note | None:
    labels = [run.label for run in group.runs if not (run.path.parent / EXAMPLES).is_file()]
    if not labels:
        return None
    source = f"the results of {', '.join(labels)}" if any(examples.values()) else "these results"
    text = "There are no examples, because there is no {} beside {}: <code>rococo score</code> writes none."
    return Note(rich(text, EXAMPLES, source))


def _task(
    group: Group, task: str, anchor: str, compared: Comparison | None, examples: dict[str, list[Example]]
) -> Part:
    runs, section = ordered(group.runs, task), section_of(group.runs, task)
    kinds = by_kind(runs, task)
    question = QUESTIONS.get(task, section.question)
    words = {"queries": QUERIES.get(task, "queries"), "altered": ALTERED.get(task, "altered")}
    title, note = (text.format(**words) for text in section.errors)
    blocks: list[Block | None] = [
        Note(question, "question") if question else None,
        sizes(runs, task),
        *(_results(section, runs, task) if len(kinds) < 2 else _results_by_kind(kinds, task)),
        comparison_part(compared, task) if compared else None,
        *(section.charts(runs, task) if len(kinds) < 2 else ()),
        _examples(runs, task, examples, WON, WON_NOTE),
        _examples(runs, task, examples, ERROR, (title, note)),
    ]
    return Part(task_label(task), blocks, "task", anchor)


def _results(section: TaskSection, runs: Sequence[Run], task: str) -> list[Block | None]:
    able = [run for run in runs if not is_at_chance(run, task, CLEAN)]
    at_chance = {run.label for run in runs} - {run.label for run in able}
    left_out = f"Without models at chance: {', '.join(sorted(at_chance))}."
    return [
        tiles_of(section, able, task),
        Note(left_out) if able and at_chance else None,
        results_of(section, runs, task),
        grounding_part(runs, task),
    ]


def _results_by_kind(kinds: dict[str, list[Run]], task: str) -> Iterator[Part]:
    """Yield the results of a task with parts of several kinds, a part of the page for each kind."""
    for kind, runs in kinds.items():
        section = section_of(runs, task)
        question = Note(section.question, "question") if section.question else None
        blocks = [*_results(section, runs, task), *section.charts(runs, task)]
        yield Part(variant_label(kind), [question, *blocks])


def _examples(
    runs: Sequence[Run], task: str, examples: dict[str, list[Example]], roles: Sequence[str], heading: tuple[str, str]
) -> Part | None:
    title, note = heading
    count = next(count for most, count in _EXAMPLES if len(runs) <= most)
    by_model: list[Cards | Folded] = []
    for run in runs:
        if of_model := choose_examples(examples[run.label], task, roles, count):
            cards = example_cards(of_model)
            by_model.append(cards if len(runs) == 1 else Folded(run.label, [cards]))
    return Part(title, [Note(note), *by_model]) if by_model else None
