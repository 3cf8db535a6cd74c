"""Simulate how often the rank intervals of a leaderboard contain all true ranks, and time a large leaderboard.

    python experiments/rank_coverage.py coverage | time

Each subcommand prints a CSV table; `docs/explanation/statistics.md` has its numbers. Settings: 1,000 samples of 300
images and 12 models, of which five have the same probability of a right answer (55 %) and the others 40 to 70 %. The
answers of all models to an image share a normal effect of its difficulty, with a correlation of 0.5. A model that is as
good as others has the best rank that any of them could have, and with equal models every rank among them is a true one.

    coverage     all true ranks in their intervals at once; all five equal models share a letter; a pair of equal models
                 differs (false alarm)
    time         seconds and peak memory of 100 models on 10 benchmarks of 1,000 images
"""

import csv
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from statistics import NormalDist

import numpy as np

from rococo_jax.metrics.ranks import ranks, significant_differences

SEED, SAMPLES, IMAGES, CORRELATION = 0, 1000, 300, 0.5
RATES = np.array([0.70, 0.66, 0.62, *[0.55] * 5, 0.50, 0.47, 0.44, 0.40])
EQUAL = np.flatnonzero(RATES == 0.55)
FLIPS = 1999
MODELS, BENCHMARKS, LARGE_IMAGES = 100, 10, 1000

Rows = Iterator[Iterable[object]]


def answers(rng: np.random.Generator, rates: np.ndarray, images: int) -> np.ndarray:
    """Return right answers, 0 or 100, of each image and model."""
    difficulty, own = rng.normal(size=(images, 1)), rng.normal(size=(images, len(rates)))
    thresholds = np.array([NormalDist().inv_cdf(rate) for rate in rates])
    return 100.0 * (CORRELATION**0.5 * difficulty + (1 - CORRELATION) ** 0.5 * own < thresholds)


def coverage() -> Rows:
    """Yield the shares of samples, in percent."""
    rng = np.random.default_rng(SEED)
    covered = shared = false_alarms = 0
    width = 0.0
    best = np.array([1 + (rate < RATES).sum() for rate in RATES])
    worst = np.array([(rate <= RATES).sum() for rate in RATES])
    for _ in range(SAMPLES):
        scores = answers(rng, RATES, IMAGES)
        values = scores.mean(axis=0)
        differs = significant_differences(values, scores, flips=FLIPS)
        of_models = ranks(values, differs)
        low, high = (np.array([getattr(each, end) for each in of_models]) for end in ("low", "high"))
        covered += bool((low <= best).all() and (high >= worst).all())
        shared += bool(set.intersection(*(set(of_models[place].letters) for place in EQUAL)))
        false_alarms += bool(differs[np.ix_(EQUAL, EQUAL)].any())
        width += float((high - low + 1).mean())
    yield "samples", "all ranks covered %", "equal models share a letter %", "false alarms %", "mean number of ranks"
    yield (
        SAMPLES,
        *(round(100 * each / SAMPLES, 1) for each in (covered, shared, false_alarms)),
        round(width / SAMPLES, 2),
    )


def large() -> Rows:
    """Yield the time and the memory of a large leaderboard."""
    rng = np.random.default_rng(SEED)
    rates = np.linspace(0.3, 0.8, MODELS)
    begin, processor = time.perf_counter(), time.process_time()
    groups = 0
    for _ in range(BENCHMARKS):
        scores = answers(rng, rates, LARGE_IMAGES)
        values = scores.mean(axis=0)
        of_models = ranks(values, significant_differences(values, scores))
        groups += len(set("".join(each.letters for each in of_models)))
    seconds, of_processor = time.perf_counter() - begin, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield "models", "benchmarks", "seconds", "processor seconds", "peak GiB", "letters per benchmark"
    yield MODELS, BENCHMARKS, round(seconds, 1), round(of_processor, 1), round(memory, 2), groups / BENCHMARKS


if __name__ == "__main__":
    csv.writer(sys.stdout).writerows({"coverage": coverage, "time": large}[sys.argv[1]]())
