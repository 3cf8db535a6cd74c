"""Grounding metrics: preference, blind, grounding and the rank of the difference, in percent.

`similarity.differences` has the formulas, which are [ours]. A value is the mean over pairs of an original and its
altered version and their matching queries. Pairs without an unrelated query do not count.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics.intervals import ItemCounts
from rococo_jax.metrics.metric import percent
from rococo_jax.similarity.differences import DifferenceStatistics

COUNTED = ("preference", "blind", "grounding", "difference_r1")
METRICS = (
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
    return {"pairs": np.bincount(row, minlength=rows), **sums}


def count_pairs(columns: Mapping[str, np.ndarray], group: Int[np.ndarray, " rows"]) -> ItemCounts | None:
    """Return the counts of pairs for `METRICS`, with an item for each row that has some; None where none has.

    Args:
        columns: as `pair_counts` returns them; further columns are ignored.
        group: the image that each row belongs to.
    """
    if "pairs" not in columns or not (has_pairs := columns["pairs"] > 0).any():
        return None
    counts = np.stack([columns[name][has_pairs] for name in COUNTED], axis=1)
    return ItemCounts(counts, COUNTED, group[has_pairs], METRICS, columns["pairs"][has_pairs])
