"""The words of the page: what each chart shows, and the definitions with where they come from."""

from collections.abc import Sequence

from rococo_jax.report.collection import Section
from rococo_jax.report.markup import Markup, element
from rococo_jax.report.scores import Run, corrupted_by, tasks_of, variants_of
from rococo_jax.report.variant_families import variant_note
from rococo_jax.report.vocabulary import (
    ALTERED,
    METRICS,
    PROTOCOLS,
    QUERIES,
    TASK_QUESTIONS,
    task_label,
    variant_label,
)

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


def spread_note(runs: Sequence[Run], task: str) -> str | None:
    """What "sd" means in a table, with the seeds; None where no figure is a mean over seeds."""
    if all(run.figure(task, name, "r1").spread is None for run in runs for name in run.variants(task)):
        return None
    sizes = [run.results.get("sizes", {}).get(task, {}).get(name, {}) for run in runs for name in run.variants(task)]
    seeds = dict.fromkeys(seed for size in sizes for seed in size.get("seeds") or [])
    which = f" {', '.join(map(str, seeds))}" if seeds else ""
    return f" Mixed variants are means over seeds{which}; sd is the sample standard deviation over them."


def variant_notes(runs: Sequence[Run], task: str) -> Markup | None:
    """What the variants of images are, the control above all."""
    told = [(name, variant_note(name)) for name in variants_of(runs, task)]
    lines = [element("li", element("b", variant_label(name)), f": {note}.") for name, note in told if note is not None]
    return element("ul", lines, class_="notes") if lines else None


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
                "Corrupted images",
                "Images are cut to squares of 224 pixels, for which ImageNet-C chose its constants, then corrupted, "
                "then prepared as the model prepares any image. Drops are against the same squares uncorrupted.",
            )
            if any(corrupted_by(section.runs)[0] for section in sections)
            else None,
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
