"""Half-truths on words that training used as false words, and on words that it never used.

    python experiments/half_truth_words.py prepare --data DATA --out half
    python experiments/half_truth_words.py table runs/half --out docs/research/half_truths_words.csv

`prepare` writes a lexicon and a data folder:

- `half/held.json`: the shipped lexicon in which no noun is ever replaced by one of the objects that half-truths add.
  These objects are listed as more general than every noun. They are still replaced by other nouns. All other
  replacements are the same words as with the shipped lexicon.
- `half/data/choices/items.jsonl`: the captions of DATA/coco/captions_test.json, each against up to `DRAWS` half-truths.
  Part `object` adds an object of the lexicon, `attribute` an adjective. Part `first` repeats the first half-truth of
  each caption, which is the one of `rococo alter-captions --variant half_truth`.

`table` compares the arms of a sweep. Seeds and images are both random, as in `report.across_seeds`. Holm's correction
covers the tests of `CLAIMS`; other differences are described without a verdict.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from claims import ALPHA, Runs, compare, equivalence_p
from defence_folds import read_sweep

from rococo_jax.benchmarks.readers.plain_choices import text_choice
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics.correlation import holm
from rococo_jax.perturb.text.kinds import ADDED_OBJECTS, KindAlterer
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.report.across_seeds import interval, over_draws
from rococo_jax.storage import write_csv_rows

SEED = 0
DRAWS = 8
MARGIN = 2.0  # points
PARTS = ("object", "attribute", "first")
HELD = "-held"
METRICS = ("ota", "grounding", "blind")
ARMS = ("plain", "sc", "sc-held", "recipe", "recipe-held")


class Claim(NamedTuple):
    """A test that was named in advance, of the accuracy of one part."""

    arm: str
    reference: str
    part: str
    test: Literal["difference", "equivalence"]


CLAIMS = (
    Claim("recipe-held", "plain", "object", "difference"),
    Claim("recipe-held", "recipe", "object", "equivalence"),
    Claim("sc-held", "plain", "object", "difference"),
    Claim("sc-held", "sc", "object", "equivalence"),
    Claim("recipe", "plain", "attribute", "difference"),
)


def held_lexicon(lexicon: Lexicon) -> Lexicon:
    """Return the lexicon in which no noun may be replaced by an object that half-truths add."""
    value = lexicon.to_json()
    objects = {noun.name for word in ADDED_OBJECTS if (noun := lexicon.find(word)) is not None}
    general = value["more_general"]
    value["more_general"] = {noun.name: sorted({*general.get(noun.name, ()), *objects}) for noun in lexicon.nouns}
    return Lexicon.from_json(value, "held")


def prepare(data: Path, out: Path) -> None:
    """Write the lexicon and the data folder."""
    lexicon = shipped_lexicon()
    alterer = KindAlterer("addition", lexicon, SEED)
    items, images, skipped = [], set(), 0
    for image in json.loads((data / "coco/captions_test.json").read_text()):
        name, captions = image["image"], image["caption"]
        for number, caption in enumerate(captions):
            for draw, alteration in enumerate(alterer.alter(caption, captions, count=DRAWS)):
                is_object = alteration.new.startswith(" and ")
                parts = ["object" if is_object else "attribute"]
                if is_object and lexicon.find(alteration.new.split()[-1]) is None:
                    skipped += 1  # never a replacement, whatever the lexicon
                    parts = []
                parts += ["first"] if draw == 0 else []
                for part in parts:
                    id = f"{part} {name} {number} {draw}"
                    items.append(text_choice(id, part, (caption,), alteration.caption, name))
                    images.add(name)
    folder = out / "data/choices"
    folder.mkdir(parents=True)
    (folder / "images").symlink_to((data / "coco/images").resolve())
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (out / "held.json").write_text(json.dumps(held_lexicon(lexicon).to_json()))
    counts = {part: sum(item["part"] == part for item in items) for part in PARTS}
    print(f"{counts} items on {len(images)} images; {skipped} with an object outside the lexicon left out")


def runs_of(arm: str, sweep: dict[tuple[str, int], CountsByVariant], part: str, metric: str) -> Runs:
    """Return the runs of an arm, one for each seed."""
    variants = [counts for (name, _), counts in sorted(sweep.items()) if name == arm]
    return Runs(*over_draws([counts["choices", part] for counts in variants], metric))


def cell(mean: float, low: float, high: float, sign: str = "") -> str:
    """Return a number with its interval, such as `+6.1 (+5.1 to +7.1)`."""
    return f"{mean:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"


def summary(runs: dict[tuple[str, str, str], Runs]) -> list[list[str]]:
    """Return a head and a row for each part and arm: the metrics, and the differences of accuracy and grounding."""
    rows = [["part", "arm", "accuracy", "SD of seeds", "against plain", "against the shipped lexicon",
             "grounding", "against plain (grounding)", "blind"]]  # fmt: skip
    for part, arm in itertools.product(PARTS, ARMS):
        of_arm = {metric: runs[arm, part, metric] for metric in METRICS}
        means = {}
        for metric, of_metric in of_arm.items():
            low, high = interval(*of_metric)
            means[metric] = cell(float(of_metric.values.mean()), low, high)

        def against(reference: str, metric: str, part: str = part, arm: str = arm) -> str:
            if reference == arm:
                return ""
            difference = compare(runs[arm, part, metric], runs[reference, part, metric])
            return cell(difference.points, difference.low, difference.high, "+")

        shipped = against(arm.removesuffix(HELD), "ota")
        spread = f"{of_arm['ota'].values.std(ddof=1):.1f}"
        rows.append([part, arm, means["ota"], spread, against("plain", "ota"), shipped,
                     means["grounding"], against("plain", "grounding"), means["blind"]])  # fmt: skip
    return rows


def verdicts(runs: dict[tuple[str, str, str], Runs]) -> list[list[str]]:
    """Return a head and a row for each of `CLAIMS`."""
    described, p = [], []
    for claim in CLAIMS:
        arm, reference = runs[claim.arm, claim.part, "ota"], runs[claim.reference, claim.part, "ota"]
        difference = compare(arm, reference)
        p.append(difference.p if claim.test == "difference" else equivalence_p(arm, reference, MARGIN))
        points = f"{difference.points:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})"
        described.append([claim.part, claim.arm, claim.reference, points, claim.test])
    rows = [["part", "arm", "reference", "difference of accuracy", "test", "p by Holm", "verdict"]]
    for row, claim, corrected in zip(described, CLAIMS, holm(np.array(p)), strict=True):
        decided = "equivalent" if claim.test == "equivalence" else "better" if row[3].startswith("+") else "worse"
        rows.append([*row, f"{corrected:.2g}", decided if corrected < ALPHA else "undecided"])
    return rows


def table(folder: Path, out: Path) -> None:
    """Write and print both tables: OUT, and beside it OUT's name with `_tests`."""
    sweep = read_sweep(folder)
    runs = {(arm, part, metric): runs_of(arm, sweep, part, metric)
            for arm, part, metric in itertools.product(ARMS, PARTS, METRICS)}  # fmt: skip
    tables = {out: summary(runs), out.with_name(f"{out.stem}_tests{out.suffix}"): verdicts(runs)}
    for path, rows in tables.items():
        write_csv_rows(path, rows)
        print("\n".join("; ".join(row) for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    preparer = commands.add_parser("prepare", help="write the lexicon and the items")
    preparer.add_argument("--data", type=Path, required=True, help="data folder in the documented layout")
    preparer.add_argument("--out", type=Path, required=True)
    tabulator = commands.add_parser("table", help="compare the arms over all seeds")
    tabulator.add_argument("folder", type=Path, metavar="SWEEP", help="working folder of the sweep")
    tabulator.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(arguments.data, arguments.out)
    else:
        table(arguments.folder, arguments.out)


if __name__ == "__main__":
    main()
