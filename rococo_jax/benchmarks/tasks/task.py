"""Interface of all kinds of tasks: a task scores itself, and its outcome has counts, rows and examples of errors."""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.errors import InputError
from rococo_jax.metrics.counts import Counts
from rococo_jax.metrics.grounding import pair_counts
from rococo_jax.metrics.ood import OodScores
from rococo_jax.metrics.rows import count_rows

# (name of an image set, row): the picture of an example.
Picture = tuple[str, int]
# Rows of the correct and of the wrong text of each pair, and the image of the pair.
Compared = tuple[Rows, Rows, Int[np.ndarray, " pairs"]]
# Numbers of images, and rows of texts.
PairsAsked = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]
# True and false texts of an item -> its class, or an empty text.
FindClass = Callable[[list[str], list[str]], str]


@dataclasses.dataclass(frozen=True)
class Side:
    """Part of an example: a text, an image, or an image with its text.

    Attributes:
        text: a caption; empty for an image without a text.
        image: the image's name; empty for a text without an image.
        jpeg: a small JPEG of the image as the model saw it; None for a text, or if it could not be made.
        note: one phrase about it, such as the original of an altered caption, or the image that was mixed in.
        picture: the image from which the JPEG will be made.
    """

    text: str = ""
    image: str = ""
    jpeg: bytes | None = None
    note: str = ""
    picture: Picture | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """Query or item that the model got wrong (`role="error"`), or a pair whose original won.

    The original won without the image (`"won_blind"`) or because of the image (`"won_looking"`).

    Attributes:
        task, variant, seed: where it occurs, as in `results.json`.
        role: `error`, `won_blind` or `won_looking`.
        order: rank for display; the first n are the n best to show.
        kind: kind of the item that ranked first: `own_altered`, `other_altered`, `wrong`, ...
        query, right, wrong: the query, the best correct answer, and the item that ranked first instead.
        right_score, wrong_score: their similarities; for a pair that was won, their difference and 0.
    """

    task: str
    variant: str
    seed: int | None
    role: str
    order: int
    kind: str
    query: Side
    right: Side
    wrong: Side
    right_score: float
    wrong_score: float


@runtime_checkable
class Tables(Protocol):
    """Names of the rows of a benchmark's tables, for result rows and examples."""

    images: tuple[str, ...]
    texts: tuple[str, ...]


class Outcome:
    """Result of a task for one model: base class of the outcome of every kind. It can be pickled.

    Attributes:
        of: the task; `task`, `variation`, `variant`, `seed`, `baseline`, `pools` and `bindings` are its attributes.
        kind: kind of the task: `rank`, `choice`, ...; the report selects its section by it.
        counts: counts of each query or item, by column, such as `r1`; with `unit` and `pair_counts` these are
            the columns of its row in `per_query.parquet` that numbers are computed from.
        unit: the image that each row belongs to; rows of one unit are resampled together.
        counted: the counts with the metrics that are functions of them; see `metrics.rows`.
        sizes: numbers of queries, gallery items, images, ...
        differences: grounding statistics of the task's `pairs` (`tasks.pairs.AlteredPairs`); None without pairs.
        left_out: why there is no grounding, for items that could have it.
        leads: metrics to list first.
        chance: exact expectations of metrics for a model that ranks at random.
        notes: notes for readers of the results, one sentence each.
        chance_reason: why the model cannot do better than chance; None if the input does not explain it.
    """

    of: Any
    kind: str
    counts: Mapping[str, np.ndarray]
    unit: Int[np.ndarray, " rows"]
    sizes: dict[str, int]
    differences: Any = None
    left_out: str | None = None
    leads: tuple[str, ...] = ()
    chance: Mapping[str, float] = types.MappingProxyType({})
    notes: tuple[str, ...] = ()
    chance_reason: str | None = None

    task = property(lambda self: self.of.name)
    variation = property(lambda self: self.of.variation)
    variant = property(lambda self: self.of.variation.name)
    seed = property(lambda self: self.of.seed)
    baseline = property(lambda self: self.of.baseline)
    pools = property(lambda self: self.of.pools)
    bindings = property(lambda self: self.of.bindings)

    def rows(self, tables: Tables) -> Any:
        """Return descriptive columns with a row for each query or item, as a `pyarrow.Table`, including `image`."""
        raise NotImplementedError

    def count(self, columns: Mapping[str, np.ndarray], unit: Int[np.ndarray, " rows"]) -> Counts | OodScores:
        """Return the counts of some of the rows."""
        return count_rows(self.kind, columns, unit, self.leads)

    @functools.cached_property
    def counted(self) -> Counts | OodScores:
        """The counts of all rows and their pairs."""
        return self.count({**self.counts, **self.pair_counts}, self.unit)

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """Return the `count` most confident errors without pictures, most confident first, each image at most once."""
        return []

    def change_counts(self, baseline: Any) -> dict[str, np.ndarray]:
        """Return columns of changes by corruption for each row; empty for an outcome without probabilities."""
        return {}

    def curves(self, columns: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """Return the data of charts of some of the rows; `columns` are as in `counts`."""
        return None

    @functools.cached_property
    def pair_counts(self) -> dict[str, np.ndarray]:
        """Return columns of pairs, summed for each row (see `metrics.grounding`); empty without pairs."""
        if self.differences is None:
            return {}
        return pair_counts(self.differences, self.rows_of_pairs(), len(self.unit))

    def rows_of_pairs(self) -> Int[np.ndarray, " entries"]:
        """Return the row of each entry of `differences`."""
        raise NotImplementedError

    def pair_rows(self, tables: Tables) -> dict[str, np.ndarray] | None:
        """Return the columns of `pairs.parquet`, with an entry for each pair and matching query; None without pairs."""
        if self.differences is None:
            return None
        return self.of.pairs.rows(self.differences, tables)

    def won(self, tables: Tables) -> list[Example]:
        """Return pairs whose original won, without or because of the image."""
        if self.differences is None:
            return []
        named = (self.task, self.variant, self.seed)
        return self.of.pairs.won(named, self.differences, tables)

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " rows"] | None:
        """Return which queries or items have one of these rows of the benchmark's `images`; None if that is unknown."""
        return None

    @property
    def image_rows(self) -> Int[np.ndarray, " rows"]:
        """Return the row of the benchmark's `images` behind the column `image` of each row."""
        return self.unit


def texts_by_row(texts: Sequence[str], rows: Int[np.ndarray, " rows"]) -> Any:
    """Return the text of each row as a dictionary-coded column (`pyarrow`), which holds each text once."""
    import pyarrow as pa

    occurs = np.zeros(len(texts), bool)
    occurs[rows] = True
    place = (np.cumsum(occurs, dtype=np.int32) - 1)[rows]
    distinct = pa.array([texts[row] for row in np.flatnonzero(occurs).tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(place, distinct)


def of_different_images(order: Int[np.ndarray, " some"], image: Int[np.ndarray, " rows"], count: int) -> list[int]:
    """Return the first `count` of the ordered rows that belong to different images."""
    _, first = np.unique(image[order], return_index=True)
    return order[np.sort(first)[:count]].tolist()


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Task of a benchmark: base class of every kind.

    Attributes:
        name: name of the benchmark, or of a part with separate results.
        variant: alteration, or part of the benchmark; empty if only the images are corrupted.
        seed: seed of the alteration, if there are several.
        corruption, severity: corruption of the images; see `benchmarks.variants`.
        baseline: variant against which drops are measured; empty for none.
        pools: variants that pool this one with others.
        bindings: class of each item (`benchmarks.bindings`), empty for none; None if it is not requested.
        kind: kind of its outcomes, if tasks of one name may have several; a pooled variant has one kind.
        is_ranking: whether it ranks a gallery.
        has_classes: whether it classifies images.
        has_images: whether it has images, and not only texts.
        asks_with_images: whether images are the queries; otherwise texts are.
    """

    name: str
    variant: str
    seed: int | None = dataclasses.field(default=None, kw_only=True)
    corruption: str = dataclasses.field(default="", kw_only=True)
    severity: int = dataclasses.field(default=0, kw_only=True)
    baseline: str = dataclasses.field(default="", kw_only=True)
    pools: tuple[Pool, ...] = dataclasses.field(default=(), kw_only=True)
    bindings: np.ndarray | None = dataclasses.field(default=None, kw_only=True)

    kind = ""
    is_ranking: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    has_images = True
    asks_with_images = True

    @property
    def variation(self) -> Variant:
        """The variant with its fields; `variant` is an alteration, or a part in tasks of benchmarks with parts."""
        return Variant(alteration=self.variant, corruption=self.corruption, severity=self.severity)

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """Number of queries or items, and of the similarities they need."""
        raise NotImplementedError

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> Outcome:
        """Return the outcome for one model."""
        raise NotImplementedError

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """Return the pairs that `score_by_pairs` needs: numbers of images, and rows of texts; a pair may occur twice.

        Raises InputError: the task cannot be decided by image-text pairs.
        """
        raise NotImplementedError

    def score_by_pairs(self, scores: PairScores) -> Outcome:
        """Return the outcome from pair scores, without metrics of embeddings. Raises InputError: a score is NaN."""
        raise NotImplementedError

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "Task | None":
        """Return the same task with corrupted images in place of the originals; None if that makes no sense.

        Args:
            images: the corruption, with the name of the image set.
            baseline: name of the variant against which drops are measured.
            pool: name of the mean over kinds of corruption.
        """
        return None

    def with_bindings(self, texts: Sequence[str], find_class: FindClass) -> "Task":
        """Return the task with the class of each item, given the benchmark's texts; unchanged without such items."""
        return self

    def drop_truncated_duplicates(self, reading: Int[np.ndarray, " texts"]) -> "tuple[Task | None, int, int]":
        """Return the task without altered texts whose tokens equal those of their originals, and two counts.

        The task is None if nothing is left. The counts are the removed altered texts and all altered texts. Rows of the
        benchmark's texts with the same tokens have equal numbers.
        """
        return self, 0, 0

    def read_as(self, reading: Int[np.ndarray, " texts"]) -> "Task":
        """Return the task with the model's token groups: texts with the same tokens have equal numbers."""
        return self

    def compared_texts(self) -> Compared | None:
        """Return correct and wrong texts and the image of each pair, for text-only baselines; None without pairs."""
        return None


def mean_vectors(
    embeddings: Embeddings, prompts: Int[np.ndarray, "names templates"]
) -> Float[np.ndarray, "names width"]:
    """Return the normalised mean of the embeddings of each name's prompts, in float64.

    Raises InputError: the prompts of a name cancel out.
    """
    texts = embeddings.tables[TEXTS]
    vectors = np.stack([np.asarray(texts[rows], np.float64).mean(axis=0) for rows in prompts])
    norms = np.linalg.norm(vectors, axis=1)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise InputError(embeddings.source, "class vectors", "NaN, infinite values or a length of 0", "unit vectors")
    return vectors / norms[:, None]


def pairs_with_prompts(images: Int[np.ndarray, " images"], prompts: Int[np.ndarray, "names templates"]) -> PairsAsked:
    """Return every image with every prompt of every name, image by image."""
    return np.repeat(images, prompts.size), np.tile(prompts.ravel(), len(images))


def mean_scores(
    scores: PairScores, images: Int[np.ndarray, " images"], prompts: Int[np.ndarray, "names templates"], run: slice
) -> Float[np.ndarray, "some names"]:
    """Return the scores of a block of images with every name, as the mean over its prompts."""
    of_prompts = scores.of(*pairs_with_prompts(images[run], prompts))
    return of_prompts.reshape(-1, *prompts.shape).mean(axis=2)
