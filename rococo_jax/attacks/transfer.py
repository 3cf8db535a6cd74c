"""Attacks that were found once and are tested elsewhere: on other models, and on other images (universal captions)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from rococo_jax.attacks.scoring import Goal, Query
from rococo_jax.attacks.summary import Record


def transfer_matrix(
    records: Mapping[str, Sequence[Record]], goals: Mapping[str, Goal], queries: Sequence[Query]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return R@1 and FR@1 of each model under the altered captions that were found against each model.

    The first key is the model that was attacked, the second the model that is tested. Each query has one altered
    caption: the witness, or the best that was found.
    """
    matrix: dict[str, dict[str, dict[str, float]]] = {}
    for made_against, of_model in records.items():
        attacked = [number for number, record in enumerate(of_model) if record["text"] is not None]
        texts = [[of_model[number]["text"]] for number in attacked]
        matrix[made_against] = {}
        for tested, goal in goals.items():
            fooled = np.zeros(len(queries), bool)
            margins = goal.margins([queries[number] for number in attacked], texts)
            fooled[attacked] = [margin.item() >= 0 for margin in margins]
            shares = {"r1": goal.right & ~fooled, "fr1": fooled}
            matrix[made_against][tested] = {name: 100.0 * float(each.mean()) for name, each in shares.items()}
    return matrix


def universal_captions(
    texts: Sequence[str],
    is_first: Bool[np.ndarray, "images texts"],
    half: Bool[np.ndarray, " images"],
    count: int,
) -> dict[str, Any]:
    """Return the captions that rank first for most images of one half, and their share on the other half.

    Captions are chosen one after the other: each is first for most of the images that no earlier one is first for
    (ties: the first in alphabetical order).

    Args:
        texts: altered captions.
        is_first: whether each text ranks above every caption of the data for each image.
        half: the images on which the captions are chosen.
        count: number of captions.
    """
    order = np.argsort(np.array(texts, object), kind="stable")
    found, others = is_first[half][:, order].copy(), is_first[~half][:, order]
    chosen: list[dict[str, Any]] = []
    fooled_found, fooled_others = np.zeros(len(found), bool), np.zeros(len(others), bool)
    for _ in range(min(count, len(texts))):
        best = int(np.argmax((found & ~fooled_found[:, None]).sum(axis=0)))
        fooled_found |= found[:, best]
        fooled_others |= others[:, best]
        chosen.append(
            {
                "text": texts[order[best]],
                "found": 100.0 * float(fooled_found.mean()),
                "tested": 100.0 * float(fooled_others.mean()),
            }
        )
    return {"images": [len(found), len(others)], "candidates": len(texts), "captions": chosen}
