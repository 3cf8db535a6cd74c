"""What a model answered to each query or item: the question, the correct answer, and whether the answer is correct.

The rows of `per_query.parquet` have other columns for each kind of task; an `Answer` has the same fields for all.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from rococo_jax.report.collection import Run


class Answer(NamedTuple):
    """Answer of a model to one query or item.

    Attributes:
        query, right, answer: texts, or names of images.
        margin: score of the correct answer minus that of the model's answer, or of the wrong one if there are two;
            for classes the confidence, negative if the class is wrong. None if it was not stored.
        metric: name of the first metric of the variant that counts single answers, whose column is `is_right`.
        ranks_images: whether `right` and `answer` are names of images, ranked for a text.
        columns: columns of the row that the other fields are from.
    """

    query: str
    right: str
    answer: str
    is_right: bool
    margin: float | None
    metric: str
    ranks_images: bool
    columns: tuple[str, ...]


def answered_rows(run: Run, table: Any) -> Iterator[tuple[dict[str, Any], Answer]]:
    """Yield the rows of a table of queries that have a metric of single answers, each without absent values.

    Args:
        table: `per_query.parquet`, or its rows of some tasks, with the names of tasks in the report.
    """
    images = frozenset(table["image"].to_pylist()) if "image" in table.column_names else frozenset()
    metrics: dict[tuple[str, str], list[str]] = {}
    for batch in table.to_batches(max_chunksize=2**14):
        for stored in batch.to_pylist():
            row = {name: value for name, value in stored.items() if value is not None}
            place = row["task"], row["variant"]
            if place not in metrics:
                measured = run.tasks.get(place[0], {}).get(place[1], {})
                # A choice among texts may lead with a metric of the texts alone, which is not about the answer.
                metrics[place] = sorted(measured, key=lambda name: name != "ota")
            metric = next((name for name in metrics[place] if isinstance(row.get(name), bool)), None)
            if metric is not None:
                yield row, _answer(row, metric, images)


def _answer(row: Mapping[str, Any], metric: str, images: Collection[str]) -> Answer:
    is_right = bool(row[metric])
    if "top1_text" in row:
        ranks_images = row["top1_text"] in images
        query, right = ("caption", "image") if ranks_images else ("image", "caption")
        margin = _difference(row.get("positive_score"), row.get("top1_score"))
        columns = ("image", "caption", "top1_text")
        return Answer(row[query], row[right], row["top1_text"], is_right, margin, metric, ranks_images, columns)
    if "predicted" in row:
        query = "question" if "question" in row else "image"
        margin = row.get("confidence")
        margin = margin if is_right or margin is None else -margin
        columns = (query, "label", "predicted")
        return Answer(row[query], row["label"], row["predicted"], is_right, margin, metric, False, columns)
    sides = [
        (row.get(f"{side}caption"), row.get(image)) for side, image in (("", "right_image"), ("wrong_", "wrong_image"))
    ]
    right, wrong = (", ".join(text for text in side if text) for side in sides)
    answer = right if row.get("right_score", 0) > row.get("wrong_score", 0) else wrong
    margin = _difference(row.get("right_score"), row.get("wrong_score"))
    columns = ("image", "caption", "wrong_caption", "right_image", "wrong_image")
    return Answer(row["image"], right, answer, is_right, margin, metric, False, columns)


def _difference(right: float | None, other: float | None) -> float | None:
    return None if right is None or other is None else right - other
