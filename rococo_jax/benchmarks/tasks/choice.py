"""Choose: which of two texts belongs to the image?"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float, Int

from rococo_jax.benchmarks.tables import ORIGINALS, Embeddings, Rows
from rococo_jax.benchmarks.tasks.task import Example, Side, Tables
from rococo_jax.errors import InputError
from rococo_jax.metrics import choice
from rococo_jax.metrics.intervals import Counted

# The variant that is the mean over all parts.
MEAN = "mean"
_ITEMS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceTask:
    """Items of one image, its right text and a wrong one; a right choice is strict, so a constant scorer has 0.

    Attributes:
        name: the benchmark's.
        variant: its part.
        ids: of the items, unique within the part.
        images, right, wrong: rows of the benchmark's tables, one an item.
        seed, baseline, pooled: see `Outcome`; all parts are pooled into their macro mean.
    """

    name: str
    variant: str
    ids: tuple[str, ...]
    images: Rows
    right: Rows
    wrong: Rows
    seed: int | None = None
    baseline: str = ""
    pooled: str | None = MEAN

    @property
    def queries_and_pairs(self) -> tuple[int, int]:
        """How many items there are, and how many similarities they need."""
        return len(self.images), 2 * len(self.images)

    def score(self, embeddings: Embeddings, mesh: jax.sharding.Mesh | None = None) -> "ChoiceOutcome":
        """Compares cosines, summed in float64 in the order of the vectors' coordinates.

        Raises:
            InputError: a vector is NaN or infinite.
        """
        del mesh  # two products an item
        sides = [embeddings.select(rows) for rows in (self.images, self.right, self.wrong)]
        parts = []
        for start in range(0, len(self.images), _ITEMS_AT_ONCE):
            run = slice(start, start + _ITEMS_AT_ONCE)
            image, right, wrong = (np.asarray(table[index[run]], np.float64) for table, index in sides)
            parts.append([np.einsum("ij,ij->i", image, text) for text in (right, wrong)])
        scores = np.concatenate(parts, axis=1) if parts else np.empty((2, 0))
        if not np.isfinite(scores).all():
            raise InputError(embeddings.source, "embeddings", "NaN or infinite values", "unit vectors")
        return ChoiceOutcome(self, *scores)

    def split(self, count: int) -> list["ChoiceTask"]:
        """The task with a share of the items each."""
        shares = np.array_split(np.arange(len(self.ids)), count)
        sides = ("images", "right", "wrong")
        return [
            dataclasses.replace(
                self, ids=tuple(self.ids[i] for i in share), **{side: getattr(self, side)[share] for side in sides}
            )
            for share in shares
        ]

    def joined(self, results: Sequence[tuple[np.ndarray, np.ndarray]]) -> "ChoiceOutcome":
        """The outcome of the whole task from the scores of its shares."""
        return ChoiceOutcome(self, *map(np.concatenate, zip(*results, strict=True)))

    def on_images(self, images: str, baseline: str, pooled: str | None) -> "ChoiceTask":
        """The part on other images, as `PART/IMAGES`."""
        del pooled  # kinds of corruption are pooled for tasks without parts
        changed = self.images.with_table(ORIGINALS, images)
        variant, baseline = f"{self.variant}/{images}", f"{self.variant}/{baseline}"
        return dataclasses.replace(self, variant=variant, images=changed, baseline=baseline, pooled=None)


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceOutcome:
    """A choice task and one model's similarities for each of its items."""

    of: ChoiceTask
    right_score: Float[np.ndarray, " items"]
    wrong_score: Float[np.ndarray, " items"]
    kind: Literal["choice"] = "choice"

    task = property(lambda self: self.of.name)
    variant = property(lambda self: self.of.variant)
    seed = property(lambda self: self.of.seed)
    baseline = property(lambda self: self.of.baseline)
    pooled = property(lambda self: self.of.pooled)
    result = property(lambda self: (self.right_score, self.wrong_score))

    @functools.cached_property
    def counted(self) -> Counted:
        """Right choices and ties, item by item."""
        counts = choice.count_choices(self.right_score, self.wrong_score)
        return Counted(counts, choice.COUNTED, self._group, choice.METRICS)

    @property
    def _group(self) -> Int[np.ndarray, " items"]:
        return self.of.images.index

    @property
    def sizes(self) -> dict[str, int]:
        """How many items and images there are."""
        return {"items": len(self.of.ids), "images": len(np.unique(self._group))}

    def rows(self, tables: Tables):
        """One row an item (`pyarrow.Table`): `chosen` is `right`, `wrong` or `tie`."""
        import pyarrow as pa

        images, texts, task = np.array(tables.images, object), np.array(tables.texts, object), self.of
        right, tie, count = self.right_score > self.wrong_score, self.right_score == self.wrong_score, len(task.ids)
        columns = {
            "task": [task.name] * count,
            "variant": [task.variant] * count,
            "item": list(task.ids),
            "image": images[task.images.index],
            "caption": texts[task.right.index],
            "wrong_caption": texts[task.wrong.index],
            "chosen": np.where(tie, "tie", np.where(right, "right", "wrong")).astype(object),
            "right_score": self.right_score,
            "wrong_score": self.wrong_score,
        }
        numbers = ("right_score", "wrong_score")
        return pa.table(
            columns, schema=pa.schema([(name, pa.float64() if name in numbers else pa.string()) for name in columns])
        )

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """The items whose wrong text scores at least as high, by its lead."""
        task, lead = self.of, self.wrong_score - self.right_score
        chosen, shown = [], set()
        for item in np.argsort(-lead, kind="stable").tolist():
            image = int(task.images.index[item])
            if lead[item] < 0 or len(chosen) == count:
                break
            if image in shown:
                continue
            shown.add(image)
            row = task.images[item : item + 1]
            query = Side(image=tables.images[image], picture=(row.tables[0], image))
            right, wrong = (Side(text=tables.texts[int(side.index[item])]) for side in (task.right, task.wrong))
            named = (task.name, task.variant, task.seed, "error", 0, "wrong")
            scores = float(self.right_score[item]), float(self.wrong_score[item])
            chosen.append(Example(*named, query, right, wrong, *scores))
        return chosen
