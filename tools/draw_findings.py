"""Draw the charts of docs/research/ from the tables there and from performance.json.

    python tools/draw_findings.py [--check]

`--check` writes nothing and fails if a chart differs from its table.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

from matplotlib.axes import Axes

from rococo_jax.report.svg import chart_of, colour_of
from rococo_jax.storage import atomic_write

DOCS = Path(__file__).parents[1] / "docs"
COLOURED = {"plain": "own", "SC + grounding + blind + pull": "own-altered", "vc-grounded": "own-altered",
            "kinds-no-sc": "own-altered"}  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of docs/research."""
    with (DOCS / "research" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(cell: str) -> float:
    """Return the number in a cell, without its interval."""
    return float(_NUMBER.match(cell)[0])


def defences() -> str:
    """Draw FR@1 against blind on the published altered captions, with the recipe and plain in colour."""
    rows = [(row["arm"].strip("*"), number(row["blind"]), number(row["FR@1"])) for row in read("defences_published")]
    label = "blind, %: how often a wrong image prefers the original too (50: unbiased)"
    up = "↑ FR@1, %: an altered caption ranks first (lower is better)"
    return dots("FR@1 against blind: defences on the real towers", rows, (30, 85), (5, 29), label, up, 50)


def defence_carry() -> str:
    """Draw FR@1 against blind on the mixed images of held-out training images."""
    rows = [(row["arm"], number(row["mixed blind"]), number(row["mixed FR@1"])) for row in read("defence_carry")]
    label = "blind, %: how often a wrong caption prefers the unmixed image too (50: unbiased)"
    up = "↑ FR@1, %: a mixed image ranks first (lower is better)"
    return dots("FR@1 against blind: mixed images", rows, (44, 90), (8, 50), label, up, 50)


def defence_carry_test() -> str:
    """Draw FR@1 on the published altered captions against grounding on SugarCrepe."""
    rows = [
        (row["arm"], number(row["SugarCrepe grounding"]), number(row["FR@1"])) for row in read("defence_carry_test")
    ]
    label = "grounding on SugarCrepe, % (higher is better); dashed: plain's"
    up = "↑ FR@1, %: an altered caption ranks first (lower is better)"
    return dots("FR@1 against grounding on SugarCrepe", rows, (58, 66), (5, 40), label, up, rows[0][1])


def dots(
    title: str,
    rows: list[tuple[str, float, float]],
    xlim: tuple[float, float],
    ylim: tuple[float, float],
    label: str,
    up: str,
    line: float,
) -> str:
    """Draw a numbered dot for each defence, from the top down, and a list of their names, those of `COLOURED` bold."""
    rows.sort(key=lambda row: -row[2])
    across_name, up_name = (text.removeprefix("↑ ").partition(",")[0] for text in (label, up))
    with chart_of(title, 760, 430) as chart:
        axes = chart.axes(44, 34, 476, 340)
        axes.set(xlim=xlim, ylim=ylim, xlabel=label)
        write_above(axes, up, 476, 340)
        axes.axvline(line, color=colour_of("soft"), lw=1, ls=(0, (4, 4)))
        for name, across, height in rows:
            colour = colour_of(COLOURED.get(name, "other"))
            axes.plot(
                across,
                height,
                "o",
                ms=9,
                mfc=colour,
                mec=colour_of("paper"),
                gid=chart.title(f"{name}: {up_name} {height}, {across_name} {across}"),
            )
        for number, (name, *place) in enumerate(rows, 1):
            style = {"weight": "bold"} if name in COLOURED else {"color": colour_of("soft")}
            axes.annotate(str(number), place, (6, 3), textcoords="offset pixels", fontsize=11, **style)
            axes.text(1.03, 1 - 19 * number / 340, f"{number}  {name}", fontsize=11, transform=axes.transAxes, **style)
        return chart.file()


def write_above(axes: Axes, text: str, width: int, height: int) -> None:
    """Write what the vertical axis shows above axes of this size in px, from the left edge of the chart."""
    axes.text(-40 / width, 1 + 10 / height, text, fontsize=11, transform=axes.transAxes, color=colour_of("soft"))


def ranking_cost() -> str:
    """Draw the seconds of ranking and of the bare product against the number of similarities."""
    entries = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    figures = [entries[name]["figures"] for name in entries if name.startswith("ranking_")]
    sizes = [each["shape"][0] * each["shape"][1] / 1e6 for each in figures]
    with chart_of("Seconds of ranking against the number of similarities", 620, 300) as chart:
        axes = chart.axes(52, 34, 440, 210)
        axes.set(xscale="log", yscale="log", xlim=(90, 9e4), ylim=(0.7, 500), xlabel="millions of similarities")
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,g}")
        write_above(axes, "↑ seconds, two cores", 440, 210)
        for what, label, colour, up, weight in (("product", "the bare product", "other", 8, "normal"),
                                                ("ranking", "ranking", "own", -16, "bold")):  # fmt: skip
            seconds = [each["seconds"][what] for each in figures]
            axes.plot(sizes, seconds, color=colour_of(colour), lw=1.6)
            for size, each in zip(sizes, seconds, strict=True):
                title = f"{what}: {each} s for {size:,.0f} million"
                axes.plot(size, each, "o", ms=8, mfc=colour_of(colour), mec=colour_of("paper"), gid=chart.title(title))
            axes.annotate(label, (sizes[-1], seconds[-1]), (12, up), textcoords="offset pixels", fontsize=11,
                          annotation_clip=False, weight=weight)  # fmt: skip
        return chart.file()


def corruptions() -> str:
    """Draw a heat map of the drop of R@1: kinds are rows, severities columns, with a block for each direction."""
    uncorrupted, *rows = read("corruption_kinds")
    columns, left, top, row_px, column_px = [name for name in rows[0] if name != "kind"], 176, 66, 22, 68
    places = [left + column_px * place + 28 * (place // 3) for place in range(len(columns))]
    with chart_of("Drop in R@1 by kind and severity of corruption", places[-1] + column_px + 16,
                  top + row_px * len(rows) + 16) as chart:  # fmt: skip
        axes = chart.axes(0, 0, chart.width, chart.height, behind=True)
        axes.set(xlim=(0, chart.width), ylim=(chart.height, 0))
        axes.text(16, 18, "Drop in R@1, per cent of the uncorrupted R@1", fontsize=14, weight="bold")
        for place, title in ((0, "Image to text"), (3, "Text to image")):
            axes.text(places[place], 40, f"{title}, {uncorrupted[columns[place]]} uncorrupted", fontsize=12)
        axes.text(16, 60, "Severity", fontsize=12, color=colour_of("soft"))
        for name, x in zip(columns, places, strict=True):
            axes.text(x + column_px / 2, 60, name[-1], fontsize=12, ha="center")
        for place, row in enumerate(rows):
            y, mean = top + row_px * place, row["kind"].startswith("**")
            axes.text(16, y + 15, row["kind"].strip("*"), fontsize=12, weight="bold" if mean else "normal")
            for name, x in zip(columns, places, strict=True):
                drop = row[name].partition("(")[2].rstrip(")")
                share = max(0.0, float(drop.replace("−", "-"))) / 100
                right, low = x + column_px - 2, y + row_px - 2
                title = chart.title(f"{row['kind'].strip('*')}, {name}: {drop} %")
                axes.fill([x, right, right, x], [y, y, low, low], lw=0, color=colour_of("own-altered"),
                          alpha=0.06 + 0.6 * share, gid=title)  # fmt: skip
                axes.text(x + column_px / 2, y + 15, drop, fontsize=12, ha="center")
        return chart.file()


def end_to_end() -> str:
    """Draw FR@1 of both arms for each way of choosing the false word."""
    rows = {row["claim"].removeprefix("FR@1, "): row for row in read("end_to_end") if row["claim"].startswith("FR@1")}
    labels = {
        "nouns of training": "foreign nouns",
        "unseen nouns": "unseen nouns",
        "nouns of captions": "nouns of captions",
        "adaptive attack": "adaptive attack",
    }
    with chart_of("FR@1 by how the false word is chosen", 660, 280) as chart:
        axes = chart.axes(44, 34, 500, 210)
        axes.set(xlim=(-0.6, len(labels) - 0.4), ylim=(0, 75))
        axes.grid(axis="x", visible=False)
        axes.set_xticks(range(len(labels)), labels.values())
        write_above(axes, "↑ FR@1, %: an altered caption ranks first (lower is better)", 500, 210)
        for side, arm, colour in ((-0.17, "plain", "own"), (0.17, "recipe", "own-altered")):
            for place, name in enumerate(labels):
                value = float(rows[name][arm])
                tooltip = f"{arm}, {name}: FR@1 {value}"
                axes.bar(place + side, value, 0.3, color=colour_of(colour), gid=chart.title(tooltip))
                axes.annotate(f"{value:.0f}", (place + side, value), (0, 4), textcoords="offset pixels", ha="center",
                              fontsize=11)  # fmt: skip
        for height, (arm, colour) in enumerate((("plain", "own"), ("recipe", "own-altered"))):
            axes.text(1.04, 0.9 - 0.1 * height, arm, weight="bold", color=colour_of(colour), transform=axes.transAxes)
        return chart.file()


def recipe_weights() -> str:
    """Draw clean R@1, accuracy and FR@1 against the weight of the recipe, from plain to full weight."""
    tables = {
        "plain": "end_to_end",
        "sixteenth": "end_to_end_sixteenth",
        "quarter": "end_to_end_quarter",
        "recipe": "end_to_end",
    }
    curves = {
        "accuracy, unseen kinds": ("accuracy, unseen kinds", "other"),
        "R@1, image to text": ("clean R@1", "own"),
        "FR@1, adaptive attack": ("FR@1, adaptive attack", "own-altered"),
        "grounding, adaptive attack": ("grounding, adaptive attack", "curve-2"),
        "FR@1, nouns of captions": ("FR@1, nouns of captions", "own-altered"),
        "FR@1, unseen nouns": ("FR@1, unseen nouns", "own-altered"),
    }
    values = {
        arm: {row["claim"]: float(row[arm]) for row in read(table) if row["claim"] in curves}
        for arm, table in tables.items()
    }
    with chart_of("Clean R@1, accuracy and FR@1 against the weight of the recipe", 660, 330) as chart:
        axes = chart.axes(44, 34, 420, 250)
        axes.set(xlim=(-0.3, 3.2), ylim=(0, 100), xlabel="weight of the recipe's losses; 0: plain")
        axes.set_xticks(range(4), ["0", "1/16", "1/4", "1"])
        write_above(axes, "↑ %", 420, 250)
        for claim, (label, colour) in curves.items():
            heights = [values[arm][claim] for arm in tables]
            axes.plot(range(4), heights, color=colour_of(colour), lw=1.6)
            for place, (arm, height) in enumerate(zip(tables, heights, strict=True)):
                gid = chart.title(f"{arm}: {label} {height}")
                axes.plot(place, height, "o", ms=7, mfc=colour_of(colour), mec=colour_of("paper"), gid=gid)
            axes.annotate(label, (3, heights[-1]), (12, -4), textcoords="offset pixels", fontsize=11,
                          annotation_clip=False, color=colour_of("soft" if colour == "other" else colour))  # fmt: skip
        return chart.file()


def end_to_end_attacks() -> str:
    """Draw R@1 and FR@1 of models trained whole against the altered captions that an attack of one noun has tried."""
    curves: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    for row in read("end_to_end_attacks_curves"):
        if row["attack"] == "noun-gallery":
            of_run = curves.setdefault(row["arm"], {}).setdefault(row["run"], {})
            of_run[int(row["queries"])] = float(row["r1"]), float(row["fr1"])
    lines = {"plain": ("own", "-"), "longer": ("soft", "-"), "foreign": ("curve-2", "-"),
             "sixteenth": ("own-altered", "-"), "quarter": ("own-altered", (0, (5, 2))),
             "full": ("own-altered", (0, (1.5, 2)))}  # fmt: skip
    steps = [2**power for power in range(9)]
    with chart_of("R@1 and FR@1 against the number of tries of an attack of one noun", 700, 330) as chart:
        for left, column, label in ((44, 0, "↑ R@1 after, %"), (370, 1, "↑ FR@1, %")):
            axes = chart.axes(left, 34, 250, 250)
            axes.set(xscale="log", xlim=(0.9, 300), ylim=(0, 100), xlabel="altered captions tried")
            axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
            write_above(axes, label, 250, 250)
            for place, (arm, (colour, dashes)) in enumerate(lines.items()):
                # After its last try a run keeps its numbers.
                means = [
                    sum(run[max(step for step in run if step <= tried)][column] for run in curves[arm].values())
                    / len(curves[arm])
                    for tried in steps
                ]
                gid, height = chart.title(f"{arm}: {means[-1]:.1f}"), 0.93 - 0.08 * place
                axes.plot(steps, means, color=colour_of(colour), lw=1.8, ls=dashes, gid=gid)
                if column == 1:
                    axes.plot([0.06, 0.14], [height + 0.02] * 2, color=colour_of(colour), lw=1.8, ls=dashes,
                              transform=axes.transAxes)  # fmt: skip
                    axes.text(0.17, height, arm, weight="bold", color=colour_of(colour), transform=axes.transAxes)
        return chart.file()


def batch_size() -> str:
    """Draw FR@1 and the accuracy with exchanged colours against clean R@1, a dot for each arm with its batch size."""
    arms: dict[tuple[str, ...], dict[str, dict[str, str]]] = {}
    for row in read("batch_size"):
        arms.setdefault((row["captions"], row["batch_size"], row["pairs"]), {})[row["metric"]] = row
    colours = {"16": "curve-2", "64": "own", "256": "own-altered", "1024": "ink"}
    panels = {"FR@1": ("↑ FR@1, % (lower is better)", (0, 25)),
              "accuracy, exchanged colours": ("↑ accuracy with exchanged colours, %", (40, 102))}  # fmt: skip
    with chart_of("FR@1 and binding against clean R@1, by batch size and captions", 740, 330) as chart:
        for place, (metric, (label, ylim)) in enumerate(panels.items()):
            axes = chart.axes(44 + 370 * place, 34, 300, 240)
            axes.set(xlim=(40, 100), ylim=ylim, xlabel="clean R@1, image to text, %")
            write_above(axes, label, 300, 240)
            for (captions, size, pairs), of_arm in arms.items():
                across, up = (float(of_arm[name]["mean"]) for name in ("R@1, image to text", metric))
                colour = colour_of(colours[size])
                title = f"{captions} captions, batch size {size}, {pairs} pairs: {label[2:]} {up}, R@1 {across}"
                fill, edge = (colour, colour_of("paper")) if captions == "dense" else (colour_of("paper"), colour)
                axes.plot(across, up, "o", ms=8, mfc=fill, mec=edge, mew=1.6, gid=chart.title(title))
            axes.text(0.03, 0.93 if place == 0 else 0.34, "hollow: sparse captions", fontsize=10.5,
                      color=colour_of("soft"), transform=axes.transAxes)  # fmt: skip
            if place > 0:
                continue
            for height, (size, colour) in enumerate(colours.items()):
                axes.text(0.03, 0.34 - 0.08 * height, f"batch of {int(size):,}", weight="bold", fontsize=10.5,
                          color=colour_of(colour), transform=axes.transAxes)  # fmt: skip
        return chart.file()


def folds() -> str:
    """Draw the differences of the defence from plain in each fold, with the intervals over folds."""
    rows = [row for row in read("defence_folds") if row["claim"] != "SugarCrepe blind"]
    with chart_of("The defence against plain in five folds", 700, 60 + 32 * len(rows)) as chart:
        axes = chart.axes(190, 8, 480, 32 * len(rows))
        axes.set(
            xlim=(-20, 12), ylim=(len(rows) - 0.4, -0.6), xlabel="difference from plain, points; line: 95 % over folds"
        )
        axes.set_yticks(range(len(rows)), [row["claim"] for row in rows])
        axes.axvline(0, color=colour_of("soft"), lw=1)
        for height, row in enumerate(rows):
            low, high = float(row["over folds low"]), float(row["over folds high"])
            axes.plot([low, high], [height, height], color=colour_of("own-altered"), lw=3)
            for number in range(5):
                value = float(row[f"fold {number}"])
                gid = chart.title(f"{row['claim']}, fold {number}: {value:+}")
                axes.plot(value, height, "o", ms=6, mfc=colour_of("own"), mec=colour_of("paper"), gid=gid)
        return chart.file()


def half_truths() -> str:
    """Draw accuracy and blind on half-truths that add an object, with their intervals."""
    rows = [row for row in read("half_truths_words") if row["part"] == "object"]
    labels = {"plain": "plain", "sc": "SC", "sc-held": "SC, words\nnever false", "recipe": "recipe",
              "recipe-held": "recipe, words\nnever false"}  # fmt: skip
    with chart_of("Accuracy and blind on half-truths that add an object", 660, 290) as chart:
        axes = chart.axes(44, 34, 500, 200)
        axes.set(xlim=(-0.5, len(rows) - 0.5), ylim=(45, 95))
        axes.set_xticks(range(len(rows)), [labels[row["arm"]].replace("\n", " ") for row in rows], fontsize=10.5)
        write_above(axes, "↑ %", 500, 200)
        axes.axhline(50, color=colour_of("soft"), lw=1, ls=(0, (4, 4)))
        for name, colour in (("accuracy", "own"), ("blind", "own-altered")):
            for place, row in enumerate(rows):
                value, low, high = map(float, _NUMBER.findall(row[name]))
                axes.plot([place, place], [low, high], color=colour_of(colour), lw=2)
                gid = chart.title(f"{row['arm']}: {name} {value}, {low} to {high}")
                axes.plot(place, value, "o", ms=9, mfc=colour_of(colour), mec=colour_of("paper"), gid=gid)
            axes.annotate(name, (len(rows) - 1, value), (16, -4), textcoords="offset pixels", weight="bold",
                          annotation_clip=False, color=colour_of(colour))  # fmt: skip
        return chart.file()


def families() -> str:
    """Draw the correlations that are significant over checkpoints, with intervals over them and over families."""
    renamed = {"text_to_image": "coco_t2i", "mmvp": "mmvp_vlm"}
    of_families = {frozenset((row["x"], row["y"])): row for row in read("population_families")}
    rows = [
        row for row in read("population_published") if row["partial_p_holm"] and float(row["partial_p_holm"]) < 0.05
    ]
    rows.sort(key=lambda row: -float(row["partial_rho"]))
    with chart_of("Correlations of benchmarks over checkpoints and over families", 700, 70 + 20 * len(rows)) as chart:
        axes = chart.axes(190, 8, 480, 20 * len(rows))
        axes.set(xlim=(-35, 95), ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlabel("rank correlation x 100; thick: 95 % over families, thin: over checkpoints")
        axes.axvline(0, color=colour_of("soft"), lw=1)
        names = []
        for height, row in enumerate(rows):
            pair = [renamed.get(row[side], row[side]) for side in ("x_task", "y_task")]
            names.append(" and ".join(pair))
            family = of_families[frozenset(pair)]
            low, high = float(family["low"]), float(family["high"])
            colour = colour_of("own-altered" if low <= 0 else "own")
            axes.plot([low, high], [height, height], color=colour, lw=4, alpha=0.55)
            thin = [100 * float(row[f"partial_{end}"]) for end in ("low", "high")]
            axes.plot(thin, [height, height], color=colour_of("ink"), lw=1)
            gid = chart.title(f"{names[-1]}: {family['partial rho x 100']}, {low:.0f} to {high:.0f} over families")
            axes.plot(100 * float(row["partial_rho"]), height, "o", ms=6, mfc=colour, mec=colour_of("paper"), gid=gid)
        axes.set_yticks(range(len(rows)), names, fontsize=10.5)
        return chart.file()


FIGURES = {
    "batch_size.svg": batch_size,
    "corruptions.svg": corruptions,
    "defence_carry.svg": defence_carry,
    "defence_carry_test.svg": defence_carry_test,
    "defences.svg": defences,
    "end_to_end.svg": end_to_end,
    "end_to_end_attacks.svg": end_to_end_attacks,
    "families.svg": families,
    "folds.svg": folds,
    "half_truths.svg": half_truths,
    "ranking_cost.svg": ranking_cost,
    "recipe_weights.svg": recipe_weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a chart differs from its table")
    check = parser.parse_args().check
    for name, draw in FIGURES.items():
        path, chart = DOCS / "figures" / name, draw()
        if not check:
            with atomic_write(path) as temporary:
                temporary.write_text(chart, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != chart:
            sys.exit(f"{path}: differs from its table; run python tools/draw_findings.py")


if __name__ == "__main__":
    main()
