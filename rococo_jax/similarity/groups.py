"""Who belongs to whom: query and gallery items of one group (one image and its captions), as pairs of indices."""

import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.errors import InputError


def same_group_pairs(
    query_group: Int[np.ndarray, "queries"], gallery_group: Int[np.ndarray, "gallery"]
) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "pairs"]]:
    """All pairs (query, gallery item) of the same group, ordered by query, then by gallery index.

    >>> same_group_pairs(np.array([7, 3]), np.array([3, 7, 7]))
    (array([0, 0, 1]), array([1, 2, 0]))
    """
    by_group = np.argsort(gallery_group, kind="stable")
    ordered = gallery_group[by_group]
    first = np.searchsorted(ordered, query_group, side="left")
    counts = np.searchsorted(ordered, query_group, side="right") - first
    queries = np.repeat(np.arange(len(query_group)), counts)
    within = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
    return queries, by_group[np.repeat(first, counts) + within]


def check_groups(
    query_group: Int[np.ndarray, "queries"],
    gallery_group: Int[np.ndarray, "gallery"],
    gallery_altered: Bool[np.ndarray, "gallery"],
    source: str,
) -> None:
    """Makes sure that there are queries and that each has a positive.

    Raises:
        InputError: there are no queries, or a query's group has no unaltered gallery item.
    """
    if not len(query_group):
        raise InputError(source, "queries", "none", "at least one")
    lonely = np.flatnonzero(~np.isin(query_group, gallery_group[~gallery_altered]))
    if len(lonely):
        found = f"{len(lonely)} queries without one (the first is query {lonely[0]})"
        raise InputError(source, "unaltered gallery items of the same group", found, "at least one for each query")
