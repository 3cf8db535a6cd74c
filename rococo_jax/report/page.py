"""The report's page: groups of comparable results, each with a section for every task, in one self-contained file."""

from collections.abc import Sequence

from rococo_jax.benchmarks.rococo.labels import QUESTIONS
from rococo_jax.evaluation.examples import EXAMPLES, Example, read_examples
from rococo_jax.report import overview
from rococo_jax.report.blocks import Block, Cards, Folded, Note, Part, rich
from rococo_jax.report.collection import Group, Run, corrupted_by, tasks_of
from rococo_jax.report.comparison import Comparison, Comparisons, comparison_part
from rococo_jax.report.document import render_page
from rococo_jax.report.examples import choose_errors, error_cards
from rococo_jax.report.sections import ordered, section_of
from rococo_jax.report.sections.corruptions import corrupted_part
from rococo_jax.report.vocabulary import task_label

# Examples of one model, by how many models share the page: twenty models must not make a page of 50 MB.
_EXAMPLES = ((1, 12), (4, 8), (100_000, 4))
_LEDE = (
    "Image-text models under stress: what happens when captions with a wrong word or mixed images join the gallery, "
    "when a text differs in one word only, or when images are corrupted."
)


def report_html(groups: Sequence[Group], csv_name: str, comparisons: Comparisons) -> str:
    """The whole page as HTML.

    Args:
        groups: what `group_by_fingerprint` made; not empty.
        csv_name: file name of the CSV beside the page.
        comparisons: what `compare_groups` made of the groups.

    Raises:
        InputError: an examples.parquet is not whole.
    """
    blocks, links = [], []
    for number, group in enumerate(groups, 1):
        compared = {task: found for (place, task), found in comparisons.items() if place == number - 1}
        blocks.append(_group(group, number, len(groups) > 1, compared))
        before = f"{number} · " if len(groups) > 1 else ""
        links += [(f"{before}{task_label(task)}", f"#s{number}-{_anchor(task)}") for task in tasks_of(group.runs)]
        if corrupted_by(group.runs)[0]:
            links.append((f"{before}Corrupted images", f"#s{number}-corruptions"))
    links += [("How to read this page", "#how-to-read"), ("All figures as CSV", f"./{csv_name}")]
    runs = [run for group in groups for run in group.runs]
    title = f"How robust is {runs[0].label}?" if len(runs) == 1 else f"How robust are these {len(runs)} models?"
    return render_page(title, "rococo report", _LEDE, blocks, [overview.how_to_read(groups)], links)


def _anchor(task: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in task)


def _group(group: Group, number: int, many: bool, compared: dict[str, Comparison]) -> Part:
    examples = {run.label: read_examples(run.path.parent) for run in group.runs}
    illustrations = [each for found in examples.values() for each in found if each.role == "illustration"]
    title = rich("Section {}: <bdi>{}</bdi>", str(number), overview.group_name(group)) if many else ""
    blocks: list[Block | None] = [
        overview.differences(group) if number > 1 else None,
        overview.setting(group),
        *overview.coverage_alerts(group),
        overview.notes(group),
        _without_examples(group, examples),
    ]
    for task in tasks_of(group.runs):
        blocks.append(_task(group, task, f"s{number}-{_anchor(task)}", compared.get(task), examples))
    blocks.append(corrupted_part(group.runs, f"s{number}-corruptions", illustrations))
    blocks.append(overview.model_cards(group.runs))
    return Part(title, blocks, 2, "group", f"s{number}")


def _without_examples(group: Group, examples: dict[str, list[Example]]) -> Note | None:
    without = [run.label for run in group.runs if not (run.path.parent / EXAMPLES).is_file()]
    if not without:
        return None
    which = f"the results of {', '.join(without)}" if any(examples.values()) else "these results"
    return Note(f"No {EXAMPLES} lies beside {which}, hence no examples: `rococo score` and older versions write none.")


def _task(
    group: Group, task: str, anchor: str, compared: Comparison | None, examples: dict[str, list[Example]]
) -> Part:
    runs, section = ordered(group.runs, task), section_of(group.runs, task)
    question = QUESTIONS.get(task, section.question)
    blocks: list[Block | None] = [
        Note(question, "question") if question else None,
        overview.sizes(runs, task),
        section.tiles(runs, task),
        section.results(runs, task),
        comparison_part(compared, task) if compared else None,
        *section.charts(runs, task),
        _errors(runs, task, section.errors(task), examples),
    ]
    return Part(task_label(task), blocks, 3, "task", anchor)


def _errors(runs: Sequence[Run], task: str, told: tuple[str, str], examples: dict[str, list[Example]]) -> Part | None:
    title, note = told
    count = next(count for most, count in _EXAMPLES if len(runs) <= most)
    shown: list[Cards | Folded] = []
    for run in runs:
        if chosen := choose_errors(examples[run.label], task, count):
            cards = error_cards(chosen)
            shown.append(cards if len(runs) == 1 else Folded(run.label, [cards], open=not shown))
    return Part(title, [Note(note), *shown]) if shown else None
