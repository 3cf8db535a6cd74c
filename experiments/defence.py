"""Compare the arms of a training experiment, each with several seeds.

    python experiments/defence.py plain=OUT/plain-0,OUT/plain-1 sc=OUT/sc-0,OUT/sc-1 ... [--out TABLE.json]

Every folder holds the `per_query.parquet` of `rococo evaluate`. Prints R@1, FR@1 and the drop of R@1 from clean for
each arm, task and variant: means over the seeds with their standard deviation, and 95 % bootstrap intervals that
resample images and keep all seeds' runs of an image together. `--out` also gets the differences from the first arm, on
the same draws.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from rococo_jax.report.across_seeds import METRICS, interval, over_draws, read_per_image, spread


def summarise(arms: dict[str, list[str]]) -> list[dict]:
    """One entry per arm, task and variant."""
    read = {arm: [read_per_image(folder) for folder in folders] for arm, folders in arms.items()}
    entries, first = [], next(iter(arms))
    for key in read[first][0].hits:
        drawn: dict[tuple[str, str], np.ndarray] = {}
        for arm, runs in read.items():
            entry = {"arm": arm, "task": key[0], "variant": key[1], "seeds": len(runs)}
            for metric in METRICS:
                each, drawn[arm, metric] = _mean_drawn(runs, key, metric)
                clean, clean_drawn = _mean_drawn(runs, (key[0], "clean"), metric)
                entry |= _described(metric, each, drawn[arm, metric])
                if metric == "r1" and key[1] != "clean":
                    lost = 100 * (1 - each.mean() / clean.mean())
                    entry |= {"drop": lost} | _interval("drop", 100 * (1 - drawn[arm, metric] / clean_drawn))
                if arm != first:
                    difference = drawn[arm, metric] - drawn[first, metric]
                    entry |= _interval(f"{metric} against {first}", difference)
            entries.append(entry)
    return entries


def _mean_drawn(runs: list, key: tuple[str, str], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The metric of each run, and the mean over the runs for every bootstrap draw."""
    each, drawn = over_draws(runs, key, metric)
    return each, drawn.mean(1)


def _described(metric: str, each: np.ndarray, drawn: np.ndarray) -> dict:
    return {metric: float(each.mean()), f"{metric} sd over seeds": spread(each) or 0.0} | _interval(metric, drawn)


def _interval(name: str, drawn: np.ndarray) -> dict:
    return {f"{name} interval": interval(drawn)}


def markdown(entries: list[dict]) -> str:
    """The entries as a Markdown table."""
    lines = [
        "| arm | task | variant | R@1 | 95 % | FR@1 | 95 % | drop % |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for entry in entries:
        low, high = entry["r1 interval"]
        false_low, false_high = entry["fr1 interval"]
        altered = entry["variant"] != "clean"
        cells = [entry["arm"], entry["task"], entry["variant"], f"{entry['r1']:.1f} ± {entry['r1 sd over seeds']:.1f}"]
        cells += [f"{low:.1f}-{high:.1f}"]
        cells += (
            [f"{entry['fr1']:.1f}", f"{false_low:.1f}-{false_high:.1f}", f"{entry['drop']:.1f}"]
            if altered
            else [""] * 3
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the table and write `--out`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", nargs="+", metavar="NAME=DIR,DIR", help="an arm and the folders of its runs")
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    arguments = parser.parse_args()
    arms = {name: folders.split(",") for name, _, folders in (arm.partition("=") for arm in arguments.arms)}
    entries = summarise(arms)
    print(markdown(entries))
    if arguments.out:
        arguments.out.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
