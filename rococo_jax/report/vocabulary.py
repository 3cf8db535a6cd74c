"""What the page calls things: tasks, variants and metrics, with the definition of each and where it comes from.

`origin` is as honest as the protocol: "benchmark" where the formula is read in the benchmark's public code, "ours"
where the public material gives none. A name that is not listed here is shown as it is written in the results.
"""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Metric:
    """How one metric is printed: percentages with one decimal; `better` is "higher", "lower" or None."""

    label: str
    definition: str
    better: str | None
    origin: str | None = None


METRICS = {
    "r1": Metric("R@1", "share of queries whose best-ranked right answer is first", "higher", "benchmark"),
    "r5": Metric("R@5", "share of queries whose best-ranked right answer is among the first 5", "higher", "benchmark"),
    "r10": Metric(
        "R@10", "share of queries whose best-ranked right answer is among the first 10", "higher", "benchmark"
    ),
    "r_mean": Metric("Mean R", "(R@1 + R@5 + R@10) / 3", "higher", "benchmark"),
    "fr1": Metric(
        "FR@1",
        "false recall: share of queries whose first choice is altered, whoever it belongs to",
        "lower",
        "benchmark",
    ),
    "drop": Metric("Drop", "100 × (clean R@1 − altered R@1) / clean R@1", "lower", "ours"),
    "drop_points": Metric("Drop, points", "clean R@1 − altered R@1, in percentage points", "lower", "ours"),
    "top1_own": Metric("Own", "first choice is an original of the query's own", None, "benchmark"),
    "top1_own_altered": Metric("Own altered", "first choice is an altered one of the query's own", None, "benchmark"),
    "top1_other_altered": Metric("Other altered", "first choice is an altered one of another", None, "benchmark"),
    "top1_other": Metric("Other", "first choice is an original of another", None, "benchmark"),
}

TOP1_SPLIT = ("top1_own", "top1_own_altered", "top1_other_altered", "top1_other")
SPREAD_SUFFIXES = ("_std", "_sd")
CLEAN = "clean"

_VARIANTS = {
    CLEAN: "Clean",
    "same_concept": "Same concept",
    "diff_concept": "Different concept",
    "rand_voca": "Random vocabulary",
    "danger": "Danger",
}
# Read after the variants that they are to be compared with.
_LAST = {"control": "Control", "uncorrupted": "Uncorrupted"}

TASKS = {
    "image_to_text": "Image to text",
    "text_to_image": "Text to image",
}

TASK_QUESTIONS = {
    "image_to_text": "Each image looks for one of its own captions among all captions, altered ones included.",
    "text_to_image": "Each caption looks for its own image among all images, mixed ones included.",
}

QUERIES = {"image_to_text": "images", "text_to_image": "captions"}
ALTERED = {"image_to_text": "an altered caption", "text_to_image": "a mixed image"}

PROTOCOLS = {
    "paper": "the published files and the published way of mixing; a tie counts as the published code has it, as near "
    "as that can be defined",
    "strict": "altered captions that change nothing are left out, letter case and the final full stop are evened out "
    "on both sides, no image is mixed with itself, and a tie counts against the right answer",
    "control": "images are only squashed and saved again, nothing is mixed in, so that the effect of mixing can be "
    "told from that of preprocessing",
}


def metric(name: str) -> Metric:
    """The metric of that name; an unknown one is called what the results call it."""
    return METRICS.get(name) or Metric(name.replace("_", " "), "as the results name it", None)


def variant_label(name: str) -> str:
    """A variant as the page prints it.

    >>> variant_label("same_concept"), variant_label("mix_0.9"), variant_label("corruptions_3")
    ('Same concept', 'Mix 0.9', 'All kinds, severity 3')
    """
    if name.startswith("corruptions_"):
        return f"All kinds, severity {name.removeprefix('corruptions_')}"
    spaced = name.replace("_", " ").strip()
    return _VARIANTS.get(name) or (spaced[:1].upper() + spaced[1:]).replace("Jpeg", "JPEG")


def task_label(name: str) -> str:
    """A task as the page prints it."""
    return TASKS.get(name) or variant_label(name)


def in_reading_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Each name once: the known ones in the order of `known`, then the others in the order they came."""
    names, known = list(dict.fromkeys(names)), list(known)
    return [name for name in known if name in names] + [name for name in names if name not in known]


def order_variants(names: Iterable[str]) -> list[str]:
    """Variants in reading order: `clean` first, the control last."""
    return sorted(in_reading_order(names, _VARIANTS), key=lambda name: name in _LAST)


def order_metrics(names: Iterable[str]) -> list[str]:
    """Metrics in reading order; the spread over seeds (`r1_std`) is printed with its metric, so it is left out."""
    return [name for name in in_reading_order(names, METRICS) if not name.endswith(SPREAD_SUFFIXES)]


def percent(value: float | int | None) -> str:
    """One decimal, a true minus sign, a dash for what was not measured.

    >>> percent(36.96), percent(-0.04), percent(-1.25), percent(None)
    ('37.0', '0.0', '−1.2', '–')
    """
    if value is None:
        return "–"
    text = f"{value:.1f}"
    return "0.0" if text == "-0.0" else text.replace("-", "−")
