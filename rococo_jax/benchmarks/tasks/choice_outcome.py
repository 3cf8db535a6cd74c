"""Outcome of a choice task for one model's similarities: counts, a row for each item, examples of errors."""

import dataclasses
import functools

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from rococo_jax.benchmarks.tasks.pairs import side_of
from rococo_jax.benchmarks.tasks.task import Example, Outcome, Side, Tables, Task, of_different_images, texts_by_row
from rococo_jax.metrics.change import change_counts, confidence_of
from rococo_jax.metrics.choice import ItemScores, count_choices, sides
from rococo_jax.similarity import DifferenceStatistics
from rococo_jax.similarity.statistics import Columns

# Kind of a task by its question; the report selects its section by it.
KINDS = {"texts": "choice", "images": "image_choice", "both": "group_choice", "alike": "text_choice"}
# Number of items that `ChoiceOutcome.closest` processes at once, with some tens of megabytes of temporary memory.
_ITEMS_AT_ONCE = 2**17


@dataclasses.dataclass(frozen=True, eq=False)
class Closest(Columns):
    """Comparison with the smallest margin of the correct answer in each item, as indices within the item; -1 for none.

    Attributes:
        image, text: the correct pair.
        wrong_image, wrong_text: the wrong pair, which has the same image or the same text.
        right_score, wrong_score: their similarities.
    """

    image: Int[np.ndarray, " items"]
    text: Int[np.ndarray, " items"]
    wrong_image: Int[np.ndarray, " items"]
    wrong_text: Int[np.ndarray, " items"]
    right_score: Float[np.ndarray, " items"]
    wrong_score: Float[np.ndarray, " items"]


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceOutcome(Outcome):
    """Outcome of a choice task (`tasks.choice.ChoiceTask`), with one model's similarities for each of its items."""

    of: Task
    scores: ItemScores
    differences: DifferenceStatistics | None = None
    left_out: str | None = None

    kind = property(lambda self: self.of.kind)

    @functools.cached_property
    def hits(self) -> dict[str, np.ndarray]:
        """Return whether each item counts, by column."""
        return count_choices(self.scores, self.of.asks)

    @functools.cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Correct choices and ties of each item, and the items that are counted together."""
        bundles = [groups.row_columns(how) for how, groups in self.of.bundles.items()]
        return {name: column for columns in (self.hits, *bundles) for name, column in columns.items()}

    @property
    def unit(self) -> Int[np.ndarray, " items"]:
        """Image of each item, or number of the items that are resampled together."""
        return self.of.resampled_by

    @property
    def image_rows(self) -> Int[np.ndarray, " items"]:
        """The image that each item belongs to."""
        return self.of.group

    @property
    def leads(self) -> tuple[str, ...]:
        """Metrics to list first."""
        return self.of.leads

    def rows_of_pairs(self) -> Int[np.ndarray, " entries"]:
        """Return the item of each pair and matching query."""
        return self.of.compared_items()[0][self.differences.pair]

    def change_counts(self, baseline: "ChoiceOutcome") -> dict[str, np.ndarray]:
        """Return changes of the same items by corruption, of choices among texts; see `metrics.change`.

        Empty for other choices, and where the baseline has other items.
        """
        if self.of.asks != "texts" or list(self.of.ids) != list(baseline.of.ids):
            return {}
        before, after = (
            confidence_of(each.scores[:, 0], each.match[:, 0], each.scale) for each in (baseline.scores, self.scores)
        )
        return change_counts(before, after)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of items and images."""
        return {"items": len(self.of.ids), "images": len(np.unique(self.of.group))}

    @property
    def chance(self) -> dict[str, float]:
        """Each metric in percent, in expectation, of scores that are random and independent of each other.

        Only of items of one image or one text, and of two images and two texts.
        """
        present = ~np.isnan(self.scores.scores)
        if self.of.asks == "both":
            is_two_by_two = self.of.match.shape[1:] == (2, 2) and (self.of.match == np.eye(2, dtype=bool)).all()
            return {"group_score": 100 / 6, "text_score": 25.0, "image_score": 25.0} if is_two_by_two else {}
        right, wrong = self.of.match.any(axis=1), ~self.of.match.any(axis=1)
        if self.of.asks == "alike":
            return {"tot": 100 / 3} if (right.sum(1) == 2).all() and (wrong.sum(1) == 1).all() else {}
        rights = (self.of.match & present).sum(axis=(1, 2))
        wrongs = (~self.of.match & present).sum(axis=(1, 2))
        all_right = 100.0 * float(np.mean(1.0 / scipy.special.comb(rights + wrongs, rights)))
        if self.of.asks == "images":
            return {"image_score": all_right}
        return {"ota": 100.0 * float(np.mean(1.0 / (1 + wrongs))), "ata": all_right, "itt": all_right}

    @functools.cached_property
    def closest(self) -> Closest:
        """Return the comparison that decides each item; for one image, its first correct and best wrong text."""
        runs = range(0, len(self.scores), _ITEMS_AT_ONCE) or [0]
        return Closest.concatenate([self._closest_of(slice(start, start + _ITEMS_AT_ONCE)) for start in runs])

    def _closest_of(self, run: slice) -> Closest:
        scores, match = self.scores.scores[run], self.of.match[run]
        every = np.arange(len(scores))
        leads, closest = [], []
        for side in ("texts", "images") if self.of.asks == "both" else (self.of.asks,):
            is_transposed = side == "images"
            values, right = (scores.swapaxes(1, 2), match.swapaxes(1, 2)) if is_transposed else (scores, match)
            valid, of_side = ~np.isnan(values), sides(values, right)
            first = self.of.asks == "texts"
            answer = (right & valid).argmax(2) if first else np.where(right & valid, values, np.inf).argmin(2)
            wrong = np.where(~right & valid, values, -np.inf).argmax(2)
            right_score = of_side.first if first else of_side.worst
            # Queries without a comparison are never the closest.
            lead = np.where(of_side.has_both, right_score - of_side.wrong, np.inf)
            query = lead.argmin(1)
            selected = [each[every, query] for each in (answer, wrong, right_score, of_side.wrong)]
            answer, wrong, right_score, wrong_score = selected
            places = (answer, query, wrong, query) if is_transposed else (query, answer, query, wrong)
            places = (each.astype(np.int16) for each in places)
            closest.append(Closest(*places, right_score, wrong_score))
            leads.append(lead[every, query])
        return Closest.select(closest, np.argmin(leads, axis=0))

    def touched(self, images: Bool[np.ndarray, " names"]) -> Bool[np.ndarray, " items"]:
        """Return the items with an image among these rows of the benchmark's `images`."""
        if not len(self.of.images):
            return images[self.of.group]
        among = np.append(images[self.of.image_names], False)  # the last for -1
        return among[self.of.item_images].any(axis=1)

    def rows(self, tables: Tables):
        """Return a row for each item, as a `pyarrow.Table`.

        `chosen` is `right`, `wrong` or `tie` for a choice of texts and null otherwise; `caption`, `wrong_caption`,
        `right_score` and `wrong_score` are those of the closest comparison.
        """
        import pyarrow as pa

        task, count = self.of, len(self.of.ids)
        columns = {"item": pa.array(task.ids, pa.string()), "image": texts_by_row(tables.images, task.group)}
        if task.asks == "alike":
            first, wrong = task.match[:, 0].argmax(1), (~task.match[:, 0] & (task.item_texts >= 0)).argmax(1)
            right_score, wrong_score, choice = *self.scores.alike.T, pa.nulls(count, pa.string())
        else:
            closest = self.closest
            first, wrong = closest.text, closest.wrong_text
            right_score, wrong_score = closest.right_score, closest.wrong_score
            code = np.where(right_score == wrong_score, 0, np.where(right_score > wrong_score, 1, 2)).astype(np.int8)
            choice = (
                texts_by_row(("tie", "right", "wrong"), code) if task.asks == "texts" else pa.nulls(count, pa.string())
            )
        every = np.arange(count)
        columns |= {
            "caption": texts_by_row(tables.texts, task.item_texts[every, first]),
            "wrong_caption": texts_by_row(tables.texts, task.item_texts[every, wrong]),
            "chosen": choice,
            "right_score": pa.array(right_score, pa.float64()),
            "wrong_score": pa.array(wrong_score, pa.float64()),
        }
        if task.asks in ("images", "both"):
            for name, place in (("right_image", closest.image), ("wrong_image", closest.wrong_image)):
                columns[name] = texts_by_row(tables.images, task.image_names[task.item_images[every, place]])
        return pa.table(columns)

    def errors(self, tables: Tables, count: int) -> list[Example]:
        """Return the items whose wrong answer scores at least as high, by margin; none for tasks without images."""
        if self.of.asks == "alike":
            return []
        closest = self.closest
        lead = closest.wrong_score - closest.right_score
        order = np.argsort(-lead, kind="stable")
        items = of_different_images(order[lead[order] >= 0], self.of.group, count)
        return [self._example(tables, item) for item in items]

    def _example(self, tables: Tables, item: int) -> Example:
        task, closest = self.of, self.closest

        def image(places: np.ndarray) -> Side:
            return side_of(tables, task.images, task.image_names, int(task.item_images[item, places[item]]))

        def text(places: np.ndarray) -> Side:
            return Side(text=tables.texts[int(task.item_texts[item, places[item]])])

        if closest.text[item] != closest.wrong_text[item]:
            query, right, wrong = image(closest.image), text(closest.text), text(closest.wrong_text)
        else:
            query, right, wrong = text(closest.text), image(closest.image), image(closest.wrong_image)
        named = (task.name, self.variant, task.seed, "error", 0, "wrong")
        return Example(*named, query, right, wrong, float(closest.right_score[item]), float(closest.wrong_score[item]))
