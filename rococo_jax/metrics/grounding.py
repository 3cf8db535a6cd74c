"""Grounding metrics: preference, blind, grounding and the rank of the difference, in percent.

`similarity.differences` has the formulas, which are [ours]. A value is the mean over pairs of an original and its
altered version and their matching queries. Pairs without an unrelated query do not count.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics.metric import percent
from rococo_jax.similarity.differences import DifferenceStatistics

# Column that counts the pairs.
PAIRS = "pairs"
COUNTED = ("preference", "blind", "grounding", "difference_r1")
_SHARES = (
    percent(
        "preference",
        "Preference",
        "higher",
        "the matching image (or caption) scores the original higher than its altered version; ties count one half",
        "ours",
    ),
    dataclasses.replace(
        percent(
            "blind",
            "Blind",
            None,
            "an unrelated image (or caption) scores the original higher than its altered version: 50 "
            "is unbiased; above 50, the alteration is recognised without the image",
            "ours",
        ),
        neutral=50.0,
    ),
    percent(
        "grounding",
        "Grounding",
        "higher",
        "the matching image (or caption) prefers the original by more than an "
        "unrelated one does: 50 is no grounding; a general bias for the original cancels",
        "ours",
    ),
    percent(
        "difference_r1",
        "Difference R@1",
        "higher",
        "no unrelated image (or caption) prefers the original by as much as the matching one",
        "ours",
    ),
)
METRICS = tuple(dataclasses.replace(metric, per=PAIRS) for metric in _SHARES)


def pair_counts(statistics: DifferenceStatistics, row: Int[np.ndarray, " entries"], rows: int) -> dict[str, np.ndarray]:
    """Return the sums of `COUNTED` over the pairs of each row, and the number of pairs as `pairs`.

    Args:
        statistics: one entry for each pair and matching query; entries without an unrelated query do not count.
        row: query or item of each entry.
        rows: number of queries or items.
    """
    has_wrong = statistics.unrelated > 0
    row = row[has_wrong]
    shares = (statistics.preference, statistics.blind, statistics.grounding, statistics.rank == 1)
    sums = {
        name: np.bincount(row, share[has_wrong], rows).astype(np.float64)
        for name, share in zip(COUNTED, shares, strict=True)
    }
    return {PAIRS: np.bincount(row, minlength=rows), **sums}


def pair_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that `METRICS` are functions of; none if no row has a pair."""
    has_pairs = PAIRS in columns and bool(np.any(columns[PAIRS] > 0))
    return {name: columns[name] for name in (PAIRS, *COUNTED)} if has_pairs else {}
