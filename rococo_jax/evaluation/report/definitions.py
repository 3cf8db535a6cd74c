"""The words of the page: what each chart shows, and the definitions with where they come from."""

from collections.abc import Sequence

from rococo_jax.evaluation.report.collection import Section
from rococo_jax.evaluation.report.markup import Markup, element
from rococo_jax.evaluation.report.scores import tasks_of
from rococo_jax.evaluation.report.vocabulary import ALTERED, METRICS, PROTOCOLS, QUERIES, TASK_QUESTIONS, task_label

_ORIGINS = {"ours": "ours", "benchmark": "benchmark's code"}

DROP_CAPTION = (
    "How much of its clean R@1 a model loses: 100 × (clean − altered) / clean, in per cent. This formula is [ours]: a "
    "drop rate is published, its formula is not. Whiskers span the 95 % interval."
)


def false_recall_caption(task: str) -> str:
    """Caption of the false-recall chart."""
    return (
        f"FR@1: share of {QUERIES.get(task, 'queries')} whose first choice is {ALTERED.get(task, 'altered')}, whoever "
        "it belongs to, in per cent. Whiskers span the 95 % interval."
    )


def split_caption(task: str) -> str:
    """Caption of the chart of first choices."""
    return f"Every one of the {QUERIES.get(task, 'queries')} has one first choice; the four parts sum to 100 %."


def how_to_read(sections: Sequence[Section]) -> Markup:
    """Definitions of metrics and protocols, with their origin, and the rules that the page keeps."""
    used = {
        name
        for section in sections
        for run in section.runs
        for variants in run.tasks.values()
        for numbers in variants.values()
        for name in numbers
    }
    rows = [
        element(
            "tr",
            element("th", each.label, scope="row"),
            element("td", each.definition),
            element("td", element("span", _ORIGINS[each.origin], class_=each.origin)),
        )
        for name, each in METRICS.items()
        if name in used
    ]
    head = element("thead", element("tr", [element("th", name, scope="col") for name in ("Metric", "Is", "Formula")]))
    protocols = sorted({run.results["protocol"] for section in sections for run in section.runs})
    tasks = dict.fromkeys(task for section in sections for task in tasks_of(section.runs))
    return element(
        "section",
        element("h2", "How to read this page"),
        element("div", element("table", head, element("tbody", rows), class_="plain"), class_="scroll"),
        element(
            "dl",
            [_entry(task_label(task), TASK_QUESTIONS[task]) for task in tasks if task in TASK_QUESTIONS],
            [_entry(f"Protocol {name}", PROTOCOLS[name].capitalize() + ".") for name in protocols if name in PROTOCOLS],
            _entry(
                "Intervals",
                "95 % bootstrap intervals, resampled by image, since the captions of one image are not independent. "
                "They say what another draw of images would change, not what another training run would.",
            ),
            _entry(
                "Sections",
                "Results stand in one table only if nothing but the model differs between their fingerprints.",
            ),
            class_="reading",
        ),
        id="how-to-read",
        class_="group",
    )


def _entry(term: str, text: str) -> Markup:
    return element("div", element("dt", term), element("dd", text))
