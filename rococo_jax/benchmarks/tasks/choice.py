"""Choice task: which of a few texts belongs to the image, which of a few images to the text, or both."""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool, pools_over
from rococo_jax.benchmarks.tables import DEFAULT_SCALE, ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.choice_outcome import KINDS, ChoiceOutcome
from rococo_jax.benchmarks.tasks.pairs import AlteredPairs
from rococo_jax.benchmarks.tasks.task import Compared, FindClass, PairsAsked, Task, mean_vectors
from rococo_jax.benchmarks.variants import MEAN, Variant
from rococo_jax.cores import usable_cores
from rococo_jax.errors import InputError
from rococo_jax.metrics.choice import Asks, ItemGroups, ItemScores

# float64 numbers in a block of items: 8 MB, which fits into a core's cache.
_NUMBERS_AT_ONCE = 2**20
# Largest number of text pairs times images for grounding: about 20 minutes on two cores.
MOST_DIFFERENCES = 10**10


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceTask(Task):
    """Items of M images by N texts; every comparison is strict, so a constant scorer has 0 in all metrics.

    Attributes:
        variant: part of the benchmark.
        ids: identifiers of the items, unique within the part.
        images: the images of all items.
        image_names: row of the benchmark's `images` of each image, or of the image from which it was cropped.
        item_images: images of each item, as indices into `images`; -1 for items with fewer images than the largest.
        item_texts: texts of each item, as rows of the table of texts; -1 for items with fewer texts.
        match: which texts are correct for which images; without images, the first row marks the correct texts.
        group: row of the benchmark's `images` of each item.
        units: items with the same number are resampled together, also across parts; by default `group`.
        templates: number of prompts of each text, in this and the following rows of the table; the mean of their
            vectors stands for the text.
        leads: metrics to list first.
        pools: variants over several parts; by default the mean over all parts, and all of their items.
        whole_images: number of the benchmark's images, if each of `images` is one of them uncropped, in the same row of
            its set. Grounding then uses all of them, otherwise the images of this task.
        bundles: items that are counted together, by the method of counting.
    """

    ids: Sequence[str]
    images: Rows
    image_names: Int[np.ndarray, " pictures"]
    item_images: Int[np.ndarray, "items images"]
    item_texts: Int[np.ndarray, "items texts"]
    match: Bool[np.ndarray, "items images texts"]
    group: Int[np.ndarray, " items"]
    leads: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = dataclasses.field(default=pools_over(MEAN, "parts", None), kw_only=True)
    units: Int[np.ndarray, " items"] | None = None
    templates: int = 1
    whole_images: int = 0
    bundles: Mapping[str, ItemGroups] = dataclasses.field(default_factory=dict)

    @property
    def variation(self) -> Variant:
        """Variant with its fields: a part of the benchmark, on original or corrupted images."""
        return Variant(part=self.variant, corruption=self.corruption, severity=self.severity)

    @property
    def kind(self) -> str:
        """Kind of its outcomes: which texts and images its items compare."""
        return KINDS[self.asks]

    @property
    def asks(self) -> Asks:
        """Kind of comparison: see `metrics.choice.Asks`."""
        several_texts = self.item_texts.shape[1] > 1
        if not len(self.images):
            return "alike"
        return ("both" if several_texts else "images") if self.item_images.shape[1] > 1 else "texts"

    @property
    def has_images(self) -> bool:
        """Whether items have images."""
        return self.asks != "alike"

    @property
    def asks_with_images(self) -> bool:
        """Whether the item's image is the query; if both sides choose, the texts are the queries."""
        return self.asks == "texts"

    @property
    def compares_texts(self) -> bool:
        """Whether an item has several correct texts for its one image, so texts are also compared without images."""
        return self.match.shape[1] == 1 and bool((self.match.sum(axis=2) > 1).any())

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of items, and of the similarities they need."""
        return len(self.ids), self.match.size * self.templates

    @property
    def resampled_by(self) -> Int[np.ndarray, " items"]:
        """Number of the items that are resampled together, for each item."""
        return self.group if self.units is None else self.units

    @property
    def pairs(self) -> AlteredPairs | None:
        """Return every correct text with every wrong one of its item, as pairs for grounding.

        None where items are not one image and texts, or there are more than `MOST_DIFFERENCES`.
        """
        if self.asks != "texts" or len(self.ids) * len(self.images) > MOST_DIFFERENCES:
            return None
        item, right, wrong = self.compared_items()
        own_images = self.item_images[item, 0]
        sides = Rows.of(TEXTS, right), Rows.of(TEXTS, wrong)
        if self.whole_images:
            every = np.arange(self.whole_images)
            return AlteredPairs(Rows.of(self.images.tables[0], every), every, *sides, self.image_names[own_images])
        return AlteredPairs(self.images, self.image_names, *sides, self.image_names[own_images], own_query=own_images)

    def compared_items(self) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
        """Return every correct text with every wrong one, for items of one image: items and both rows of texts."""
        columns, present = range(self.item_texts.shape[1]), self.item_texts >= 0
        right = self.match[:, 0] & present
        items_by_columns = [
            (np.flatnonzero(right[:, one] & ~self.match[:, 0, other] & present[:, other]), one, other)
            for one in columns
            for other in columns
        ]
        item = np.concatenate([items for items, _, _ in items_by_columns])
        order = np.argsort(item, kind="stable")
        sides = (
            np.concatenate([self.item_texts[each[0], each[side]] for each in items_by_columns])[order]
            for side in (1, 2)
        )
        return item[order], *sides

    def compared_texts(self) -> Compared | None:
        """Return correct and wrong texts and the image of each pair, for text-only baselines."""
        if self.asks != "texts":
            return None
        item, right, wrong = self.compared_items()
        return Rows.of(TEXTS, right), Rows.of(TEXTS, wrong), self.image_names[self.item_images[item, 0]]

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> ChoiceOutcome:
        """Compare cosines, summed in float64 in the order of the coordinates, and compute grounding statistics.

        Raises InputError: a vector is NaN or infinite.
        """
        embeddings = self._with_mean_vectors(embeddings)
        texts, (images, places) = embeddings.tables[TEXTS], (np.empty((0, 0)), np.empty(0, int))
        if len(self.images):
            images, places = embeddings.select(self.images)
        width = texts.shape[1] * sum(self.match.shape[1:])
        runs = _runs(len(self.ids), max(1, _NUMBERS_AT_ONCE // max(1, width)))
        alike, is_present = self.compares_texts, self.is_present

        def score_run(run: slice) -> tuple[np.ndarray, np.ndarray]:
            of_texts = [_vectors(texts, column) for column in self.item_texts[run].T]
            scores = np.full((len(of_texts[0]), *self.match.shape[1:]), np.nan)
            for image, column in enumerate(self.item_images[run].T if len(self.images) else ()):
                vectors = _vectors(images, np.where(column < 0, -1, places[column]))
                for text, of_text in enumerate(of_texts):
                    scores[:, image, text] = _products(vectors, of_text)
            present = is_present[run]
            if not np.isfinite(scores[present]).all():
                raise InputError(embeddings.source, "embeddings", "NaN or infinite values", "unit vectors")
            scores[~present] = np.nan
            of_pairs = _alike(of_texts, self.match[run, 0], self.item_texts[run] >= 0) if alike else np.empty((0, 2))
            return scores, of_pairs

        with ThreadPoolExecutor(min(4, usable_cores()), thread_name_prefix="choices") as pool:
            parts = list(pool.map(score_run, runs))
        scores = np.concatenate([scores for scores, _ in parts] or [np.empty(self.match.shape)])
        pairs = np.concatenate([pairs for _, pairs in parts] or [np.empty((0, 2))])
        differences = None if self.pairs is None else self.pairs.score(embeddings, mesh)
        scale = embeddings.logit_scale or DEFAULT_SCALE
        items = ItemScores(scores, self.match, pairs if alike else None, scale)
        return ChoiceOutcome(self, items, differences, None if self.pairs is not None else self._too_many)

    def _with_mean_vectors(self, embeddings: Embeddings) -> Embeddings:
        """Put the mean vector of each text's prompts at the row of its first prompt."""
        if self.templates == 1:
            return embeddings
        first = np.unique(self.item_texts[self.item_texts >= 0])
        texts = np.array(embeddings.tables[TEXTS])
        texts[first] = mean_vectors(embeddings, self._prompts_of(first))
        return dataclasses.replace(embeddings, tables={**embeddings.tables, TEXTS: texts})

    def _prompts_of(self, texts: Int[np.ndarray, " texts"]) -> Int[np.ndarray, "texts templates"]:
        """Return the rows of each text's prompts."""
        return texts[:, None] + np.arange(self.templates)

    @property
    def is_present(self) -> Bool[np.ndarray, "items images texts"]:
        """Return which images and texts each item has; all of them are compared."""
        return (self.item_images >= 0)[:, :, None] & (self.item_texts >= 0)[:, None, :]

    @property
    def _too_many(self) -> str | None:
        if self.asks != "texts":
            return None
        return f"{len(self.ids):,} items by {len(self.images):,} images are too many to compare"

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Return every image with every prompt of every text of its item."""
        if not self.has_images:
            raise InputError(self.name, "pair scores", "items without images", "a model with text embeddings")
        item, image, text = np.nonzero(self.is_present)
        images = numbers(self.images)[self.item_images[item, image]]
        return np.repeat(images, self.templates), self._prompts_of(self.item_texts[item, text]).ravel()

    def score_by_pairs(self, scores: PairScores) -> ChoiceOutcome:
        """Compare scores within each item, without text-only comparisons and without grounding.

        The score of a text of several prompts is the mean of theirs.
        """
        values, pair_scores = np.full(self.match.shape, np.nan), scores.of(*self.pairs_asked(scores.numbers))
        if not np.isfinite(pair_scores).all():
            raise InputError(scores.source, "scores", "NaN or infinite values", "numbers")
        values[self.is_present] = pair_scores.reshape(-1, self.templates).mean(axis=1)
        items = ItemScores(values, self.match, None, scores.scale, self.compares_texts)
        why_no_grounding = "the model is scored pair by pair, without embeddings" if self.asks == "texts" else None
        return ChoiceOutcome(self, items, None, why_no_grounding)

    def share(self, items: Int[np.ndarray, " some"]) -> "ChoiceTask":
        """Return the task with some of its items; the shapes of arrays per item stay the same."""
        sides = {side: getattr(self, side)[items] for side in ("item_images", "item_texts", "match", "group")}
        sides["units"] = None if self.units is None else self.units[items]
        ids = [self.ids[item] for item in items.tolist()]
        sides["bindings"] = None if self.bindings is None else self.bindings[items]
        sides["bundles"] = {how: each.share(items) for how, each in self.bundles.items()}
        return dataclasses.replace(self, ids=ids, **sides)

    def with_bindings(self, texts: Sequence[str], find_class: FindClass) -> "ChoiceTask":
        """Return the task with the class of each item, by its correct and wrong texts; unchanged on other images."""
        if self.asks not in ("texts", "alike") or self.corruption:
            return self
        sides = [
            tuple([texts[text] for text in of_item[(of_item >= 0) & side].tolist()] for side in (is_right, ~is_right))
            for of_item, is_right in zip(self.item_texts, self.match[:, 0], strict=True)
        ]
        return dataclasses.replace(self, bindings=np.array([find_class(*each) for each in sides], object))

    def drop_truncated_duplicates(self, reading: Int[np.ndarray, " texts"]) -> "tuple[ChoiceTask | None, int, int]":
        """Remove wrong texts with the tokens of a correct one, and items that cannot be decided without them."""
        present, columns = self.item_texts >= 0, np.arange(self.item_texts.shape[1])
        text = np.where(present, reading[self.item_texts], -1 - columns)
        differ = (self.match[:, :, :, None] != self.match[:, :, None, :]).any(axis=1)
        twins = (differ & (text[:, :, None] == text[:, None, :])).any(axis=2)
        wrong = ~self.match.any(axis=1) & present if self.match.shape[1] == 1 else present
        if not (count := int((twins & wrong).sum())):
            return self, 0, int(wrong.sum())
        left = wrong & ~twins
        is_kept = left.any(axis=1) if self.match.shape[1] == 1 else ~twins.any(axis=1)
        task = self.share(np.flatnonzero(is_kept))
        texts = np.where(twins & wrong, -1, self.item_texts)[is_kept]
        return dataclasses.replace(task, item_texts=texts) if len(texts) else None, count, int(wrong.sum())

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "ChoiceTask | None":
        """Return the part on other images, as `PART/IMAGES`; None for tasks without images and for crops of images.

        A mean over several image sets is one over this part alone, `PART/VARIANT`.
        """
        if self.images.tables != (ORIGINALS,):
            return None
        pools: tuple[Pool, ...] = ()
        if pool is not None:
            pools = (dataclasses.replace(pool, variant=dataclasses.replace(pool.variant, part=self.variant)),)
        return dataclasses.replace(
            self,
            corruption=images.corruption,
            severity=images.severity,
            images=self.images.with_table(ORIGINALS, images.name),
            baseline=f"{self.variant}/{baseline}",
            pools=pools,
        )


def _runs(items: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, items)) for start in range(0, items, size)]


def _vectors(table: Float[np.ndarray, "rows width"], rows: Int[np.ndarray, " items"]) -> np.ndarray:
    """Return the embeddings of rows in float64; those of absent rows (-1) are arbitrary."""
    return np.asarray(table[rows], np.float64)


def _products(one: np.ndarray, other: np.ndarray) -> Float[np.ndarray, " items"]:
    return np.einsum("ij,ij->i", one, other)


def _alike(
    vectors: Sequence[np.ndarray], right: Bool[np.ndarray, "items texts"], present: Bool[np.ndarray, "items texts"]
) -> Float[np.ndarray, "items 2"]:
    """Return the smallest similarity of two correct texts, and the largest of a correct and a wrong one, or NaN."""
    least, largest = np.full(len(right), np.inf), np.full(len(right), -np.inf)
    for one in range(len(vectors)):
        for other in range(one):
            products = _products(vectors[one], vectors[other])
            both = present[:, one] & present[:, other]
            is_same, differ = both & right[:, one] & right[:, other], both & (right[:, one] != right[:, other])
            least = np.where(is_same, np.minimum(least, products), least)
            largest = np.where(differ, np.maximum(largest, products), largest)
    none = np.isinf(least) | np.isinf(largest)
    return np.where(none[:, None], np.nan, np.stack([least, largest], axis=1))
