"""Simulate how often intervals cover, tests raise false alarms and effects are found, with the package's functions.

    python experiments/interval_coverage.py shares | equivalence | ece | mde | verdicts | seeds | gate

Each subcommand prints a CSV table. `docs/explanation/statistics.md` has the extremes of each.

    shares       coverage of the interval of a share, for images with one caption or five that agree more or less
    equivalence  how often models that differ by exactly the margin are called equivalent
    ece          coverage of the interval of ECE, at three true values
    mde          how often the corrected test finds an effect as large as the MDE that it prints
    verdicts     rows whose interval and verdict contradict each other, false alarms of a family, and the verdicts that
                 step-down max-T would add
    seeds        false alarms of the comparison over seeds, for every pair of numbers of seeds
    gate         how often `rococo compare --fail-on worse` fails for a model that is as good as the baseline, with the
                 primary tests of RoCOCO
"""

import argparse
import csv
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from rococo_jax.metrics import metric_of
from rococo_jax.metrics.counts import Counts, Run
from rococo_jax.metrics.intervals import share_interval
from rococo_jax.metrics.metric import ROWS, share
from rococo_jax.metrics.paired import Pair, paired_differences, smallest_margin
from rococo_jax.metrics.rows import count_rows
from rococo_jax.report.across_seeds import difference

SEED = 0
# Shares: (captions, intraclass correlation). Samples of each cell; the standard error of 90 % is 1.1 points.
IMAGES, RATES = (50, 281, 1000, 5000), (0.2, 0.5, 1, 3, 10, 30, 50, 90, 97, 99, 99.8)
CAPTIONS, SHARE_SAMPLES = ((1, 0.0), (5, 0.1), (5, 0.3), (5, 0.6)), 600
# Equivalence: margins and how often the other model wins in points, captions of an image.
EQUIVALENCE_IMAGES = (20, 50, 100, 200, 250, 281, 400, 500, 700, 1000, 2000, 5000)
MARGINS, OTHER_WINS, EQUIVALENCE_SAMPLES = (1.0, 2.0, 3.0, 10.0), (0.0, 1.0, 5.0), 40_000
# ECE: points by which confidences are too high.
EXCESS, ECE_IMAGES, ECE_SAMPLES, ECE_DRAWS = (0.0, 0.03, 0.10), (281, 1000, 5000), 200, 300
# MDE: primary tests of the family; the share of images on which two models differ.
FAMILIES, MDE_IMAGES, DISCORDANT, MDE_SAMPLES, FLIPS = (1, 9, 32, 99), 300, 0.3, 300, 999
MODELS, TESTS, FALSE_ALARM_SAMPLES = 10, 99, 200
# Seeds: (standard deviation over seeds of each model, that of the difference over images).
SEEDS, SPREADS, SEED_SAMPLES = (2, 3, 5, 10), ((1, 1, 0), (3, 1, 0), (1, 3, 0), (1, 1, 1), (3, 1, 1), (1, 3, 1)), 2000
# Gate: queries of an image and altered variants of each task; mean rates, and those of models that are rarely wrong.
TASKS, GATE_IMAGES, PULL_REQUESTS = ((1, 4), (5, 2)), 281, 500
GATE_RATES = (
    {"r1": 0.6, "fr1": 0.3, "grounding": 0.65, "blind": 0.5},
    {"r1": 0.95, "fr1": 0.02, "grounding": 0.97, "blind": 0.5},
)

Rows = Iterator[Iterable[object]]


def shares(rng: np.random.Generator) -> Rows:
    """Yield the coverage of each cell."""
    yield "captions", "intraclass correlation", "images", "rate %", "coverage %", "mean width"
    for (captions, agreement), images, rate in itertools.product(CAPTIONS, IMAGES, RATES):
        covered, width, p, entries = 0, 0.0, rate / 100, np.full((1, images), float(captions))
        for _ in range(SHARE_SAMPLES):
            of_images = p
            if agreement:
                concentration = (1 - agreement) / agreement
                of_images = rng.beta(p * concentration, (1 - p) * concentration, images)
            hits = rng.binomial(captions, of_images, images).astype(float)
            low, high = share_interval(hits[None], entries)
            covered, width = covered + (low <= rate <= high), width + high - low
        yield captions, agreement, images, rate, f"{100 * covered / SHARE_SAMPLES:.1f}", f"{width / SHARE_SAMPLES:.2f}"


def equivalence(rng: np.random.Generator) -> Rows:
    """Yield how often models are called equivalent whose difference is the margin."""
    yield "images", "margin", "other model wins %", "called equivalent %"
    for images, margin, other in itertools.product(EQUIVALENCE_IMAGES, MARGINS, OTHER_WINS):
        wins = rng.multinomial(
            images, np.array([margin + other, other, 100 - margin - 2 * other]) / 100, EQUIVALENCE_SAMPLES
        )
        outcomes, times = np.unique(wins[:, :2], axis=0, return_counts=True)
        called = 0
        for (won, lost), count in zip(outcomes, times, strict=True):
            points = np.repeat([100.0, -100.0, 0.0], [won, lost, images - won - lost])
            called += int(count) * (smallest_margin(100.0 * (won - lost) / images, points, 100.0) < margin)
        yield images, margin, other, f"{100 * called / len(wins):.1f}"


def ece(rng: np.random.Generator) -> Rows:
    """Yield the coverage of the interval of ECE."""
    yield "images", "true ECE", "mean ECE", "mean ECE if calibrated", "mean low", "mean high", "coverage %"

    def counts_of(images: int, excess: float):
        confidence = 0.1 + 0.9 * rng.beta(4, 2, images)
        columns = dict.fromkeys(("nll", "brier", "scaled_nll"), confidence)
        columns |= {"confidence": confidence, "scaled_confidence": confidence, "ties": np.zeros(images, bool)}
        columns["top1"] = rng.random(images) < np.clip(confidence - excess, 0, 1)
        return count_rows("classify", columns, np.arange(images))

    for excess, images in itertools.product(EXCESS, ECE_IMAGES):
        truth = counts_of(2_000_000, excess).values()["ece"] if excess else 0.0
        rows = []
        for _ in range(ECE_SAMPLES):
            counts = counts_of(images, excess)
            low, high = counts.only(["ece"]).intervals(resamples=ECE_DRAWS)["ece"]
            values = counts.values()
            rows.append((values["ece"], values["ece_calibrated"], low, high, 100.0 * (low <= truth <= high)))
        yield images, f"{truth:.2f}", *(f"{mean:.1f}" for mean in np.mean(rows, axis=0))


def pairs(rng: np.random.Generator, images: int, gains: np.ndarray) -> list[Pair]:
    """Return tests in which two models differ on `DISCORDANT` of the images, the first winning more by its gain."""
    kinds = rng.random((images, len(gains)))
    up, down = kinds < (DISCORDANT + gains) / 2, kinds >= 1 - (DISCORDANT - gains) / 2
    recall, every = [metric_of("r1")], np.arange(images)
    hits = [[Counts.of_rows({"r1": each}, every, recall) for each in columns.T] for columns in (up, down)]
    return list(zip(*hits, strict=True))


def mde(rng: np.random.Generator) -> Rows:
    """Yield how often the corrected test finds an effect of the size of the MDE that it prints."""
    yield "primary tests", "mean MDE", "found by the corrected test %", "found by the uncorrected test %"
    for tests in FAMILIES:
        gains = np.zeros(tests)

        def first(gains: np.ndarray = gains):
            return paired_differences(pairs(rng, MDE_IMAGES, gains), flips=FLIPS)[0]["r1"]

        effect = np.mean([first().mde for _ in range(30)])
        gains[0] = effect / 100
        results = [first() for _ in range(MDE_SAMPLES)]
        found = [np.mean([p(each) < 0.05 for each in results]) for p in (lambda r: r.p_corrected, lambda r: r.p)]
        yield tests, f"{effect:.1f}", *(f"{100 * each:.0f}" for each in found)


def verdicts(rng: np.random.Generator) -> Rows:
    """Yield contradictions of interval and verdict, false alarms of a family, and verdicts by step-down max-T."""
    tests, metric = MODELS * TESTS, metric_of("r1")
    gains = np.where(rng.random(tests) < 0.3, rng.uniform(-0.2, 0.2, tests), 0.0)
    comparisons = pairs(rng, MDE_IMAGES, gains)
    results = [each["r1"] for each in paired_differences(comparisons)]
    excludes_zero = [not each.low <= 0 <= each.high for each in results]
    decided = [each.verdict(metric) in ("better", "worse") for each in results]
    yield "rows", "decided", "interval and verdict contradict each other", "decided by step-down"
    yield tests, sum(decided), sum(a != b for a, b in zip(excludes_zero, decided, strict=True)), step_down(comparisons)
    alarms = 0
    for _ in range(FALSE_ALARM_SAMPLES):
        family = paired_differences(pairs(rng, MDE_IMAGES, np.zeros(32)), flips=FLIPS)
        alarms += any(each["r1"].p_corrected < 0.05 for each in family)
    yield "families of 32 tests without any effect", FALSE_ALARM_SAMPLES
    yield "with a false alarm %", f"{100 * alarms / FALSE_ALARM_SAMPLES:.1f}"


def step_down(comparisons: list[Pair]) -> int:
    """Return how many tests step-down max-T decides: those that are decided leave the family, until no more are."""
    decided = 0
    while comparisons:
        results = paired_differences(comparisons)
        remaining = [
            each for each, result in zip(comparisons, results, strict=True) if result["r1"].p_corrected >= 0.05
        ]
        if len(remaining) == len(comparisons):
            break
        decided, comparisons = decided + len(comparisons) - len(remaining), remaining
    return decided


def seeds(rng: np.random.Generator) -> Rows:
    """Yield the false alarms of models whose runs have the same distribution."""
    yield "seeds", "seeds of reference", "SD over seeds", "SD of reference", "SD over images", "false alarms %"
    pairs_of_seeds = itertools.combinations_with_replacement(SEEDS, 2)
    draws = np.array([[-1.0], [0.0], [1.0]])  # three draws of the images, with variance 1
    for (one, other), (spread, of_other, of_images) in itertools.product(pairs_of_seeds, SPREADS):
        alarms = 0
        for _ in range(SEED_SAMPLES):
            values = spread * rng.standard_normal(one) + of_images * rng.standard_normal()
            reference = of_other * rng.standard_normal(other)
            resampled = values + of_images * draws, reference + 0 * draws
            alarms += difference(values, resampled[0], reference, resampled[1]).p < 0.05
        yield one, other, spread, of_other, of_images, f"{100 * alarms / SEED_SAMPLES:.1f}"


def pull_request(rng: np.random.Generator, rates: dict[str, float]) -> list[list[Pair]]:
    """Return the tests of each task, of two models that answer independently at the same rates.

    Images differ in difficulty, which all variants and both models share.
    """
    difficulty, tasks = rng.normal(size=GATE_IMAGES), []
    for queries, variants in TASKS:
        comparisons = []
        for names in [("r1",), *[tuple(rates)] * variants]:
            columns = []
            for name in names:
                logits = np.log(rates[name] / (1 - rates[name])) + (0 if name == "blind" else 1) * difficulty
                chances = 1 / (1 + np.exp(-logits - 0.5 * rng.normal(size=(2, GATE_IMAGES))))
                columns.append(rng.binomial(queries, chances))
            counts = np.stack([*columns, np.full((2, GATE_IMAGES), queries)], axis=2).astype(float)
            metrics = {name: dataclasses.replace(metric_of(name), function=share(name), per=ROWS) for name in names}
            runs = [Run(np.arange(GATE_IMAGES), sums, (*names, ROWS), metrics) for sums in counts]
            comparisons.append((Counts((runs[0],)), Counts((runs[1],))))
        tasks.append(comparisons)
    return tasks


def gate(rng: np.random.Generator) -> Rows:
    """Yield how often a gate fails that corrects over all tasks, as `--fail-on` does, or within each."""
    yield "R@1 %", "family", "worse %", "worse or text bias %"
    for rates in GATE_RATES:
        failed = {"all": np.zeros(2), "task": np.zeros(2)}
        for _ in range(PULL_REQUESTS):
            tasks = pull_request(rng, rates)
            for family, families in (("all", [[*itertools.chain(*tasks)]]), ("task", tasks)):
                tests = [
                    test
                    for each in families
                    for values in paired_differences(each, flips=FLIPS)
                    for test in values.items()
                ]
                verdicts_of = {test.verdict(metric_of(name)) for name, test in tests}
                failed[family] += "worse" in verdicts_of, bool({"worse", "text bias"} & verdicts_of)
        for family, counts in failed.items():
            yield 100 * rates["r1"], family, *(f"{100 * each / PULL_REQUESTS:.1f}" for each in counts)


def main() -> None:
    """Print the table of a simulation."""
    simulations = {each.__name__: each for each in (shares, equivalence, ece, mde, verdicts, seeds, gate)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("simulation", choices=simulations)
    writer = csv.writer(sys.stdout)
    for row in simulations[parser.parse_args().simulation](np.random.default_rng(SEED)):
        writer.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
