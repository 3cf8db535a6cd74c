"""What stands first: on what was measured, a warning where the gallery had shrunk, and the few numbers that matter."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from rococo_jax.benchmarks.settings import CONTROL
from rococo_jax.report.collection import Section
from rococo_jax.report.markup import Markup, element, isolated
from rococo_jax.report.scores import Figure, Run, altered_variants
from rococo_jax.report.vocabulary import CLEAN, PROTOCOLS, percent, variant_label

# What results call the number of images present, and of all that the annotations name.
_PRESENT = ("present", "images_present", "found")
_NAMED = ("wanted", "images_named", "total")


def count(number: object) -> str:
    """A whole number with thousands apart; a dash for anything else."""
    return f"{number:,}" if isinstance(number, int) and not isinstance(number, bool) else "–"


def coverage(data: dict[str, Any]) -> tuple[int, int] | None:
    """Images present and images named by the annotations, or None where the gallery was whole or nothing is said."""
    said = data.get("coverage")
    if not isinstance(said, dict):
        return None
    present = next((said[name] for name in _PRESENT if isinstance(said.get(name), int)), data.get("image_count"))
    named = next((said[name] for name in _NAMED if isinstance(said.get(name), int)), None)
    if not isinstance(present, int) or named is None or present >= named:
        return None
    return present, named


def dataset_name(data: dict[str, Any]) -> str | None:
    """What the data is called: its name where the results give one, else the end of the annotations' path."""
    named = next((data[field] for field in ("name", "dataset") if isinstance(data.get(field), str)), None)
    if named is None and isinstance(data.get("annotations"), str):
        named = "/".join(part for part in PurePath(data["annotations"]).parts[-2:] if part != "/")
    return named or None


def coverage_warning(section: Section) -> Markup | None:
    """The warning that a shrunken gallery needs, before any number is read."""
    found = coverage(section.runs[0].data)
    if found is None:
        return None
    present, named = found
    return element(
        "aside",
        element("strong", "R@K is not comparable with full-gallery figures. "),
        f"Only {count(present)} of the {count(named)} images that the annotations name were there "
        f"({percent(100 * present / named)} %), and the gallery shrank with them. A smaller gallery is an easier one: "
        "compare models on this page with each other, not with published numbers.",
        class_="warning",
        role="note",
    )


def notes(section: Section) -> Markup | None:
    """What the results themselves say a reader must know, each sentence once."""
    said = [note for run in section.runs for note in run.results.get("notes") or [] if isinstance(note, str)]
    if coverage(section.runs[0].data):  # the warning above has said it already, and louder
        said = [note for note in said if "images were present" not in note]
    shown = [element("li", isolated(note)) for note in dict.fromkeys(said)]
    return element("ul", shown, class_="notes") if shown else None


def setting(section: Section) -> Markup:
    """What was measured on, as a list of facts."""
    data, protocol = section.runs[0].data, section.runs[0].results["protocol"]
    name = dataset_name(data)
    facts = [
        ("Data", isolated(name) if name else None),
        ("Images", count(data.get("image_count")) if "image_count" in data else None),
        ("Captions", count(data.get("caption_count")) if "caption_count" in data else None),
        ("Models", count(len(section.runs))),
        ("Protocol", [element("b", protocol), f": {PROTOCOLS[protocol]}" if protocol in PROTOCOLS else None]),
    ]
    return element(
        "dl",
        [element("div", element("dt", term), element("dd", fact)) for term, fact in facts if fact is not None],
        class_="setting",
    )


def sizes(run: Run, task: str) -> str | None:
    """How many queries and how large a gallery the task had, where the results say."""
    said = (run.results.get("sizes") or {}).get(task)
    said = {name: each for name, each in said.items() if isinstance(each, dict)} if isinstance(said, dict) else {}
    if not said:
        return None
    queries = next(iter(said.values())).get("queries")
    galleries = {name: each.get("gallery") for name, each in said.items() if isinstance(each.get("gallery"), int)}
    altered = sorted(galleries[name] for name in run.variants(task) if name != CLEAN and name in galleries)
    parts = [f"{count(galleries[CLEAN])} items clean"] if CLEAN in galleries else []
    if altered:
        span = count(altered[0]) if altered[0] == altered[-1] else f"{count(altered[0])} to {count(altered[-1])}"
        parts.append(f"{span} with altered ones")
    return f"{count(queries)} queries; gallery: {', '.join(parts)}."


def tiles(runs: Sequence[Run], task: str) -> Markup | None:
    """Clean R@1, R@1 where it is lowest, the largest drop and the largest FR@1: a number each, or a range of models."""
    altered = [name for name in altered_variants(runs, task) if name != CONTROL]
    shown = [tile("Clean R@1", runs, [_at(run, task, [CLEAN], "r1", max) for run in runs], first=True)]
    if altered:
        hardest = [_at(run, task, altered, "r1", min) for run in runs]
        shown.append(tile("R@1, hardest variant", runs, hardest))
        shown.append(tile("Largest drop", runs, [_at(run, task, altered, "drop", max) for run in runs], ours=True))
        shown.append(tile("Largest FR@1", runs, [_at(run, task, altered, "fr1", max) for run in runs]))
    else:
        for label, metric in (("Clean R@5", "r5"), ("Clean R@10", "r10")):
            shown.append(tile(label, runs, [_at(run, task, [CLEAN], metric, max) for run in runs]))
    return element("div", shown, class_="tiles") if any(shown) else None


def _at(run: Run, task: str, variants: Sequence[str], metric: str, end) -> tuple[str, Figure] | None:
    """The variant at one end of a metric, with its figure."""
    figures = [(variant, run.figure(task, variant, metric)) for variant in variants]
    figures = [(variant, figure) for variant, figure in figures if figure.value is not None]
    return end(figures, key=lambda pair: pair[1].value) if figures else None


def tile(
    label: str, runs: Sequence[Run], found: Sequence[tuple[str, Figure] | None], first: bool = False, ours: bool = False
) -> Markup | None:
    """One number and what it is of, or the range over several models; None where no model has it.

    Args:
        label: what the number is.
        runs: the models.
        found: for each, the variant and its figure.
        first: the tile stands first.
        ours: the formula is ours, not the benchmark's.
    """
    known = [(run, *pair) for run, pair in zip(runs, found, strict=True) if pair is not None]
    if not known:
        return None
    low, high = (end(known, key=lambda each: each[2].value) for end in (min, max))
    if len(known) == 1:
        _, variant, figure = known[0]
        number = [percent(figure.value), element("span", " %", class_="unit")]
        notes = [None if variant == CLEAN else variant_label(variant)]
        if figure.has_interval:
            notes.append(f"95 % interval {percent(figure.low)} to {percent(figure.high)}")
        if figure.spread is not None:
            notes.append(f"standard deviation {percent(figure.spread)}")
    elif percent(low[2].value) == percent(high[2].value):
        number, notes = [percent(low[2].value), element("span", " %", class_="unit")], ["all models"]
    else:
        number = [percent(low[2].value), element("span", " to ", class_="unit"), percent(high[2].value)]
        number.append(element("span", " %", class_="unit"))
        notes = [["lowest ", isolated(low[0].label)], ["highest ", isolated(high[0].label)]]
    head = element("h4", label, [" ", element("span", "ours", class_="ours")] if ours else None)
    lines = [element("p", note, class_="note") for note in notes if note]
    return element("div", head, element("p", number, class_="number"), lines, class_="tile first" if first else "tile")
