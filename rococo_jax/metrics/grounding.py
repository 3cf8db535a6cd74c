"""Grounding metrics: preference, blind, grounding and the rank of the difference, in percent, from differences.

`similarity.differences` has the formulas; a figure is the mean over pairs and their own queries. Pairs that have no
wrong query do not count.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int

from rococo_jax.metrics.intervals import Counted
from rococo_jax.metrics.metric import percent
from rococo_jax.similarity.differences import DifferenceStatistics

COUNTED = ("preference", "blind", "grounding", "difference_r1")
METRICS = (
    percent("preference", "Preference", "higher", "the right one of an original and its altered copy scores higher "
            "with what shows it; ties count one half", "ours"),
    percent("blind", "Blind", None, "the original scores higher with something that does not show it: 50 is unbiased, "
            "above it the alteration is recognised without looking", "ours"),
    percent("grounding", "Grounding", "higher", "what shows the original prefers it by more than what does not: 50 is "
            "blind; a bias for the original as such cancels", "ours"),
    percent("difference_r1", "Difference R@1", "higher", "nothing prefers the original by as much as what shows it",
            "ours"),
)  # fmt: skip


def pair_counts(statistics: DifferenceStatistics, row: Int[np.ndarray, " entries"], rows: int) -> dict[str, np.ndarray]:
    """Return the sums of `COUNTED` over the pairs of each row, and in `pairs` how many these are.

    Args:
        statistics: one entry for each pair and own query; an entry without a wrong query does not count.
        row: the query or item that each entry belongs to.
        rows: how many queries or items there are.
    """
    has_wrong = statistics.wrong > 0
    row = row[has_wrong]
    shares = (statistics.preference, statistics.blind, statistics.grounding, statistics.rank == 1)
    sums = {
        name: np.bincount(row, share[has_wrong], rows).astype(np.float64)
        for name, share in zip(COUNTED, shares, strict=True)
    }
    return {"pairs": np.bincount(row, minlength=rows), **sums}


def count_pairs(columns: Mapping[str, np.ndarray], group: Int[np.ndarray, " rows"]) -> Counted | None:
    """Return the counts of pairs for `METRICS`, with an item for each row that has some; None where none has.

    Args:
        columns: as `pair_counts` returns them; others are not looked at.
        group: the image that each row belongs to.
    """
    if "pairs" not in columns or not (has_pairs := columns["pairs"] > 0).any():
        return None
    counts = np.stack([columns[name][has_pairs] for name in COUNTED], axis=1)
    return Counted(counts, COUNTED, group[has_pairs], METRICS, columns["pairs"][has_pairs])
