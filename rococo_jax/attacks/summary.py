"""Results of attacks as numbers: R@1 under attack by budget, survivors, FR@1, certificates, curves, paired tests.

R@1 under attack     queries that are right and stay right / all queries
survival             queries that stay right / queries that were right before; 0 if none was
FR@1 under attack    queries, right before or not, for which an altered item reaches the goal / all queries

Also attacks that were found once and are tested on other models, and on other images (universal captions).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from rococo_jax.attacks.captions import certificate
from rococo_jax.attacks.scoring import Goal, Query
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.metric import Metric, Shares, percent
from rococo_jax.metrics.paired import paired_differences

Record = Mapping[str, Any]
RIGHT = "r1"


def counts_of(records: Sequence[Record], budgets: Sequence[int | float]) -> Counts:
    """Return the counts of each query: right before, right after and fooled at each budget."""
    names = sorted({record["image"] for record in records})
    place = {name: number for number, name in enumerate(names)}
    right = np.array([record["right"] for record in records], float)
    columns, metrics = {RIGHT: right}, [percent(RIGHT, "R@1", "higher", "right before the attack", "ours")]
    for budget, label in zip(budgets, labels_of(budgets), strict=True):
        fooled = np.array([record["smallest"] is not None and record["smallest"] <= budget for record in records])
        columns |= {f"r1_{label}": right * ~fooled, f"fr1_{label}": fooled.astype(float)}
        metrics += [
            percent(f"r1_{label}", f"R@1, {label}", "higher", "right before and after the attack", "ours"),
            Metric(
                f"survival_{label}", f"Survival, {label}", "higher", "%", "right after / right before", "ours",
                lambda shares, name=f"r1_{label}": _survival(shares, name),
            ),
            percent(f"fr1_{label}", f"FR@1, {label}", "lower", "fooled, of all queries", "ours"),
        ]  # fmt: skip
    group = np.array([place[record["image"]] for record in records])
    return Counts.of_rows(columns, group, metrics)


def _survival(shares: Shares, name: str) -> Float[np.ndarray, "*draws"]:
    before, after = np.asarray(shares[RIGHT]), np.asarray(shares[name])
    return np.where(before > 0, 100.0 * after / np.where(before > 0, before, 1.0), 0.0)


def labels_of(budgets: Sequence[int | float]) -> list[str]:
    """Return budgets as texts: whole numbers, or a fraction of 255 where it is whole.

    >>> labels_of([1, 2 / 255, 0.5])
    ['1', '2/255', '0.5']
    """
    labels = []
    for budget in budgets:
        of_255 = round(budget * 255, 6)
        is_fraction = budget < 1 and of_255 == round(of_255)
        labels.append(f"{of_255:.0f}/255" if is_fraction else f"{budget:g}")
    return labels


def summarise(
    records: Sequence[Record], budgets: Sequence[int | float], steps: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the numbers of an attack as JSON.

    Args:
        records: of `attack_captions` or `attack_pixels`.
        budgets: ascending numbers of changes, or radii.
        steps: numbers of queries or of gradient steps of the curve; by default powers of two.
    """
    counts = counts_of(records, budgets)
    beaten = [record.get("beaten") or False for record in records if record["right"]]
    tried = [record["tried"] for record in records]
    steps = steps or [2**power for power in range(max(tried, default=1).bit_length())] + [max(tried, default=0)]
    right = [record for record in records if record["right"]]
    return {
        "queries": len(records),
        "right_before": len(right),
        "without_changes": sum(record.get("candidates") == 0 for record in records),
        "beaten_by_random_search": 100.0 * sum(beaten) / max(1, len(beaten)),
        "tried": sum(tried),
        "values": counts.values(),
        "intervals": counts.intervals(),
        "certificates": {
            label: dict(Counter(certificate(record, budget) for record in right))
            for budget, label in zip(budgets, labels_of(budgets), strict=True)
        },
        "curve": [curve_point(records, step) for step in sorted(set(steps))],
    }


def curve_point(records: Sequence[Record], queries: int) -> dict[str, int | float]:
    """Return R@1 and FR@1 after this number of queries or steps, at the largest budget of changes."""
    fooled = np.array([record["first"] is not None and record["first"] <= queries for record in records])
    right = np.array([record["right"] for record in records])
    return {"queries": queries, "r1": 100.0 * float((right & ~fooled).mean()), "fr1": 100.0 * float(fooled.mean())}


def compare(models: Mapping[str, Sequence[Record]], budgets: Sequence[int | float]) -> list[dict[str, Any]]:
    """Return the paired difference of each model from the first, for each metric, as JSON.

    All differences are corrected together. The models must have been attacked on the same queries.
    """
    (reference, before), *others = [(name, counts_of(records, budgets)) for name, records in models.items()]
    differences_of = paired_differences([(after, before) for _, after in others])
    return [
        {
            "model": name, "reference": reference, "metric": metric, "points": each.points, "low": each.low,
            "high": each.high, "p": each.p, "p_corrected": each.p_corrected, "mde": each.mde,
            "verdict": each.verdict(before.metrics[metric]),
        }
        for (name, _), differences in zip(others, differences_of, strict=True)
        for metric, each in differences.items()
    ]  # fmt: skip


def transfer_matrix(
    records: Mapping[str, Sequence[Record]], goals: Mapping[str, Goal], queries: Sequence[Query]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return R@1 and FR@1 of each model under the altered captions that were found against each model.

    The first key is the model that was attacked, the second the model that is tested. Each query has one altered
    caption: the witness, or the best that was found.
    """
    matrix: dict[str, dict[str, dict[str, float]]] = {}
    for made_against, of_model in records.items():
        with_text = [number for number, record in enumerate(of_model) if record["text"] is not None]
        texts = [[of_model[number]["text"]] for number in with_text]
        matrix[made_against] = {}
        for tested, goal in goals.items():
            fooled = np.zeros(len(queries), bool)
            margins = goal.margins([queries[number] for number in with_text], texts)
            fooled[with_text] = [margin.item() >= 0 for margin in margins]
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
