"""The contract of all kinds of tasks: a task scores itself; its outcome has counts, rows and examples of errors."""

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Int

from rococo_jax.benchmarks.pair_scores import ImageNumbers, PairScores
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.tables import Embeddings, Rows
from rococo_jax.metrics.intervals import Counted

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
        of: the task; `task`, `variant`, `seed`, `baseline` and `pools` are its.
        kind: of the task: `rank`, `choice`, ...; the report chooses its section by it.
        counted: counts for every query or item, with the metrics that are made of them; see `metrics.intervals`.
        sizes: how many queries, gallery items, images, ...
        differences: of the task's `pairs` (`tasks.pairs.AlteredPairs`); None without pairs.
        left_out: why there is no grounding where items could have it.
        chance: exact expectations of metrics for a model that ranks at random.
        notes: what a reader of the results must know, one sentence each.
        chance_reason: why the model cannot do better than chance; None where the input does not explain it.
    """

    of: Any
    kind: str
    counted: Any
    sizes: dict[str, int]
    differences: Any = None
    left_out: str | None = None
    chance: Mapping[str, float] = types.MappingProxyType({})
    notes: tuple[str, ...] = ()
    chance_reason: str | None = None

    task = property(lambda self: self.of.name)
    variant = property(lambda self: self.of.variant)
    seed = property(lambda self: self.of.seed)
    baseline = property(lambda self: self.of.baseline)
    pools = property(lambda self: self.of.pools)

    def rows(self, tables: Tables) -> Any:
        """One row a query or item, as a `pyarrow.Table`."""
        raise NotImplementedError

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The `count` most confident errors, without pictures, the most confident first, an image at most once."""
        return []

    def change_from(self, baseline: Any) -> Counted | None:
        """Changes by corruption; None for an outcome without probabilities."""
        return None

    def curves(self) -> dict[str, Any] | None:
        """Data of charts."""
        return None

    @functools.cached_property
    def grounding(self) -> Counted | None:
        """Preference, blind and grounding, pair by pair; None without pairs or wrong partners."""
        return None if self.differences is None else self.of.pairs.counted(self.differences)

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

    def sizes_over(self, parts: Sequence["Outcome"]) -> dict[str, int]:
        """The sizes of several parts together, of which this is the first; `images` once where parts share them."""
        return {name: sum(part.sizes.get(name, 0) for part in parts) for name in self.sizes}

    # Where `touched` is not None:

    def only(self, rows: Bool[np.ndarray, " rows"], suffix: str) -> "Outcome":
        """The outcome over some of the queries or items, as a variant with a suffix."""
        raise NotImplementedError


def row_head(outcome: Outcome, images: Sequence[str]) -> dict[str, Any]:
    """The first columns of `Outcome.rows`: task, variant, and the image of each row."""
    import pyarrow as pa

    head = {name: pa.array([getattr(outcome, name)] * len(images)) for name in ("task", "variant")}
    return head | {"image": pa.array(images, pa.string())}


def suffixed(task: "Task", suffix: str) -> dict[str, Any]:
    """The names of a variant over some of a task's rows: `swap_att/unseen`, pooled into `mean/unseen`."""
    return {
        "variant": f"{task.variant}/{suffix}",
        "pools": tuple(dataclasses.replace(pool, variant=f"{pool.variant}/{suffix}") for pool in task.pools),
        "baseline": f"{task.baseline}/{suffix}" if task.baseline else "",
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A question to an embedding model: the base of every kind.

    Attributes:
        name: the benchmark's, or that of a part with results of its own.
        variant: what is altered, or which part of the benchmark is asked.
        seed: of the alteration, where there are several.
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
    baseline: str = dataclasses.field(default="", kw_only=True)
    pools: tuple[Pool, ...] = dataclasses.field(default=(), kw_only=True)

    is_ranking: ClassVar[bool] = False
    has_classes: ClassVar[bool] = False
    has_images = True
    asks_with_images = True

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

    def on_images(self, images: str, baseline: str, pool: Pool | None) -> "Task | None":
        """The same question with another image set in place of the originals; None where it makes no sense."""
        return None

    def drop_truncated_duplicates(self, reading: Int[np.ndarray, " texts"]) -> "tuple[Task | None, int, int]":
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
