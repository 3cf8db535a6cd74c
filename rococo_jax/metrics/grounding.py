"""Grounding metrics: preference, blind, grounding and the rank of the difference, in percent, from differences.

`similarity.differences` has the formulas; a figure is the mean over pairs and their own queries. Pairs that have no
wrong query do not count.
"""

import numpy as np
from jaxtyping import Float, Int

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


def shares_of_pairs(statistics: DifferenceStatistics) -> Float[np.ndarray, "entries counted"]:
    """The columns `COUNTED` of each entry, from 0 to 1; NaN where there is no wrong query."""
    first = np.where(statistics.unrelated > 0, statistics.rank == 1, np.nan)
    return np.stack([statistics.preference, statistics.blind, statistics.grounding, first], axis=1)


def count_differences(statistics: DifferenceStatistics, group: Int[np.ndarray, " entries"]) -> Counted | None:
    """Counts for each entry that has a wrong query, for `METRICS`; None where none has.

    Args:
        statistics: one entry for each pair and own query.
        group: the image that each entry belongs to.
    """
    has_wrong = statistics.unrelated > 0
    return (
        Counted(shares_of_pairs(statistics)[has_wrong], COUNTED, group[has_wrong], METRICS) if has_wrong.any() else None
    )
