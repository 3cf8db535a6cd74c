"""Put the runs of `configs/ablations/defence.py` in a table: differences from plain, paired by image, Holm's p.

    python experiments/defence_carry.py OUT... --out docs/findings/defence_carry.csv

OUT are results of `rococo evaluate` or `rococo sweep`, a folder for each run; a run's name is ARM-steps_N-SEED, and
what stands before `-steps` is its arm. Hits of an image are summed over seeds, and over variants or parts so that each
counts alike (the tool's `mean`). `metrics.paired` makes intervals and p.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from rococo_jax.evaluation.per_image import PER_IMAGE, HitsByVariant, read_image_hits
from rococo_jax.metrics.correlation import holm
from rococo_jax.metrics.paired import PairedDifference, paired_differences

ALTERED, MIXED = ("same_concept", "diff_concept", "rand_voca", "danger"), ("mix_0.9", "patch_0.9")
# Column -> task, variants (none: all parts), metric.
COLUMNS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "i2t R@1": ("image_to_text", ("clean",), "r1"),
    "t2i R@1": ("text_to_image", ("clean",), "r1"),
    **{name: ("image_to_text", ALTERED, key) for name, key in
       (("FR@1", "fr1"), ("blind", "blind"), ("grounding", "grounding"))},
    **{f"mixed {name}": ("text_to_image", MIXED, key) for name, key in
       (("FR@1", "fr1"), ("blind", "blind"), ("grounding", "grounding"))},
    **{f"kinds {key}": ("choices", (), key) for key in ("blind", "grounding")},
    "SugarCrepe OTA": ("sugarcrepe", (), "ota"),
    **{f"SugarCrepe {key}": ("sugarcrepe", (), key) for key in ("blind", "grounding")},
    "SugarCrepe++ ITT": ("sugarcrepe_pp", (), "ata"),
}  # fmt: skip


def read_runs(folders: list[Path]) -> dict[str, list[HitsByVariant]]:
    """By arm: the hits of each run."""
    runs: dict[str, list[HitsByVariant]] = {}
    for path in sorted(each for folder in folders for each in folder.rglob(PER_IMAGE)):
        name = path.parent.parent.name if path.parent.name == "evaluation" else path.parent.name
        runs.setdefault(name.partition("-steps")[0], []).append(read_image_hits(path))
    return runs


def weighted(runs: list[HitsByVariant], column: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Hits and weights of each image, in the order of names, summed over seeds; variants count alike."""
    task, variants, metric = COLUMNS[column]
    names: dict[str, list[float]] = {}
    for run in runs:
        found = [
            each[metric]
            for (of_task, variant), each in run.items()
            if of_task == task and (not variants or variant in variants) and metric in each
        ]
        for each in found:
            share = 1 / (len(found) * len(runs) * each.queries.sum())
            for image, hit, queries in zip(*each, strict=True):
                sums = names.setdefault(image, [0.0, 0.0])
                sums[0] += share * hit
                sums[1] += share * queries
    if not names:
        return None
    return np.array([names[image] for image in sorted(names)]).T


def differences(runs: dict[str, list[HitsByVariant]], first: str) -> dict[str, dict[str, PairedDifference]]:
    """By arm and column, from the first arm."""
    made: dict[str, dict[str, PairedDifference]] = {arm: {} for arm in runs if arm != first}
    for column in COLUMNS:
        values = {arm: weighted(each, column) for arm, each in runs.items()}
        if values[first] is None:
            continue
        hits = np.column_stack([values[arm][0] for arm in made])
        other = np.tile(values[first][0][:, None], len(made))
        found = paired_differences(hits, other, np.tile(values[first][1][:, None], len(made)))
        for arm, each in zip(made, found, strict=True):
            made[arm][column] = each
    return made


def rows_of(runs: dict[str, list[HitsByVariant]], first: str) -> list[dict[str, str]]:
    """A row an arm: the value, and the interval of its difference from the first, starred where Holm's p < 0.05."""
    made = differences(runs, first)
    tests = [(arm, column) for arm in made for column in made[arm]]
    corrected = dict(zip(tests, holm(np.array([made[arm][column].p for arm, column in tests])), strict=True))
    rows = []
    for arm, each in runs.items():
        row = {"arm": arm, "seeds": str(len(each))}
        for column in COLUMNS:
            values = weighted(each, column)
            if values is None:
                continue
            row[column] = f"{100 * values[0].sum():.1f}"
            if arm != first:
                change, star = made[arm][column], "*" if corrected[arm, column] < 0.05 else ""
                row[column] += f" ({change.low:+.1f} to {change.high:+.1f}){star}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    parser.add_argument("--first", default="plain", help="the arm that others are compared with")
    parser.add_argument("--arms", default="", help="which, in this order, with commas (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    found = read_runs(arguments.folders)
    runs = dict.fromkeys([arguments.first, *(arguments.arms.split(",") if arguments.arms else found)])
    if missing := sorted(set(runs) - set(found)):
        parser.error(
            f"no arm {missing[0]!r} in {', '.join(map(str, arguments.folders))}; wanted some of {', '.join(found)}"
        )
    runs = {arm: found[arm] for arm in runs}
    rows = rows_of(runs, arguments.first)
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    for row in rows:
        print(" | ".join(row.values()))


if __name__ == "__main__":
    main()
