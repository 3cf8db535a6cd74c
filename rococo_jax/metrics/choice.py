"""Multiple choice: which text belongs to the image, which image to the text; in percent, with strict comparisons.

An item is M images by N texts with a match matrix. `c` is an image's first correct text, `c_p` another correct one (a
hard positive), `c_n` its wrong ones (hard negatives); with several of a kind the worst case counts.

    OTA                 s(c) > s(c_n)                                         original test accuracy
    ATA                 s(c) > s(c_n) and s(c_p) > s(c_n)                     augmented test accuracy; ITT
    brittleness         s(c) > s(c_n) > s(c_p) or s(c_p) > s(c_n) > s(c)
    negative on top     s(c_n) > s(c) and s(c_n) > s(c_p)
    ties                the rest, so that ATA + brittleness + negative on top + ties = 100
    TOT                 t(c, c_p) > t(c, c_n) and t(c, c_p) > t(c_p, c_n)      t compares texts without images
    text score          every image scores its right text higher than the item's others
    image score         every text scores its right image higher than the item's others
    group score         both
    by kind             the mean over kinds of items, such as relations, of the OTA of each
    pairs, sets         two, or four, items of which all are right, as a share of all such

OTA, ATA and brittleness as in The Hard Positive Truth (arXiv 2409.17958); OTA is SugarCrepe's accuracy (2306.14610);
ATA and TOT are SugarCrepe++'s ITT and TOT (2406.11171); text, image and group score as in Winoground (2204.03162). A
constant scorer has 0 in everything but ties. By kind is ARO's metric (2210.01936), pairs and sets are What'sUp's
(2310.19785).
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.metrics.metric import Metric, Shares, percent
from rococo_jax.similarity.statistics import Columns

# Question of an item: the text of an image, the image of a text, both, or, without images, which texts mean the same.
Asks = Literal["texts", "images", "both", "alike"]


def _mean_over_kinds(shares: Shares) -> Float[np.ndarray, "*draws"]:
    """Return the mean over the kinds in a draw; kinds without an item in it are excluded."""
    right = np.stack([shares[name] for name in shares if name.startswith(_KIND_RIGHT)])
    items = np.stack([shares[name] for name in shares if name.startswith(_KIND_ITEMS)])
    has_items = items > 0
    with np.errstate(invalid="ignore"):
        of_kinds = np.where(has_items, right, 0) / np.where(has_items, items, 1)
        return np.asarray(100.0 * of_kinds.sum(0) / has_items.sum(0))


def _share_of(name: str) -> Callable[[Shares], Float[np.ndarray, "*draws"]]:
    def function(shares: Shares) -> Float[np.ndarray, "*draws"]:
        with np.errstate(invalid="ignore"):
            return np.asarray(100.0 * shares[name] / shares[f"all_{name}"])

    return function


_KIND_RIGHT, _KIND_ITEMS = "right of kind ", "items of kind "
_BY_KIND = Metric("by_kind", "By kind", "higher", "%", "the mean over kinds of items of the accuracy of each",
                  "benchmark", _mean_over_kinds)  # fmt: skip
_PAIRS = Metric("pairs_right", "Pairs", "higher", "%", "pairs of items of which both are right", "benchmark",
                _share_of("pairs_right"))  # fmt: skip
_SETS = Metric("sets_right", "Sets", "higher", "%", "sets of items of which all are right", "benchmark",
               _share_of("sets_right"))  # fmt: skip
_OF_BUNDLES = {"kind": _BY_KIND, "pair": _PAIRS, "set": _SETS}
TIES = percent("ties", "Ties", "lower", "equal scores, which count as an error", "ours")
METRICS = (
    percent("ota", "OTA", "higher", "accuracy: the right text scores strictly higher than the wrong ones", "benchmark"),
    percent("ata", "ATA", "higher", "both right texts score strictly higher than the wrong ones", "benchmark"),
    percent(
        "itt",
        "ITT",
        "higher",
        "image-to-text: both right texts score strictly higher (equal to ATA)",
        "benchmark",
        "ata",
    ),
    percent(
        "tot",
        "TOT",
        "higher",
        "without images: the two right texts are more similar to each other than to the wrong one",
        "paper",
    ),
    percent("brittleness", "Brittleness", "lower", "a wrong text scores between the two right ones", "benchmark"),
    percent("negative_on_top", "Negative on top", "lower", "a wrong text scores higher than every right one", "ours"),
    percent("group_score", "Group score", "higher", "text score and image score both correct", "benchmark"),
    percent("text_score", "Text score", "higher", "every image scores its right text strictly highest", "benchmark"),
    percent("image_score", "Image score", "higher", "every text scores its right image strictly highest", "benchmark"),
    *_OF_BUNDLES.values(),
    TIES,
)
# Columns of `count_choices`.
COUNTED = (
    *("ota", "ata", "tot", "brittleness", "negative_on_top", "group_score", "text_score", "image_score", "ties"),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclasses.dataclass(frozen=True, eq=False)
class ItemGroups:
    """Items that are counted together.

    Attributes:
        number: group of each item, -1 for none.
        sizes: number of items of each group in the published file.
    """

    number: Int[np.ndarray, " items"]
    sizes: Int[np.ndarray, " bundles"]

    def share(self, items: Any) -> "ItemGroups":
        """Return the groups of some of the items."""
        return ItemGroups(self.number[items], self.sizes)

    @classmethod
    def of(cls, how: str, columns: Mapping[str, np.ndarray]) -> "ItemGroups":
        """Return the groups in the columns `HOW` and `HOW_size` of rows, as `row_columns` returns them."""
        number, size = columns[how], columns[f"{how}_size"]
        sizes = np.zeros(number.max(initial=-1) + 1, np.int64)
        sizes[number[number >= 0]] = size[number >= 0]
        return cls(number, sizes)

    def row_columns(self, how: str) -> dict[str, Int[np.ndarray, " items"]]:
        """Return the columns of each item's row: its group (-1 for none), and the size of the group."""
        return {how: self.number, f"{how}_size": np.append(self.sizes, 0)[self.number]}

    def columns(self, how: str, right: Bool[np.ndarray, " items"]) -> dict[str, Bool[np.ndarray, " items"]]:
        """Return counted columns: of each item by kind, or of the first item of each complete group, if any."""
        if how == "kind":
            every = range(len(self.sizes))
            of_kind = {f"{_KIND_ITEMS}{kind}": self.number == kind for kind in every}
            return of_kind | {f"{_KIND_RIGHT}{kind}": (self.number == kind) & right for kind in every}
        numbers, first = np.unique(self.number, return_index=True)
        present = np.bincount(self.number[self.number >= 0], minlength=len(self.sizes))
        both = np.bincount(self.number[(self.number >= 0) & right], minlength=len(self.sizes))
        is_complete = np.append(present == self.sizes, False)  # the last for -1
        name, counted, won = _OF_BUNDLES[how].name, np.zeros(len(right), bool), np.zeros(len(right), bool)
        counted[first] = is_complete[numbers]
        won[first] = is_complete[numbers] & np.append(both == self.sizes, False)[numbers]
        return {name: won, f"all_{name}": counted} if counted.any() else {}


@dataclasses.dataclass(frozen=True, eq=False)
class ItemScores(Columns):
    """Similarities within each item; NaN where an item has fewer images or texts than the largest.

    Attributes:
        scores: similarity of each image with each text of its item.
        match: which texts are correct for which images.
        alike: if texts are compared without images, the smallest similarity of two correct texts and the largest of a
            correct and a wrong one; None if text embeddings are not available.
        scale: the model's logit scale, for probabilities.
        has_positives: whether an item has several correct texts for its one image, if `alike` is None.
    """

    scores: Float[np.ndarray, "items images texts"]
    match: Bool[np.ndarray, "items images texts"]
    alike: Float[np.ndarray, "items 2"] | None = None
    scale: float = 100.0
    has_positives: bool = False

    shared_fields: ClassVar[tuple[str, ...]] = ("scale", "has_positives")


@dataclasses.dataclass(frozen=True, eq=False)
class Sides:
    """Comparisons of one side: scores of the answers of each query of an item; NaN where there is none.

    Attributes:
        first, worst, best: score of the first, the lowest and the highest correct answer.
        wrong: highest score of a wrong answer.
        has_both: whether the query has a correct and a wrong answer.
    """

    first: Float[np.ndarray, "items queries"]
    worst: Float[np.ndarray, "items queries"]
    best: Float[np.ndarray, "items queries"]
    wrong: Float[np.ndarray, "items queries"]
    has_both: Bool[np.ndarray, "items queries"]

    @property
    def right(self) -> Bool[np.ndarray, " items"]:
        """Whether every correct answer of each query scores higher than the wrong ones."""
        return ((self.worst > self.wrong) | ~self.has_both).all(axis=1)

    @property
    def no_wrong_above_right(self) -> Bool[np.ndarray, " items"]:
        """Whether no wrong answer scores higher than a correct one."""
        return ((self.worst >= self.wrong) | ~self.has_both).all(axis=1)


def sides(scores: Float[np.ndarray, "items queries answers"], match: Bool[np.ndarray, "items queries answers"]):
    """Return the comparisons of each query with its answers along the last axis, as `Sides`."""
    valid = ~np.isnan(scores)
    right, wrong = match & valid, ~match & valid
    first = np.take_along_axis(scores, right.argmax(axis=2)[..., None], axis=2)[..., 0]
    has_both = right.any(axis=2) & wrong.any(axis=2)
    best = np.where(right, scores, -np.inf).max(axis=2)
    worst = np.where(right, scores, np.inf).min(axis=2)
    return Sides(first, worst, best, np.where(wrong, scores, -np.inf).max(axis=2), has_both)


def count_choices(items: ItemScores, asks: Asks) -> dict[str, Bool[np.ndarray, " items"]]:
    """Return whether each item counts, by column."""
    if asks == "alike":
        return _count_alike(items) | {"ties": items.alike[:, 0] == items.alike[:, 1]}
    texts = sides(items.scores, items.match)
    if asks == "texts":
        first, worst, best, wrong = (each[:, 0] for each in (texts.first, texts.worst, texts.best, texts.wrong))
        counted = {"ota": first > wrong, "ties": (wrong == best) | (wrong == worst)}
        if items.alike is None and not items.has_positives:
            return counted
        of_positives = {"ata": worst > wrong, "brittleness": (best > wrong) & (wrong > worst)}
        counted |= of_positives | {"negative_on_top": wrong > best}
        return counted if items.alike is None else counted | _count_alike(items)
    images = sides(items.scores.swapaxes(1, 2), items.match.swapaxes(1, 2))
    if asks == "images":
        return {"image_score": images.right, "ties": images.no_wrong_above_right & ~images.right}
    group = texts.right & images.right
    counted = {"group_score": group, "text_score": texts.right, "image_score": images.right}
    return counted | {"ties": texts.no_wrong_above_right & images.no_wrong_above_right & ~group}


def _count_alike(items: ItemScores) -> dict[str, Bool[np.ndarray, " items"]]:
    return {"tot": items.alike[:, 0] > items.alike[:, 1]}


def choice_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns that `METRICS` are functions of.

    Args:
        columns: those of `count_choices`, and of `ItemGroups.row_columns` for items that are counted together.
    """
    counted = {name: columns[name] for name in COUNTED if name in columns}
    for how in _OF_BUNDLES:
        if how in columns:
            counted |= ItemGroups.of(how, columns).columns(how, counted["ota"])
    return counted


def metrics_of(columns: Collection[str], leads: Collection[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics that are functions of these columns, with those of `leads` first.

    >>> [metric.name for metric in metrics_of(("ota", "ties"))]
    ['ota', 'ties']
    >>> [metric.name for metric in metrics_of(("ata", "tot"), ("itt",))]
    ['itt', 'ata', 'tot']
    >>> [metric.name for metric in metrics_of(("image_score", "ties"), ("ota",))]
    ['image_score', 'ties']
    """
    present = {*columns, *(["by_kind"] if any(name.startswith(_KIND_ITEMS) for name in columns) else [])}
    leads = tuple(lead for lead in leads if lead in present or (lead == "itt" and "ata" in columns))
    return tuple(_BY_NAME[name] for name in dict.fromkeys([*leads, *(m.name for m in METRICS if m.name in present)]))
