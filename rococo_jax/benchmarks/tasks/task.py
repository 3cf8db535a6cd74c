"""The contract of all kinds of tasks: a task scores itself; its outcome has counts, rows and examples of errors."""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import Embeddings, Rows
from rococo_jax.benchmarks.variants import Variant
from rococo_jax.metrics.grounding import count_pairs, pair_counts
from rococo_jax.metrics.intervals import Counted
from rococo_jax.metrics.rows import count_rows

# (name of an image set, row): what an example shows as a picture.
Picture = tuple[str, int]
# Rows of the right and of the wrong one of each pair, and the image that it is of.
Compared = tuple[Rows, Rows, Int[np.ndarray, " pairs"]]
# Numbers of images, and rows of texts.
PairsAsked = tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]


@dataclasses.dataclass(frozen=True)
class Side:
    """One of the things an example shows: a text, an image, or an image with the text that belongs to it.

    Attributes:
        text: a caption; empty for an image alone.
        image: the image's name; empty for a text alone.
        jpeg: a small JPEG of the image as the model saw it; None for a text, or where it could not be made.
        note: one phrase about it, such as the original of an altered caption, or the image that was mixed in.
        picture: the image to make the JPEG of, before there is one.
    """

    text: str = ""
    image: str = ""
    jpeg: bytes | None = None
    note: str = ""
    picture: Picture | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """One query or item that the model got wrong (`role="error"`), or a pair whose original won although nothing was
    looked at (`"won_blind"`), or because it was (`"won_looking"`).

    Attributes:
        task, variant, seed: where it occurs, as in `results.json`.
        role: `error`, `won_blind` or `won_looking`.
        order: place in the order of choice; the first n are the n best to show.
        kind: what was chosen: `own_altered`, `other_altered`, `wrong`, ...
        query, right, wrong: the query, the best right answer, and what was chosen instead.
        right_score, wrong_score: their similarities; of a pair that was won, their difference and 0.
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
    """Names behind the rows of a benchmark's tables, for rows and examples."""

    images: tuple[str, ...]
    texts: tuple[str, ...]


class Outcome:
    """A task and what one model's embeddings give for it: the base of every kind's outcome. It pickles.

    Attributes:
        of: the task; `task`, `variation`, `variant`, `seed`, `baseline` and `pools` are its.
        kind: of the task: `rank`, `choice`, ...; the report chooses its section by it.
        counts: what is counted of each query or item, by column, such as `r1`; with `unit` and `pair_counts` these are
            the columns of its row in `per_query.parquet` that numbers are computed from.
        unit: the image that each row belongs to; rows of one unit are resampled together.
        counted: the counts with the metrics that are made of them; see `metrics.rows`.
        sizes: how many queries, gallery items, images, ...
        differences: of the task's `pairs` (`tasks.pairs.AlteredPairs`); None without pairs.
        left_out: why there is no grounding where items could have it.
        leads: metrics to put first.
        chance: exact expectations of metrics for a model that ranks at random.
        notes: what a reader of the results must know, one sentence each.
        why_chance: why the model cannot do better than chance; None where the input does not explain it.
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
    why_chance: str | None = None

    task = property(lambda self: self.of.name)
    variation = property(lambda self: self.of.variation)
    variant = property(lambda self: self.of.variation.name)
    seed = property(lambda self: self.of.seed)
    baseline = property(lambda self: self.of.baseline)
    pools = property(lambda self: self.of.pools)

    def rows(self, tables: Tables) -> Any:
        """Descriptive columns of one row a query or item, as a `pyarrow.Table`; `image` is among them."""
        raise NotImplementedError

    def count(self, columns: Mapping[str, np.ndarray], unit: Int[np.ndarray, " rows"]) -> Any:
        """Return the counts of some of the rows, as `metrics.intervals` takes them."""
        return count_rows(self.kind, columns, unit, self.leads)

    @functools.cached_property
    def counted(self) -> Any:
        """The counts of all rows."""
        return self.count(self.counts, self.unit)

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The `count` most confident errors, without pictures, the most confident first, an image at most once."""
        return []

    def change_counts(self, baseline: Any) -> dict[str, np.ndarray]:
        """Columns of changes by corruption, a row each; empty for an outcome without probabilities."""
        return {}

    def curves(self, columns: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """Return the data of charts of some of the rows; `columns` are as in `counts`."""
        return None

    @functools.cached_property
    def pair_counts(self) -> dict[str, np.ndarray]:
        """Columns of pairs, summed for each row: see `metrics.grounding`; empty without pairs."""
        if self.differences is None:
            return {}
        return pair_counts(self.differences, self.rows_of_pairs(), len(self.unit))

    def rows_of_pairs(self) -> Int[np.ndarray, " entries"]:
        """The row that each entry of `differences` belongs to."""
        raise NotImplementedError

    @functools.cached_property
    def grounding(self) -> Counted | None:
        """Preference, blind and grounding, row by row; None without pairs or unrelated queries."""
        return count_pairs(self.pair_counts, self.unit)

    def pair_rows(self, tables: Tables) -> dict[str, np.ndarray] | None:
        """Columns of `pairs.parquet`, with an entry for each pair and own query; None without pairs."""
        if self.differences is None:
            return None
        return self.of.pairs.rows(self.differences, tables)

    def won(self, tables: Tables) -> list[Example]:
        """Pairs whose original won, blind or by looking."""
        if self.differences is None:
            return []
        named = (self.task, self.variant, self.seed)
        return self.of.pairs.won(named, self.differences, tables)

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " rows"] | None:
        """The queries or items that have one of these rows of the benchmark's `images`; None where none can be told."""
        return None

    @property
    def image_rows(self) -> Int[np.ndarray, " rows"]:
        """The row of the benchmark's `images` that stands in the column `image` of each row."""
        return self.unit


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A question to an embedding model: the base of every kind.

    Attributes:
        name: the benchmark's, or that of a part with results of its own.
        variant: what is altered, or the part of the benchmark; empty where only the images are corrupted.
        seed: of the alteration, where there are several.
        corruption, severity: of the images; see `benchmarks.variants`.
        baseline: the variant that drops are measured against; empty for none.
        pools: further variants that this one and others make together.
        is_ranking: whether it ranks a gallery.
        has_classes: whether it asks for the class of each image.
        has_images: whether it asks about images; else about texts alone.
        asks_with_images: whether images are the queries; else texts are.
    """

    name: str
    variant: str
    seed: int | None = dataclasses.field(default=None, kw_only=True)
    corruption: str = dataclasses.field(default="", kw_only=True)
    severity: int = dataclasses.field(default=0, kw_only=True)
    baseline: str = dataclasses.field(default="", kw_only=True)
    pools: tuple[Pool, ...] = dataclasses.field(default=(), kw_only=True)

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
        """How many queries or items there are, and how many similarities they need."""
        raise NotImplementedError

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> Outcome:
        """The outcome for one model."""
        raise NotImplementedError

    def pairs_asked(self, numbers: ImageNumbers) -> PairsAsked:
        """The pairs that `score_by_pairs` needs: numbers of images, and rows of texts; a pair may come twice.

        Raises InputError: no pair of an image and a text answers the question.
        """
        raise NotImplementedError

    def score_by_pairs(self, scores: PairScores) -> Outcome:
        """The outcome from scores of pairs alone, without what only vectors give. Raises InputError: one is NaN."""
        raise NotImplementedError

    def on_images(self, images: Variant, baseline: str, pool: Pool | None) -> "Task | None":
        """The same question with corrupted images in place of the originals; None where it makes no sense.

        Args:
            images: the corruption; its name is that of the image set.
            baseline: name of the variant that drops are measured against.
            pool: of the mean over kinds of corruption.
        """
        return None

    def without_twins(self, reading: Int[np.ndarray, " texts"]) -> "tuple[Task | None, int, int]":
        """The task without altered texts that a model reads as their originals (None where nothing is left), how many
        these are, and of how many. Rows of the benchmark's texts that the model reads as one have equal numbers.
        """
        return self, 0, 0

    def read_as(self, reading: Int[np.ndarray, " texts"]) -> "Task":
        """The task with what a model's tokenizer makes of it: texts that are the same tokens have equal numbers."""
        return self

    def compared_texts(self) -> Compared | None:
        """Right and wrong texts and the image of each pair, for baselines without images; None without any."""
        return None
