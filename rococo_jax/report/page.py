"""Page of a report: groups of comparable results, each with a section for every task, in one self-contained file."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from rococo_jax.benchmarks.benchmark import known_benchmarks
from rococo_jax.benchmarks.subset import phrase_of
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.errors import is_whole, object_of
from rococo_jax.evaluation.conditions import flatten
from rococo_jax.evaluation.examples import EXAMPLES, Example
from rococo_jax.evaluation.summary import joined_notes
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
from rococo_jax.report.comparison import DIFFERENCES, Comparison, Comparisons, comparison_part
from rococo_jax.report.concepts import concepts_part
from rococo_jax.report.correlations import correlations_part
from rococo_jax.report.examples import ERROR, WON, WON_NOTE, choose_examples, example_cards
from rococo_jax.report.first_screen import first_screen
from rococo_jax.report.image_sizes import one_size_each
from rococo_jax.report.introduction import chance_alert, lede
from rococo_jax.report.leaderboard import leaderboard_part, leaderboard_tables
from rococo_jax.report.left_out import left_out_lines
from rococo_jax.report.sections import TaskSection, ordered, section_of
from rococo_jax.report.sections.corruptions import corrupted_part
from rococo_jax.report.sections.generic import grounding_part, results_of, tiles_of
from rococo_jax.report.task_sizes import sizes
from rococo_jax.report.task_tests import is_at_chance
from rococo_jax.report.verdicts import verdict_part
from rococo_jax.report.vocabulary import (
    ALTERED,
    PROTOCOLS,
    QUERIES,
    QUESTIONS,
    count,
    order_metrics,
    percent,
    task_label,
    variant_label,
)
from rococo_jax.storage import hash_json

_ORIGINS = {"ours": "our definition", "benchmark": "benchmark's code", "paper": "paper"}
_SIZES = (("image_count", "images"), ("caption_count", "captions"))
_COSTS = (("image", "per image"), ("text", "per text of full length"))
_DEFINITION_COLUMNS = ("Metric", "Definition", "Source of the formula")
_CARDS = "Origin of each model, how it was evaluated, and the fingerprint of everything that decides its results."


def coverage(data: dict[str, Any]) -> tuple[int, int, str] | None:
    """Return the images used, the images that the annotations name, and the reason for the difference.

    Returns None if all were used, or if the results do not contain the numbers.
    """
    about = object_of(data.get("coverage"))
    annotated_images, limit = about.get("wanted"), about.get("limit")
    images = about.get("present") if limit is None else data.get("image_count")
    if not is_whole(images) or not is_whole(annotated_images) or images >= annotated_images:
        return None
    return images, annotated_images, "were found" if limit is None else f"were used, because of the limit of {limit}"


def data_name(data: dict[str, Any]) -> str:
    """Return the name of the data as the results give it, else the end of the annotations' path."""
    if isinstance(data.get("name"), str):
        return data["name"]
    path = data.get("annotations")
    return "/".join(part for part in PurePath(path).parts[-2:] if part != "/") if isinstance(path, str) else ""


def group_name(group: Group) -> str:
    """Return the data and the protocol of a group of results as a title."""
    names = [name for data in group.data.values() if (name := data_name(data))]
    return ", ".join([*names, f"protocol {group.runs[0].results['protocol']}"])


def setting(group: Group) -> Terms:
    """Return the data of each benchmark, one line each, and the protocol."""
    first = group.runs[0]
    facts: list[tuple[str, Text]] = []
    for benchmark, data in group.data.items():
        # The texts of a benchmark that is one task are choices, not captions of images.
        is_one_task = any(benchmark in run.tasks for run in group.runs)
        names = [(key, "texts" if word == "captions" and is_one_task else word) for key, word in _SIZES]
        sizes = [f"{count(data[key])} {word}" for key, word in names if is_whole(data.get(key))]
        if line := ", ".join(filter(None, [data_name(data), *sizes])):
            facts.append((task_label(benchmark), line))
    protocol = first.results["protocol"]
    definition = f": {PROTOCOLS[protocol]}" if protocol in PROTOCOLS else ""
    return Terms([*facts, ("Protocol", rich("<b>{}</b>{}", protocol, definition))], "setting")


def repetition(group: Group) -> Folded:
    """Return how to repeat and cite the results, folded: the command, seeds, papers and versions."""
    sizes_of_runs = [size for run in group.runs for task in run.tasks for size in run.sizes(task).values()]
    seeds = ",".join(map(str, dict.fromkeys(seed for size in sizes_of_runs for seed in size.get("seeds") or ())))
    limits = {object_of(data.get("coverage")).get("limit") for data in group.data.values()} - {None}
    options = ["--data DATA", f"--benchmarks {','.join(group.benchmarks)}"]
    options += [f"--protocol {group.runs[0].results['protocol']}", *(f"--limit {limit}" for limit in limits)]
    options += [f"--seeds {seeds}"] if seeds else []
    known = known_benchmarks()
    papers = dict.fromkeys(known[name].paper for name in group.benchmarks if name in known)
    draws = object_of(group.runs[0].results.get("bootstrap"))
    entries: list[tuple[Text, Text]] = [
        ("Command", rich("<code>{}</code>", " ".join(["rococo evaluate MODEL ...", *options, "--out OUT"]))),
        ("Mixing seeds", seeds.replace(",", ", ")),
        ("Bootstrap", f"{count(draws['resamples'])} draws of images, seed {draws['seed']}" if draws else ""),
        ("Papers", "; ".join(paper for paper in papers if paper and not paper.startswith("none"))),
        ("BibTeX", rich("<code>rococo leaderboard OUT --cite</code>")),
    ]
    return Folded("Repeat and cite", [Terms([(term, text) for term, text in entries if text])])


def differences(group: Group) -> Part:
    """Return the conditions in which a group differs from the first."""
    rows = [
        [field, *(rich('<span title="{}">{}</span>', text, _shortened(text)) for text in (first, this))]
        for field, first, this in group.differences
    ]
    note = "Not comparable with section 1, because these results were measured under other conditions:"
    return Part("", [Note(note, ""), PlainTable(rows, ("Field", "Section 1", "This section"))], style="differences")


def _shortened(text: str) -> str:
    return text if len(text) <= 48 else text[:24] + "…" + text[-12:]


def coverage_alerts(group: Group) -> list[Alert]:
    """Return a warning for each benchmark with missing images, or that was evaluated on a list."""
    alerts = []
    for name, data in group.data.items():
        if listed := phrase_of(data):
            text = f"{name}: {listed}. Compare these results with others on the same list only."
            alerts.append(Alert("Not comparable with results on everything.", text))
        if partial := coverage(data):
            images, annotated_images, reason = partial
            text = (
                f"Only {count(images)} of the {count(annotated_images)} images that the annotations of {name} name "
                f"{reason} ({percent(100 * images / annotated_images)} %). Items with missing images are excluded, and "
                "ranking a smaller gallery is easier: compare the models on this page with each other, not with "
                "published numbers."
            )
            alerts.append(Alert("Not comparable with results on all images.", text))
    return alerts


def notes(group: Group) -> Notes | None:
    """Return the notes that the results contain, each once, with the models it is about."""
    labels_of: dict[str, list[str]] = {}
    for run in group.runs:
        for note in dict.fromkeys(run.results.get("notes") or []):
            if isinstance(note, str):
                labels_of.setdefault(note, []).append(run.label)
    if any(map(coverage, group.data.values())):  # the warning above says the same
        labels_of = {note: labels for note, labels in labels_of.items() if not note.startswith(("only ", "limit: "))}
    lines = [
        note if len(labels) == len(group.runs) else f"{', '.join(labels)}: {note}"
        for note, labels in joined_notes(labels_of).items()
    ]
    lines = [*_repeated_results(group.runs), *lines]
    return Notes(lines) if lines else None


def _repeated_results(runs: Sequence[Run]) -> list[str]:
    """Name the runs that are one model with the same results, such as two copies of a folder."""
    labels: dict[str, list[str]] = {}
    for run in runs:
        model = object_of(run.results.get("fingerprint")).get("model")
        if model:
            labels.setdefault(hash_json([model, run.tasks]), []).append(run.label)
    repeated = [each for each in labels.values() if len(each) > 1]
    return [
        f"{', '.join(each)}: the same results of the same model, {len(each)} times in this report" for each in repeated
    ]


def model_cards(runs: Sequence[Run]) -> Part:
    """Return a card for each model, folded under its name."""
    cards = []
    for run in runs:
        fingerprint = Part("Fingerprint", [PlainTable(list(flatten(run.results["fingerprint"]).items()))], "")
        cards.append(Folded(run.label, [PlainTable(model_facts(run)), fingerprint], style="model-card"))
    return Part("Models", [Note(_CARDS), *cards], "task")


def model_facts(run: Run) -> list[tuple[str, str]]:
    """Return what the results say about a model and its evaluation, as terms and texts."""
    return [(term, text) for term, text in _facts(run) if text]


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    about = object_of(run.results.get("about"))
    for term, value in object_of(about.get("provenance")).items():
        yield term.replace("_", " ").capitalize(), _words(value)
    counts, flops = object_of(about.get("parameters")), object_of(about.get("flops"))
    if is_whole(counts.get("total")):
        parts = ", ".join(f"{name.replace('_', ' ')} {count(n)}" for name, n in counts.items() if name != "total")
        yield "Parameters", f"{count(counts['total'])}: {parts}"
    costs = [f"{flops[part] / 1e9:.3g} GFLOP {unit}" for part, unit in _COSTS if is_whole(flops.get(part))]
    yield "Cost", ", ".join(costs)
    yield "Embedding", _words(about.get("embedding_dimensions")) and f"{about['embedding_dimensions']} dimensions"
    yield "Preprocessing", _words(about.get("preprocessing"))
    yield "Tokenizer", _words(about.get("tokenizer"))
    for warning in about.get("warnings") or []:
        yield "Warning", _words(warning)
    yield "Protocol", run.results["protocol"]
    for data in run.data.values():
        counted = [f"{data[key]:,} {word}" for key, word in _SIZES if is_whole(data.get(key))]
        yield "Data", ", ".join([*filter(None, [data_name(data)]), *counted])
        if partial := coverage(data):
            yield "Coverage", f"only {partial[0]:,} of {partial[1]:,} images: not comparable with results on all images"
    versions = object_of(run.results["fingerprint"].get("versions"))
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    for note in run.results.get("notes") or []:
        yield "Note", _words(note)


def _words(value: Any) -> str:
    """Write a JSON value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "" if value is None else str(value)


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
    without = [run.label for run in group.runs if not (run.path.parent / EXAMPLES).is_file()]
    if not without:
        return None
    source = f"the results of {', '.join(without)}" if any(examples.values()) else "these results"
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
