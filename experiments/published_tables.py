"""Statistics that need only the tables in docs/research: Holm's correction of stars, and intervals over families.

    python experiments/published_tables.py stars docs/research/defences_published.csv ...
    python experiments/published_tables.py families docs/research/published_field.csv --given coco_i2t \
        --out docs/research/population_families.csv

`stars` sets the stars of tables of defences anew, in place. A cell is "value (low to high)", where low and high are the
ends of the 95 % interval of the difference from plain, and the row of plain has values only. A star marks Holm's
p < 0.05 over all differences of a table. The runs behind the tables are no longer available, so

    p = 2 (1 - Phi(1.96 |d| / h))    d: difference, nearer to 0 by 0.1; h: half the interval's length, longer by 0.05

which allows for the rounding of the table to 0.1 points, against the star.

`families` draws families of checkpoints, not checkpoints, with replacement, and computes Spearman's partial correlation
of every two benchmarks on each draw. A family is the training data (`FAMILIES`), because checkpoints that were trained
on the same images resemble each other most. OUT has the pairs with their 95 % intervals.
"""

import argparse
import csv
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from rococo_jax.metrics.correlation import holm
from rococo_jax.storage import write_csv_rows

ALPHA = 0.05
CELL = re.compile(r"(?P<value>-?\d+\.\d+) \((?P<low>[-+]?\d+\.\d+) to (?P<high>[-+]?\d+\.\d+)\)\*?")
PLAIN = "**plain**"
# Letters at the beginning of a checkpoint's training data -> family; other letters are a family of their own.
FAMILIES = {
    "real": "scaled synthetic", "syn": "scaled synthetic", "synreal": "scaled synthetic",
    "commonpool": "datacomp", "laioncoco": "laion", "merged": "laion",
}  # fmt: skip
DRAWS, SEED = 4000, 0


def add_stars(path: Path) -> tuple[int, int]:
    """Set the stars of a table by Holm's correction; return the numbers of differences and of stars."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    (plain,) = (row for row in rows if row[0] == PLAIN)
    cells, p = [], []
    for row, column in itertools.product([row for row in rows if row is not plain], range(1, len(head))):
        match = CELL.fullmatch(row[column])
        value, low, high = (float(match[name]) for name in ("value", "low", "high"))
        difference = max(0.0, abs(value - float(plain[column].partition(" ")[0])) - 0.1)
        standard_error = ((high - low) / 2 + 0.05) / stats.norm.ppf(0.975)
        cells.append((row, column))
        p.append(2 * stats.norm.sf(difference / standard_error))
    is_significant = holm(np.array(p)) < ALPHA
    for (row, column), starred in zip(cells, is_significant, strict=True):
        row[column] = row[column].removesuffix("*") + ("*" if starred else "")
    write_csv_rows(path, [head, *rows])
    return len(p), int(is_significant.sum())


def family_of(checkpoint: str) -> str:
    """Return the family of a checkpoint, whose last word is its training data."""
    letters = re.match(r"[a-z]+", checkpoint.split(" ")[1])[0]
    return FAMILIES.get(letters, letters)


def partial_correlations(values: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Return Spearman's correlations of every two rows of values, controlling for `given`."""
    ranks = stats.rankdata(np.vstack([values, given]), axis=1)
    correlations = np.corrcoef(ranks)
    of_pairs, with_given = correlations[:-1, :-1], correlations[:-1, -1]
    return (of_pairs - np.outer(with_given, with_given)) / np.sqrt(np.outer(1 - with_given**2, 1 - with_given**2))


def draw_families(families: Sequence[str], generator: np.random.Generator) -> np.ndarray:
    """Return the places of the checkpoints of as many families as there are, drawn with replacement."""
    names, place = np.unique(families, return_inverse=True)
    drawn = generator.integers(0, len(names), len(names))
    return np.concatenate([np.flatnonzero(place == family) for family in drawn])


def correlate_families(path: Path, given: str, out: Path) -> None:
    """Write the partial correlation of every two benchmarks with its interval over families."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    benchmarks = [name for name in rows[0] if name not in ("checkpoint", "imagenet", given)]
    values = np.array([[float(row[name]) for row in rows] for name in benchmarks])
    control = np.array([float(row[given]) for row in rows])
    families = [family_of(row["checkpoint"]) for row in rows]
    generator = np.random.default_rng(SEED)
    draws = []
    for _ in range(DRAWS):
        drawn = draw_families(families, generator)
        draws.append(partial_correlations(values[:, drawn], control[drawn]))
    low, high = np.nanpercentile(draws, [2.5, 97.5], axis=0)
    estimates = partial_correlations(values, control)
    lines = [["x", "y", "partial rho x 100", "low", "high", "checkpoints", "families"]]
    for one, other in itertools.combinations(range(len(benchmarks)), 2):
        ends = [f"{100 * each[one, other]:.0f}" for each in (estimates, low, high)]
        lines.append([benchmarks[one], benchmarks[other], *ends, str(len(rows)), str(len(set(families)))])
    write_csv_rows(out, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    stars = commands.add_parser("stars", help="set the stars of tables of defences")
    stars.add_argument("tables", type=Path, nargs="+", metavar="TABLE")
    families = commands.add_parser("families", help="correlate benchmarks, with intervals over families")
    families.add_argument("table", type=Path)
    families.add_argument("--given", required=True, metavar="BENCHMARK")
    families.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "families":
        correlate_families(arguments.table, arguments.given, arguments.out)
        return
    for table in arguments.tables:
        tests, starred = add_stars(table)
        print(f"{table.name}: {starred} of {tests} differences are significant")


if __name__ == "__main__":
    main()
