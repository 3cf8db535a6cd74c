"""The page: sections of comparable results, each with its tables, charts and examples, in one self-contained file."""

from collections.abc import Mapping, Sequence

from rococo_jax.benchmarks.settings import CONTROL
from rococo_jax.progress import progress
from rococo_jax.report import definitions, headline, model_cards, provenance, tables
from rococo_jax.report.archive import Archive
from rococo_jax.report.collection import Section
from rococo_jax.report.comparison import Comparison, Comparisons, told_of
from rococo_jax.report.corruptions import corrupted_section
from rococo_jax.report.differences import difference_table
from rococo_jax.report.document import document
from rococo_jax.report.examples import PER_QUERY_FILE, choose_examples, read_fooled
from rococo_jax.report.gallery import cards
from rococo_jax.report.markup import Markup, element, isolated, join
from rococo_jax.report.mixed_pictures import MixedPictures
from rococo_jax.report.panels import interval_panels, split_panels
from rococo_jax.report.scatter import SCATTER_CAPTION, scatter_panels
from rococo_jax.report.scores import Run, by_clean_recall, corrupted_by, tasks_of
from rococo_jax.report.vocabulary import ALTERED, QUERIES, TASK_QUESTIONS, task_label

# Examples of one model, by how many models share the page: twenty models must not make a page of 50 MB.
_EXAMPLES = ((1, 12), (4, 8), (100_000, 4))


def render_page(sections: Sequence[Section], csv_name: str, comparisons: Comparisons) -> str:
    """The whole page as HTML.

    Args:
        sections: what `group_by_fingerprint` made; not empty.
        csv_name: file name of the CSV beside the page.
        comparisons: what `compare_sections` made of the sections.

    Raises:
        InputError: a per_query.parquet is not whole.
    """
    many, archive = len(sections) > 1, Archive()
    drawn = []
    for index, section in enumerate(sections, 1):
        compared = {task: found for (place, task), found in comparisons.items() if place == index - 1}
        drawn.append(_section(section, index, many, archive, compared))
    body = join(
        _masthead(sections, csv_name),
        element("main", drawn, id="main"),
        definitions.how_to_read(sections),
    )
    return document(_title(sections), body, "rococo report")


def _title(sections: Sequence[Section]) -> str:
    runs = [run for section in sections for run in section.runs]
    return f"How robust is {runs[0].label}?" if len(runs) == 1 else f"How robust are these {len(runs)} models?"


def _masthead(sections: Sequence[Section], csv_name: str) -> Markup:
    links = [
        element("li", element("a", f"{_number(index, sections)}{task_label(task)}", href=f"#s{index}-{task}"))
        for index, section in enumerate(sections, 1)
        for task in tasks_of(section.runs)
    ]
    links += [
        element("li", element("a", f"{_number(index, sections)}Corrupted images", href=f"#s{index}-corruptions"))
        for index, section in enumerate(sections, 1)
        if corrupted_by(section.runs)[0]
    ]
    links.append(element("li", element("a", "How to read this page", href="#how-to-read")))
    links.append(element("li", element("a", "All figures as CSV", href=f"./{csv_name}", download=True)))
    return element(
        "header",
        element("p", "rococo report", class_="kicker"),
        element("h1", element("bdi", _title(sections))),
        element(
            "p",
            "Image-text models under stress: what happens to retrieval when captions with a wrong word, or images with "
            "another mixed in, join the gallery, or when images are corrupted.",
            class_="lede",
        ),
        element("nav", element("ul", links), aria_label="On this page"),
    )


def _number(index: int, sections: Sequence[Section]) -> str:
    return f"{index} · " if len(sections) > 1 else ""


def _section(section: Section, index: int, many: bool, archive: Archive, compared: Mapping[str, Comparison]) -> Markup:
    return element(
        "section",
        element("h2", f"Section {index}: ", isolated(_section_name(section))) if many else None,
        provenance.differences(section) if index > 1 else None,
        headline.setting(section),
        headline.coverage_warning(section),
        headline.notes(section),
        [_task(section, task, f"s{index}-{task}", archive, compared.get(task)) for task in tasks_of(section.runs)],
        corrupted_section(section.runs, f"s{index}-corruptions", archive),
        model_cards.model_cards(section.runs),
        class_="group",
        id=f"s{index}",
    )


def _section_name(section: Section) -> str:
    name = headline.dataset_name(section.runs[0].data)
    protocol = f"protocol {section.runs[0].results['protocol']}"
    return f"{name}, {protocol}" if name else protocol


def _task(section: Section, task: str, anchor: str, archive: Archive, compared: Comparison | None) -> Markup:
    runs = by_clean_recall(section.runs, task)
    single = len(runs) == 1
    table = tables.model_table(runs[0], task) if single else tables.leaderboard(runs, task)
    return element(
        "section",
        element("h3", task_label(task)),
        element("p", TASK_QUESTIONS[task], class_="question") if task in TASK_QUESTIONS else None,
        element("p", said, class_="note") if (said := headline.sizes(runs[0], task)) else None,
        headline.tiles(runs, task),
        _figure(
            "Results",
            join(_table_note(single), definitions.spread_note(runs, task)),
            definitions.variant_notes(runs, task),
            table,
            None if single else _all_figures(runs, task),
        ),
        compared
        and _figure(
            f"Differences from {compared.reference.label}", told_of(compared), difference_table(compared, task)
        ),
        _chart("Clean against altered", SCATTER_CAPTION, scatter_panels(runs, task)),
        element(
            "div",
            _chart("Drop in R@1", definitions.DROP_CAPTION, interval_panels(runs, task, "drop", "drop")),
            _chart(
                "False recall",
                definitions.false_recall_caption(task),
                interval_panels(runs, task, "fr1", "false-recall"),
            ),
            class_="panels pair" if single else None,
        ),
        _chart("What stands first", definitions.split_caption(task), split_panels(runs, task)),
        _examples(runs, task, archive),
        class_="task",
        id=anchor,
    )


def _table_note(single: bool) -> str:
    note = "Percentages; below each, its 95 % bootstrap interval, resampled by image."
    more = " Click a heading to sort; the best figure of a column is bold. Overlapping intervals are no ranking: "
    more += "whether two models differ, the paired differences below say better."
    return note if single else note + more


def _all_figures(runs: Sequence[Run], task: str) -> Markup:
    shown = [join(element("h5", isolated(run.label)), tables.model_table(run, task)) for run in runs]
    return element("details", element("summary", "Every figure, model by model"), element("div", shown))


def _figure(title: str, note: str | Markup, *content: Markup | None) -> Markup:
    return element("section", element("h4", title), element("p", note, class_="note"), content, class_="figure")


def _chart(title: str, note: str | Markup, chart: Markup | None) -> Markup | None:
    return None if chart is None else _figure(title, note, chart)


def _examples(runs: Sequence[Run], task: str, archive: Archive) -> Markup | None:
    count = next(count for most, count in _EXAMPLES if len(runs) <= most)
    shown, without = [], []
    with progress("choosing examples", len(runs), "models") as advance:
        for run in runs:
            fooled = read_fooled(run.path.parent / PER_QUERY_FILE)
            if fooled is None:
                without.append(run.label)
            # The control's copy shows the same as its original: whoever takes it is not fooled.
            of_task = [one for one in (fooled or {}).get(task, []) if one.variant != CONTROL]
            chosen = choose_examples(of_task, count)
            if chosen:
                drawn = cards(chosen, task, run.data, archive, MixedPictures(run, archive).find)
                summary = element("summary", isolated(run.label))
                shown.append(drawn if len(runs) == 1 else element("details", summary, drawn, open=not shown))
            advance(1)
    if not shown:
        return None
    note = (
        f"{QUERIES.get(task, 'queries').capitalize()} whose first choice was {ALTERED.get(task, 'altered')}, those "
        "that were fooled most confidently: the largest lead of the wrong answer's score over the best right one's. "
        "Variants take turns, and a model's examples show an image once."
    )
    if without:
        note += f" No {PER_QUERY_FILE} lies beside the results of {', '.join(without)}, hence no examples."
    return _figure(f"Examples of fooled {QUERIES.get(task, 'queries')}", note, *shown)
