"""Claims about two arms of an experiment, each with one test that was named in advance, over seeds and images.

    difference     two-sided p of the defence minus plain: Welch's variance over seeds plus the variance over images,
                   which all runs share (`report.across_seeds`)
    equivalence    two one-sided tests that the difference (of blind: the distance from 50) is within the margin

Holm's correction covers the tests that were named in advance. A claim that is tested for equivalence and not
significant may still be better or worse, and a claim that is tested for a difference and not significant may still be
equivalent; both by their uncorrected p.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from rococo_jax.evaluation import stored_counts
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, read_results
from rococo_jax.evaluation.stored_counts import CountsByVariant
from rococo_jax.metrics.correlation import holm
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.paired import PairedDifference
from rococo_jax.report.across_seeds import difference, interval, over_draws
from rococo_jax.storage import write_csv_rows

ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim about the defence, with the test that was named in advance.

    Attributes:
        name: heading in the table.
        task: task of the results.
        variants: variants or parts over whose mean the metric is computed; all parts if empty.
        metric: name of the metric.
        better: the end of the metric that is better; None for blind, which is compared with `target`.
        test: the test that Holm's correction covers; None for a row that is only described.
        margin: differences smaller than this many points are equivalent.
        target: value that the defence is compared with instead of plain.
    """

    name: str
    task: str
    variants: tuple[str, ...]
    metric: str
    better: Literal["higher", "lower"] | None
    test: Literal["difference", "equivalence"] | None
    margin: float
    target: float | None = None


class Runs(NamedTuple):
    """A metric of each run of an arm, the same on every draw of the images, and its smallest and largest value.

    Every metric of these tables is a percentage.
    """

    values: np.ndarray
    drawn: np.ndarray
    bounds: tuple[float, float] = (0.0, 100.0)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A claim with the difference between the arms, p of equivalence, and its row of the table without the verdict."""

    claim: Claim
    difference: PairedDifference
    p_equivalence: float
    row: dict[str, object]


@functools.cache
def read_counts(folder: Path) -> CountsByVariant:
    """Return the counts of each image of an evaluation, which several claims read."""
    return stored_counts.read_counts(folder / PER_QUERY, read_results(folder / RESULTS))


def counts_of_claim(results: Sequence[Path], claim: Claim) -> list[Counts]:
    """Return the counts of each evaluation over the claim's variants, which must be named."""
    return [Counts.mean([run[claim.task, part] for part in claim.variants]) for run in map(read_counts, results)]


def runs_by_arm(counts: dict[str, list[Counts]], metric: str) -> dict[str, Runs]:
    """Return a metric of the runs of each arm. The images are drawn once for all runs."""
    values, drawn = over_draws([run for runs in counts.values() for run in runs], metric)
    ends = np.cumsum([len(runs) for runs in counts.values()])[:-1]
    parts = zip(np.split(values, ends), np.split(drawn, ends, axis=1), strict=True)
    return {arm: Runs(*part) for arm, part in zip(counts, parts, strict=True)}


def compare(model: Runs, reference: Runs) -> PairedDifference:
    """Return the difference of the means over seeds, with its interval and p over seeds and images."""
    result = difference(model.values, model.drawn, reference.values, reference.drawn, model.bounds)
    if result is None:
        raise ValueError("a single seed, or no variance: no comparison over seeds")
    return result


def constant(value: float, like: Runs) -> Runs:
    """Return runs that all have the same value."""
    return Runs(np.full_like(like.values, value), np.full_like(like.drawn, value))


def equivalence_p(model: Runs, reference: Runs, margin: float) -> float:
    """Return p of two one-sided tests that the difference is within the margin: the larger of the two."""
    p = []
    for sign in (1.0, -1.0):
        # H0 of this side: sign * difference <= -margin.
        shifted = compare(Runs(model.values + sign * margin, model.drawn + sign * margin), reference)
        is_on_this_side = sign * shifted.points > 0
        p.append(shifted.p / 2 if is_on_this_side else 1 - shifted.p / 2)
    return max(p)


def compare_arms(claim: Claim, arms: dict[str, Runs]) -> Comparison:
    """Compare the second arm, the defence, with the first, plain."""
    plain, defence = arms.values()
    of_difference = compare(defence, plain)
    reference = plain if claim.target is None else constant(claim.target, plain)
    p_equivalence = equivalence_p(defence, reference, claim.margin)
    row: dict[str, object] = {"claim": claim.name, "seeds": len(plain.values)}
    for name, runs in arms.items():
        row |= {name: f"{runs.values.mean():.2f}", f"{name} SD of seeds": f"{runs.values.std(ddof=1):.2f}"}
    low, high = interval(*defence)
    defence_name = [*arms][1]
    row |= {f"{defence_name} low": f"{low:.2f}", f"{defence_name} high": f"{high:.2f}"}
    row |= {"difference": f"{of_difference.points:+.2f}", "low": f"{of_difference.low:+.2f}"}
    row |= {"high": f"{of_difference.high:+.2f}", "p of difference": f"{of_difference.p:.2g}"}
    row |= {"margin": f"{claim.margin:g}", "p of equivalence": f"{p_equivalence:.2g}"}
    return Comparison(claim, of_difference, p_equivalence, row)


def verdict(claim: Claim, of_difference: PairedDifference, corrected: float, p_equivalence: float) -> str:
    """Return better, worse, equivalent or undecided."""
    p_difference = corrected if claim.test == "difference" else of_difference.p
    p_equivalence = corrected if claim.test == "equivalence" else p_equivalence
    has_difference = claim.better is not None and p_difference < ALPHA
    direction = "better" if (of_difference.points > 0) == (claim.better == "higher") else "worse"
    in_order = [("equivalent", p_equivalence < ALPHA), (direction, has_difference)]
    if claim.test == "difference":
        in_order.reverse()
    return next((name for name, is_shown in in_order if is_shown), "undecided")


def write_claims(comparisons: Sequence[Comparison], out: Path) -> None:
    """Write and print a row for each claim, with the verdict of those that are tested."""
    tested = [each for each in comparisons if each.claim.test is not None]
    p = [each.difference.p if each.claim.test == "difference" else each.p_equivalence for each in tested]
    verdicts: dict[str, dict[str, object]] = {}
    for each, corrected in zip(tested, holm(np.array(p)), strict=True):
        decided = verdict(each.claim, each.difference, float(corrected), each.p_equivalence)
        verdicts[each.claim.name] = {"test": each.claim.test, "p by Holm": f"{corrected:.2g}", "verdict": decided}
    rows = [each.row | verdicts.get(each.claim.name, {}) for each in comparisons]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv_rows(out, [columns, *([row.get(name, "") for name in columns] for row in rows)])
    for row in rows:
        print("; ".join(f"{name} {value}" for name, value in row.items()))
