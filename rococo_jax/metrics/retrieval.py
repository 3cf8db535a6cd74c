"""Recall, false recall and the four-way split of the first place, in percent, from rank statistics.

    R@K        share of queries whose best own original is at rank <= K
    r_mean     (R@1 + R@5 + R@10) / 3
    FR@1       share of queries for which an altered item ranks first, of any image
    top1_*     the item that ranks first: own original / own altered / other's altered / other's original
    drop       100 (R@1 clean - R@1 altered) / R@1 clean
    hubness    share of queries whose first item also ranks first for a query of another image

R@K, FR@1 and r_mean follow the public code of RoCOCO (arXiv 2304.10727); the paper reports a drop rate whose formula
is in no public code, so `drop` is this project's own. Ties: `published` uses the nearest well-defined equivalent of
the published sort; `pessimistic` counts every tie against the model: in a tie for the first rank, an altered item of
another image comes first, then one of the own image, then another original, and last the own original.

Hubs are items that rank first for many queries (Radovanovic, Nanopoulos and Ivanovic 2010, JMLR 11, 2487), who measure
the skewness of the number of queries; the share of queries is this project's own. A model without an error has 0,
unless images have captions in common. Whether a query shares its first item depends on all others, so images cannot be
drawn again: it has no interval and no test.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.metrics.metric import Metric, percent
from rococo_jax.similarity.statistics import KINDS, RankStatistics

Ties = Literal["published", "pessimistic"]

_CUTOFFS = (1, 5, 10)
# Columns counted for each query; every metric is linear in their shares.
COUNTED = ("r1", "r5", "r10", *(f"top1_{kind}" for kind in KINDS))
RECALLS = (
    *(
        percent(
            f"r{cutoff}",
            f"R@{cutoff}",
            "higher",
            f"share of queries whose best-ranked correct item is {among}",
            "benchmark",
        )
        for cutoff, among in zip(_CUTOFFS, ("first", "among the first 5", "among the first 10"), strict=True)
    ),
    Metric(
        "r_mean",
        "Mean R",
        "higher",
        "%",
        "(R@1 + R@5 + R@10) / 3",
        "benchmark",
        lambda shares: (shares["r1"] + shares["r5"] + shares["r10"]) / 3,
    ),
    Metric(
        "fr1",
        "FR@1",
        "lower",
        "%",
        "false recall: share of queries for which an altered item ranks first, of any image or caption",
        "benchmark",
        lambda shares: shares["top1_own_altered"] + shares["top1_other_altered"],
        is_share=True,
    ),
)
FIRST_PLACES = tuple(
    percent(f"top1_{kind}", kind.replace("_", " ").capitalize(), None, f"{item} ranks first", "benchmark")
    for kind, item in {
        "own": "an original item of the query",
        "own_altered": "an altered item of the query",
        "other_altered": "an altered item of another query",
        "other": "an original item of another query",
    }.items()
)
METRICS = (*RECALLS, *FIRST_PLACES)
# For two-stage rankings: the second stage cannot find a correct item that is not among the candidates.
CANDIDATES = percent("candidate_recall", "Candidates", "higher",
                     "share of queries with a correct item among the candidates of the second stage",
                     "ours")  # fmt: skip

HUBNESS = Metric(
    "hubness",
    "Hubness",
    "lower",
    "%",
    "share of queries whose first item also ranks first for a query of another image",
    "ours",
)


def ranks(statistics: RankStatistics, ties: Ties) -> Int[np.ndarray, " queries"]:
    """Return the rank of the best own original of each query; 1 is best."""
    return statistics.rank_pessimistic if ties == "pessimistic" else statistics.rank_published


def top_kinds(statistics: RankStatistics, ties: Ties) -> Int[np.ndarray, " queries"]:
    """Return the kind of the item that ranks first for each query, as an index into `KINDS`."""
    return statistics.top_kind_against_the_model if ties == "pessimistic" else statistics.top_kind_published


def query_counts(
    statistics: RankStatistics, ties: Ties, has_candidate: Bool[np.ndarray, " queries"] | None = None
) -> dict[str, Bool[np.ndarray, " queries"]]:
    """Return whether each query counts, by column: `COUNTED`, and `candidate_recall` where candidates are known."""
    rank, kind = ranks(statistics, ties), top_kinds(statistics, ties)
    columns = {f"r{cutoff}": rank <= cutoff for cutoff in _CUTOFFS}
    columns |= {f"top1_{name}": kind == place for place, name in enumerate(KINDS)}
    return columns if has_candidate is None else columns | {CANDIDATES.name: has_candidate}


def query_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that `METRICS` are functions of, and that of `CANDIDATES` where candidates are known."""
    return {name: columns[name] for name in (*COUNTED, *([CANDIDATES.name] if CANDIDATES.name in columns else []))}


def metrics_of(columns: Mapping[str, Any], leads: Collection[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics that are functions of these columns."""
    return (*METRICS, CANDIDATES) if CANDIDATES.name in columns else METRICS


def constants(columns: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the hubness, if it was counted."""
    return {HUBNESS.name: 100.0 * float(np.mean(columns[HUBNESS.name]))} if HUBNESS.name in columns else {}


def shares_first_item(
    first_item: Int[np.ndarray, " queries"], image: Int[np.ndarray, " queries"]
) -> Bool[np.ndarray, " queries"]:
    """Return whether the item that ranks first for each query also does for a query of another image.

    >>> shares_first_item(np.array([5, 5, 7, 7, 8]), np.array([0, 1, 2, 2, 3])).tolist()
    [True, True, False, False, False]
    """
    items, place = np.unique(first_item, return_inverse=True)
    lowest, highest = np.full(len(items), image.max(initial=0)), np.full(len(items), image.min(initial=0))
    np.minimum.at(lowest, place, image)
    np.maximum.at(highest, place, image)
    return (lowest < highest)[place]
