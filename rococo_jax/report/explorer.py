"""One static page with every item of every model, filtered in the browser, and small pictures in files beside it.

The page is opened from the file system, where browsers let a page read neither Parquet nor JSON beside it, so it
contains its data: columns as base64 of little-endian arrays, and each text once. Pictures are files, which the browser
reads when they are shown.

An item is a query of a task, variant and seed; all models' answers to it share one card of the page.
"""

import base64
import collections
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from rococo_jax.data.image_files import ImageFile, find_images
from rococo_jax.data.images import Task, run_tasks
from rococo_jax.data.pictures import open_image, thumbnail_jpeg
from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import PER_QUERY
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.progress import progress
from rococo_jax.report.answers import Answer, answered_rows
from rococo_jax.report.blocks import render_with_script
from rococo_jax.report.collection import Group, Run
from rococo_jax.report.concepts import words_of_pair, words_of_queries
from rococo_jax.report.vocabulary import order_variants, printable, task_label, variant_label
from rococo_jax.storage import atomic_write, write_text

# Kinds of a first result, by their number on the page; 0 stands for anything else.
_KINDS = ("", "own", "own_altered", "other_altered", "other")
_ABSENT = 2  # of `right`: 0 is wrong, 1 is right
_LONGEST_SIDE = 240  # px
_READ = frozenset(
    "task variant seed query item image caption question top1_kind top1_text top1_score positive_score wrong_caption "
    "right_image wrong_image right_score wrong_score label predicted confidence".split()
)


class _Numbers:
    """Numbers of texts, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def __call__(self, text: str | None) -> int:
        return -1 if text is None else self.texts.setdefault(text, len(self.texts))


class Items:
    """Items of all groups and models, as columns.

    Attributes:
        models: labels of the models.
        tasks: (section of the report, task) of each number in `columns["task"]`; variants likewise.
        columns: numbers of each item: task, variant, seed, and of texts: image (-1 without one) and query.
        words: texts of the replaced words of each item; concepts likewise.
        answers: number of a model and of an item -> whether it is right, and numbers of the answer, of the correct
            one, of the kind, and the margin.
        images: benchmark and text number of each image that is shown.
    """

    def __init__(self, groups: Sequence[Group], lexicon: Lexicon):
        """Read the tables of queries. Raises InputError: one is damaged, or belongs to other results."""
        self._lexicon, self._text, self._keys = lexicon, _Numbers(), {}
        self.models = list(dict.fromkeys(run.label for group in groups for run in group.runs))
        self.tasks: dict[tuple[int, str], int] = {}
        self.variants: dict[str, int] = {}
        self.columns: dict[str, list[int]] = {name: [] for name in ("task", "variant", "seed", "image", "query")}
        self.words: list[list[int]] = []
        self.concepts: list[list[int]] = []
        self.answers: dict[tuple[int, int], tuple[int, int, int, int, float]] = {}
        self.images: dict[tuple[str, int], None] = {}
        for section, group in enumerate(groups, 1):
            for run in group.runs:
                self._add_run(section, run)
        if not self.answers:
            found = "no table of queries with a metric of single answers"
            raise InputError(PER_QUERY, "rows", found, "results that `rococo evaluate` wrote with their tables")

    @property
    def texts(self) -> list[str]:
        """All texts and names of images, by number."""
        return list(self._text.texts)

    def _add_run(self, section: int, run: Run) -> None:
        import pyarrow as pa

        model = self.models.index(run.label)
        for file in run.files:
            if not file.table.is_file():
                continue
            table = file.rows()
            used = [field.name for field in table.schema if field.name in _READ or pa.types.is_boolean(field.type)]
            words: Mapping[tuple[str, str, str], list[tuple[str, str]]] | None = None
            for row, answer in answered_rows(run, table.select(used)):
                key = (section, *(row.get(name) for name in ("task", "variant", "seed")), *_identity(row))
                item = self._keys.get(key)
                if item is None:
                    if words is None:
                        words = words_of_queries(file, self._lexicon)
                    item = self._keys[key] = self._add_item(section, run, row, answer, words)
                kind = row.get("top1_kind", "")
                numbers = self._text(answer.answer), self._text(answer.right)
                margin = np.nan if answer.margin is None else answer.margin
                kind_number = _KINDS.index(kind) if kind in _KINDS else 0
                self.answers[model, item] = (int(answer.is_right), *numbers, kind_number, margin)
                if answer.ranks_images:
                    for number in numbers:
                        self.images.setdefault((run.benchmark_of(row["task"]), number))

    def _add_item(
        self,
        section: int,
        run: Run,
        row: Mapping[str, Any],
        answer: Answer,
        words: Mapping[tuple[str, str, str], list[tuple[str, str]]],
    ) -> int:
        task = section, row["task"]
        # The correct image of a text stands with the answers.
        image = self._text(None if answer.ranks_images else row.get("image"))
        query = self._text(None if answer.query == row.get("image") else answer.query)
        values = {
            "task": self.tasks.setdefault(task, len(self.tasks)),
            "variant": self.variants.setdefault(row["variant"], len(self.variants)),
            "seed": row.get("seed", -1),
            "image": image,
            "query": query,
        }
        for name, value in values.items():
            self.columns[name].append(value)
        if image >= 0:
            self.images.setdefault((run.benchmark_of(row["task"]), image))
        if "wrong_caption" in row and "caption" in row:
            pairs = [words_of_pair(self._lexicon, row["caption"], row["wrong_caption"])]
        else:
            pairs = words.get((row["task"], row["variant"], row.get("image", "")), [])
        self.words.append(sorted({self._text(word) for _, word in pairs if word}))
        self.concepts.append(sorted({self._text(concept) for concept, _ in pairs}))
        return len(self.words) - 1


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells the items of a variant apart; the best caption of an image depends on the model."""
    if "query" in row:
        return (row["query"],)
    return (row["item"],) if "item" in row else (row.get("image"), row.get("question"))


def picture_files(groups: Sequence[Group], items: Items, folders: Mapping[str, str]) -> dict[int, ImageFile]:
    """Return the image files of the items by their text numbers.

    Args:
        folders: folder of images by benchmark, where it is not the one that the results name.

    Raises InputError: a folder is of no benchmark of the results, or does not exist.
    """
    places = {name: about.get("images") for group in reversed(groups) for name, about in group.data.items()}
    for name in folders:
        if name not in places:
            raise InputError("`images`", "benchmark", repr(name), f"one of the results: {', '.join(places)}")
    numbers: dict[str, list[int]] = {}
    for benchmark, number in items.images:
        numbers.setdefault(benchmark, []).append(number)
    texts, files = items.texts, {}
    for benchmark, of_benchmark in numbers.items():
        folder = folders.get(benchmark) or places.get(benchmark)
        if benchmark in folders or (isinstance(folder, str) and Path(folder).is_dir()):
            present = find_images([texts[number] for number in of_benchmark], str(folder))[0]
            files |= {number: present[texts[number]] for number in of_benchmark if texts[number] in present}
    return files


def write_pictures(folder: Path, files: Mapping[int, ImageFile]) -> dict[int, str]:
    """Write small JPEGs, named by their contents, into a folder; return their names by the keys of the files.

    Pictures of an earlier page that nothing refers to are removed. Raises InputError: an image cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[int, str] = {}
    tasks = (Task(1, lambda file=file: [_jpeg(file)]) for file in files.values())
    with progress("drawing pictures", len(files), "pictures") as advance:
        for number, jpeg in zip(files, run_tasks(tasks), strict=True):
            names[number] = hashlib.sha256(jpeg).hexdigest()[:16] + ".jpg"
            if not (folder / names[number]).is_file():
                with atomic_write(folder / names[number]) as temporary:
                    temporary.write_bytes(jpeg)
            advance(1)
    shown = set(names.values())
    for path in folder.glob("[0-9a-f]" * 16 + ".jpg"):
        if path.name not in shown:
            path.unlink()
    return names


def _jpeg(file: ImageFile) -> bytes:
    return thumbnail_jpeg(open_image(file, (_LONGEST_SIDE, _LONGEST_SIDE)), _LONGEST_SIDE)


def explorer_data(items: Items, groups: Sequence[Group], pictures: Mapping[int, str]) -> dict[str, Any]:
    """Return the data of the page as JSON: see `assets/explorer.js`, which reads them."""
    described = {
        name: each
        for group in groups
        for run in group.runs
        for variants in run.described.values()
        for name, each in variants.items()
    }
    in_order = order_variants(items.variants, {name: described[name] for name in items.variants if name in described})
    count = len(items.words)
    shape = len(items.models), count
    right, kind = np.full(shape, _ABSENT, np.uint8), np.zeros(shape, np.uint8)
    answer, correct = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
    margin = np.full(shape, np.nan, np.float32)
    for place, numbers in items.answers.items():
        right[place], answer[place], correct[place], kind[place], margin[place] = numbers
    several = len(groups) > 1
    types = {"task": np.uint16, "variant": np.uint16}
    return {
        "models": items.models,
        "texts": list(map(printable, items.texts)),
        "tasks": [f"Section {s}: {task_label(task)}" if several else task_label(task) for s, task in items.tasks],
        "variants": list(map(variant_label, items.variants)),
        "variantOrder": [items.variants[name] for name in in_order],
        "items": {name: _encoded(numbers, types.get(name, np.int32)) for name, numbers in items.columns.items()},
        "words": _encoded_lists(items.words),
        "concepts": _encoded_lists(items.concepts),
        "answers": [
            {
                "right": _encoded(right[model], np.uint8),
                "kind": _encoded(kind[model], np.uint8),
                "answer": _encoded(answer[model], np.int32),
                "correct": _encoded(correct[model], np.int32),
                "margin": _encoded(margin[model], np.float32),
            }
            for model in range(len(items.models))
        ],
        "pictures": dict(zip(map(str, pictures), pictures.values(), strict=True)),
    }


def _encoded(numbers: Any, kind: Any) -> str:
    return base64.b64encode(np.asarray(numbers, np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def _encoded_lists(lists: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return lists of numbers as their concatenation and the end of each."""
    return {
        "ends": _encoded(np.cumsum([len(each) for each in lists]), np.int32),
        "values": _encoded([number for each in lists for number in each], np.int32),
    }


def write_explorer(
    groups: Sequence[Group], page: Path, lexicon: Lexicon, folders: Mapping[str, str]
) -> tuple[Items, collections.Counter[str]]:
    """Write the page, and its pictures into `NAME_pictures` beside it.

    Args:
        folders: as in `picture_files`.

    Returns:
        The items, and the number of images without a file by benchmark.

    Raises InputError: as `Items`, `picture_files` and `write_pictures`.
    """
    items = Items(groups, lexicon)
    files = picture_files(groups, items, folders)
    folder = page.with_name(f"{page.stem}_pictures")
    pictures = write_pictures(folder, files) if files else {}
    data = explorer_data(items, groups, pictures) | {"folder": folder.name}
    # A text may contain "</script>".
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    title = (
        f"Every answer of {items.models[0]}"
        if len(items.models) == 1
        else f"Every answer of {len(items.models)} models"
    )
    write_text(page, render_with_script("explorer", title=title, command="rococo explore", data=Markup(encoded)))
    return items, collections.Counter(name for name, number in items.images if number not in files)
