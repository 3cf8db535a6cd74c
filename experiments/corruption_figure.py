"""Print the drop of every corruption as a Markdown table and draw it as a heat map, from `results.json`.

    rococo evaluate MODEL ... --corruptions all --severities 1,3,5 --out OUT
    python experiments/corruption_figure.py OUT/results.json --svg docs/figures/corruptions.svg

Drops are in per cent of the R@1 of `uncorrupted`, the same images with the same square crop. Shades are those of the
report: one hue from light to dark, with the number in every cell.
"""

import argparse
from html import escape
from pathlib import Path

from rococo_jax.perturb.images.corruptions import CORRUPTIONS
from rococo_jax.report.sections.corruptions import SHADES, shade, top_of_scale
from rococo_jax.report.vocabulary import TASKS, percent, variant_label
from rococo_jax.storage import atomic_write, read_json

COLOURS = "#f1f4f1 #d0e0df #b0ccce #8fb9bd #6e9ea8 #417a8b #2b6a80 #20566c #164258 #0c2f45".split()
ROW, COLUMN, LABEL, GAP, TOP = 22, 68, 168, 28, 74


def severities_of(results: dict) -> list[int]:
    """The severities that were measured, ascending."""
    found = {int(name[-1]) for task in TASKS for name in results["tasks"][task] if name[:-2] in CORRUPTIONS}
    return sorted(found)


def rows_of(results: dict) -> list[tuple[str, str, str]]:
    """(group, label, name) of the mean and of every measured kind, ordered by group."""
    measured = results["tasks"][next(iter(TASKS))]
    groups = dict.fromkeys(kind.group for kind in CORRUPTIONS.values())
    kinds = [
        (group, variant_label(name), name)
        for group in groups
        for name, kind in CORRUPTIONS.items()
        if kind.group == group and any(f"{name}_{severity}" in measured for severity in severities_of(results))
    ]
    return [("", f"Mean of {len(kinds)} kinds", "corruptions"), *kinds]


def markdown(results: dict) -> str:
    """Table of R@1 and its drop for every kind and severity, in both directions."""
    severities = severities_of(results)
    heads = [f"{short} {severity}" for short in ("i2t", "t2i") for severity in severities]
    lines = [f"| kind | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    plain = [f"{results['tasks'][task]['uncorrupted']['r1']:.1f}" for task in TASKS for _ in severities]
    lines.append(f"| *uncorrupted* | {' | '.join(plain)} |")
    for _, label, name in rows_of(results):
        cells = [results["tasks"][task][f"{name}_{severity}"] for task in TASKS for severity in severities]
        shown = [f"{cell['r1']:.1f} ({percent(cell['drop'])})" for cell in cells]
        label = f"**{label}**" if name == "corruptions" else label
        lines.append(f"| {label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def svg(results: dict) -> str:
    """Heat map: kinds are rows, severities columns, one block per direction."""
    severities, rows = severities_of(results), rows_of(results)
    tasks = results["tasks"]
    drops = [tasks[task][f"{name}_{each}"]["drop"] for task in TASKS for _, _, name in rows for each in severities]
    top = top_of_scale(drops)
    block = len(severities) * COLUMN
    width = LABEL + 2 * block + GAP + 16
    places, height = _heights([group for group, _, _ in rows])
    drawn = [_text(16, 24, "Drop in R@1, per cent of the uncorrupted R@1", size=15, weight="bold")]
    for (group, label, _), (y, heading) in zip(rows, places, strict=True):
        if heading is not None:
            drawn.append(_text(16, heading + 15, group.capitalize(), colour="#5b6670", size=12))
        drawn.append(_text(16, y + 15, label, weight="normal" if group else "bold"))
    for number, (task, title) in enumerate(TASKS.items()):
        left = LABEL + number * (block + GAP)
        uncorrupted = tasks[task]["uncorrupted"]["r1"]
        drawn.append(_text(left, 46, f"{title}, {uncorrupted:.1f} uncorrupted", size=12))
        for column, severity in enumerate(severities):
            drawn.append(_text(left + column * COLUMN + COLUMN / 2, 66, str(severity), anchor="middle", size=12))
            for (_, _, name), (y, _) in zip(rows, places, strict=True):
                drawn.append(_cell(left + column * COLUMN, y, tasks[task][f"{name}_{severity}"]["drop"], top))
    drawn.append(_text(16, 66, "Severity", colour="#5b6670", size=12))
    drawn += _legend(height, top)
    height += 40
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="Drop in R@1 by kind and severity of corruption" '
        'font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *drawn,
        "</svg>",
        "",
    ])  # fmt: skip


def _heights(groups: list[str]) -> tuple[list[tuple[int, int | None]], int]:
    """For each row its top and, where a group begins, the top of its heading; and the total height."""
    places, y, last = [], TOP, ""
    for group in groups:
        heading = None
        if group != last:
            heading, y, last = y, y + ROW, group
        places.append((y, heading))
        y += ROW
    return places, y


def _cell(x: float, y: float, value: float, top: float) -> str:
    place = shade(value, top)
    ink = "#fff" if place >= SHADES // 2 else "#14202a"
    return (
        f'<rect x="{x}" y="{y}" width="{COLUMN - 2}" height="{ROW - 2}" fill="{COLOURS[place]}"/>'
        + _text(x + COLUMN / 2 - 1, y + 15, percent(value), colour=ink, anchor="middle", size=12)
    )  # fmt: skip


def _legend(y: float, top: float) -> list[str]:
    boxes = [
        f'<rect x="{LABEL + 22 * place}" y="{y + 12}" width="22" height="12" fill="{colour}"/>'
        for place, colour in enumerate(COLOURS)
    ]
    ends = [(LABEL - 8, "no drop", "end"), (LABEL + 22 * SHADES + 8, f"{top:.0f} %", "start")]
    return [*boxes, *(_text(x, y + 22, words, anchor=anchor, size=12) for x, words, anchor in ends)]


def _text(x, y, words, *, size=13, colour="#14202a", anchor="start", weight="normal") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of an evaluation with --corruptions")
    parser.add_argument("--svg", type=Path, help="write the heat map to this file")
    arguments = parser.parse_args()
    results = read_json(arguments.results, "results of an evaluation")
    print(markdown(results))
    if arguments.svg:
        with atomic_write(arguments.svg) as temporary:
            temporary.write_text(svg(results), encoding="utf-8")


if __name__ == "__main__":
    main()
