"""Compare the logits of any model with labels: all metrics of classify tasks, without an encoder.

Labels are a table of `image,label` (.csv, .tsv or .jsonl). A label is the name of a class; if the logits name their
images, labels are matched by image name, else both are taken to be in the same order.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.benchmarks.classes import distinct_names, read_classes
from rococo_jax.benchmarks.pooling import Pool
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, Rows
from rococo_jax.benchmarks.tasks import Outcome, Task
from rococo_jax.benchmarks.tasks.classify import ClassifyTask, ClassOutcome
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionOutcome, OutOfDistributionTask
from rococo_jax.benchmarks.variants import ALL_KINDS, CLEAN, UNCORRUPTED, Variant
from rococo_jax.data.caption_tables import USUAL
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models.arrays import NEVER, LogitsFile, open_logits
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.models.probabilities import check_logits
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.evaluation.sections import Evaluated
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics
from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES
from rococo_jax.storage import hash_json, read_json
from rococo_jax.texts import JSON_LINES, TABLES, file_suffix

_ROWS_AT_ONCE = 4096
AnyTask = TypeVar("AnyTask", bound=Task)
# Corruptions by the names that variants of them have.
_CORRUPTED = {
    variant.name: variant
    for kind in CORRUPTIONS
    for variant in (Variant(corruption=kind, severity=severity) for severity in SEVERITIES)
}


@dataclasses.dataclass(frozen=True)
class Labels:
    """Class of each row of the logits.

    Attributes:
        images: name of each image.
        labels: name of the class of each image.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...]


class Logits(Model):
    """Logits that another program computed: of classes for each image, or of each question's own options.

    Args:
        name: name in tables.
        described: hash of the logits of each variant, and what else decides the results.
        notes: further notes for readers of the results.
        outcomes_of: returns the outcomes of a task: clean, then every corruption and every set of other images.
    """

    def __init__(
        self,
        name: str,
        described: dict[str, Any],
        notes: Sequence[str],
        outcomes_of: Callable[[Any], Iterable[Outcome]],
    ):
        self.name, self.described, self.outcomes_of = name, described, outcomes_of
        self.notes = ["scored from logits", *notes]

    def describe(self) -> dict[str, Any]:
        """Return everything that decides the results."""
        return self.described

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """Return the outcomes of each task.

        Raises InputError: a logit is not a number, or -inf for the class of an image's label.
        """
        return [outcome for task in benchmark.tasks for outcome in self.outcomes_of(task)]


def outcomes_of_classes(
    task: ClassifyTask, files: Mapping[str, LogitsFile], outside: Mapping[str, LogitsFile], gather: "Gather"
) -> Iterator[Outcome]:
    """Yield the outcomes of a task of classes.

    Args:
        files: logits by variant, `clean` first.
        outside: logits of out-of-distribution images, by name.
        gather: reads rows of a file, one column per class.

    Raises InputError: a logit is not a number, or -inf for the class of an image's label.
    """

    def measured(file: LogitsFile, label: np.ndarray, half: np.ndarray, temperatures=None) -> ClassStatistics:
        block = functools.partial(gather, file)
        statistics = class_statistics(block, label, half, len(task.classes), 1.0, temperatures)
        if len(rows := np.flatnonzero(statistics.nll >= NEVER / 2)):
            problem = f"-inf for {task.classes[label[rows[0]]]!r}, the class of its label"
            raise InputError(file.source, f"logits of row {rows[0]}", problem, "a number for each class of a label")
        return statistics

    clean = measured(files[CLEAN], task.label, task.half)
    for name, variant in corrupted_tasks(task, [*files][1:]):
        is_clean = name == CLEAN
        yield ClassOutcome(variant, clean if is_clean else measured(files[name], task.label, task.half))
    for variant, file in outside.items():
        rows = np.arange(file.shape[0])
        statistics = measured(file, np.full(len(rows), -1), np.zeros(len(rows), np.int8), (1.0, 1.0))
        names = file.names or tuple(f"{variant}/{row}" for row in rows.tolist())
        other_images = Rows.of(f"out_{variant}", rows)
        detection = OutOfDistributionTask(f"{task.name}_ood", variant, task, other_images, names)
        yield OutOfDistributionOutcome(detection, clean, statistics)


def corrupted_tasks(task: AnyTask, names: Sequence[str]) -> Iterator[tuple[str, AnyTask]]:
    """Yield a task and its copies on uncorrupted and corrupted images, each with the name of its logits.

    Drops are measured against uncorrupted images. Several kinds of corruption have a mean for each severity.

    Args:
        names: variants with logits beside `clean`, such as `fog_3`; another name is that of an alteration.
    """
    yield CLEAN, task
    if not names:
        return
    variants = {name: _CORRUPTED.get(name, Variant(alteration=name)) for name in names}
    severities = [each.severity for each in variants.values()]
    for name, variant in ((CLEAN, Variant(corruption=UNCORRUPTED)), *variants.items()):
        severity = variant.severity
        is_pooled = severity and severities.count(severity) > 1
        pools = (Pool(Variant(corruption=ALL_KINDS, severity=severity), "kinds"),) if is_pooled else ()
        yield (
            name,
            dataclasses.replace(
                task,
                variant=variant.alteration,
                corruption=variant.corruption,
                severity=severity,
                baseline=UNCORRUPTED,
                pools=pools,
            ),
        )


def score_logits(
    logits: str,
    labels: str,
    *,
    task: str = "classes",
    name: str | None = None,
    classes: str | None = None,
    groups: str | None = None,
    corrupted: Mapping[str, str] | None = None,
    outside: Mapping[str, str] | None = None,
) -> Evaluated:
    """Evaluate the logits of a file against labels.

    Args:
        logits: the file of the images' logits; see `logits_file`.
        labels: the table of images and labels.
        task: name of the task in the results.
        name: name of the model; the file's stem by default.
        classes: file with the names of the columns, as `classes.json`; those in the logits' file by default.
        groups: file of coarse classes, `{coarse: [class, ...]}`; labels are then coarse ones. A group's probability is
            the mean over its classes.
        corrupted: variant (`fog_3`) -> logits of the same images, corrupted.
        outside: name -> logits of out-of-distribution images.

    Raises:
        InputError: a file cannot be used or has probabilities, counts disagree, a label is no class, or a class has no
            image.
    """
    with contextlib.ExitStack() as stack:
        clean = open_logits(logits, stack)
        columns, name_by_label = _columns(clean, classes)
        truth, notes = _in_order_of(read_labels(Path(labels)), clean, labels), []
        if groups is None:
            truth = _with_class_names(truth, columns, name_by_label, labels, notes)
        files = {CLEAN: clean, **{each: open_logits(path, stack) for each, path in (corrupted or {}).items()}}
        outside_files = {each: open_logits(path, stack) for each, path in (outside or {}).items()}
        for file in (*files.values(), *outside_files.values()):
            if file.shape[1] != len(columns):
                raise InputError(file.source, "classes", f"{file.shape[1]} columns", f"{len(columns)}, as {logits} has")
            if None not in (file.classes, clean.classes) and file.classes != clean.classes:
                raise InputError(file.source, "classes", "others, or in another order", f"those of {logits}")
        for file in files.values():
            if file.shape[0] != len(truth.labels):
                raise InputError(file.source, "rows", file.shape[0], f"{len(truth.labels)}, as {labels} has labels")
            if file.names not in (None, truth.images):
                raise InputError(file.source, "names", "other images, or in another order", f"those of {logits}")
        for file in (*files.values(), *outside_files.values()):
            notes += check_logits([file.table()], file.source)
        coarse = {} if groups is None else _read_groups(groups)
        predicted = _predicted_columns(clean, columns, notes)
        class_names, gather = _grouped(columns, coarse, groups) if coarse else _sorted_by_name(columns, predicted)
        classify = _task(task, class_names, truth, labels)
        answers = {"images": list(truth.images), "labels": list(truth.labels)}
        conditions = {"labels": hash_json(answers), "groups": hash_json(coarse)}
        benchmark = Benchmark("classes", classify.names, (), {}, (classify,), conditions=conditions)
        if clean.names is None:
            notes.append("the logits do not name their images: rows are taken to be in the order of the labels")
        described = {
            **{variant: file.hash() for variant, file in files.items()},
            "outside": {variant: file.hash() for variant, file in outside_files.items()},
            "columns": {"names": list(columns), "groups": dict(coarse)},
        }
        of_task = functools.partial(outcomes_of_classes, files=files, outside=outside_files, gather=gather)
        model = Logits(name or Path(logits).stem, described, notes, of_task)
        return evaluate_model(model, [benchmark], Settings(), EmbeddingCache(None))


def read_labels(path: Path) -> Labels:
    """Read a table of images and labels. Raises InputError: it cannot be read, or an image is listed twice."""
    if file_suffix(path) not in (*TABLES, *JSON_LINES):
        problem = "a folder" if path.is_dir() else f"a file {path.suffix or 'without a suffix'}"
        raise InputError(path, "labels", problem, "a table of image,label: .csv, .tsv or .jsonl")
    records = [*read_records(path)[1]]
    columns = {name.strip().lower(): name for name in records[0].value}
    image_column = next((columns[name] for name in USUAL["image"] if name in columns), "image")
    label_column = columns.get("label", "label")
    images = tuple(record.label(image_column) for record in records)
    labels = tuple(record.label(label_column) for record in records)
    repeated = [image for image, count in collections.Counter(images).items() if count > 1]
    if repeated:
        raise InputError(path, "image", f"{repeated[0]!r} more than once", "one row for each image")
    return Labels(images, labels)


def _in_order_of(labels: Labels, logits: LogitsFile, source: str) -> Labels:
    """Return the labels in the order of the logits, matched by image name; as they are if the logits have no names.

    Raises InputError: the logits have an image without a label, or there are more or fewer labels than logits.
    """
    if logits.names is not None:
        label_of = dict(zip(labels.images, labels.labels, strict=True))
        if unlabelled := [image for image in logits.names if image not in label_of]:
            raise InputError(source, "image", f"no {unlabelled[0]!r}", f"a label for each image of {logits.source}")
        labels = Labels(logits.names, tuple(label_of[image] for image in logits.names))
    if len(labels.images) != logits.shape[0]:
        raise InputError(
            logits.source, "rows", logits.shape[0], f"{len(labels.images)}, one for each label of {source}"
        )
    return labels


def _columns(file: LogitsFile, classes: str | None) -> tuple[list[str], Mapping[str, str]]:
    """Return the names of the columns, and the names by label that `classes` contains.

    Raises InputError: there are more or fewer names than columns, a name is repeated, or `classes` lacks a class of the
    file.
    """
    name_by_label = {} if classes is None else distinct_names(read_classes(Path(classes)))
    labels = file.classes or tuple(map(str, range(file.shape[1])))
    names = list(name_by_label.values()) or list(labels)
    if file.classes is not None and name_by_label.keys() & {*labels}:
        if missing := [label for label in labels if label not in name_by_label]:
            raise InputError(classes, "classes", f"no {missing[0]!r}, which {file.source} has", "all of its classes")
        names = [name_by_label[label] for label in labels]
    if len(names) != file.shape[1] or len(set(names)) != len(names):
        raise InputError(
            classes or file.source, "classes", f"{len(set(names))} names", f"{file.shape[1]} different ones"
        )
    return names, name_by_label


def _with_class_names(
    labels: Labels, columns: Sequence[str], name_by_label: Mapping[str, str], source: str, notes: list[str]
) -> Labels:
    """Replace labels of the file of classes, or positions of the columns from 0, by the names of their classes.

    Labels are positions if all are whole numbers, and no class has a number as its name or label; a note says so.

    Raises InputError: a label is also the name of another class.
    """
    has_numbers = any(map(str.isdecimal, (*columns, *name_by_label)))
    if not has_numbers and all(each.isdecimal() and int(each) < len(columns) for each in labels.labels):
        notes.append("the labels are positions of the columns of the logits, from 0")
        return Labels(labels.images, tuple(columns[int(each)] for each in labels.labels))
    names = []
    for image, label in zip(labels.images, labels.labels, strict=True):
        name = name_by_label.get(label, label)
        if label in columns and name != label:
            problem = f"{label!r}, a label and the name of another class"
            raise InputError(source, f"label of {image!r}", problem, "one of them")
        names.append(name)
    return Labels(labels.images, tuple(names))


Gather = Callable[[LogitsFile, slice], np.ndarray]


def _predicted_columns(file: LogitsFile, columns: Sequence[str], notes: list[str]) -> list[int]:
    """Return the places of all columns but those that are -inf in every row; a note says how many these are."""
    table = file.table()
    masked = np.flatnonzero(np.isneginf(table[0]))
    for start in range(0, len(table) if len(masked) else 0, _ROWS_AT_ONCE):
        masked = masked[np.isneginf(table[start : start + _ROWS_AT_ONCE, masked]).all(axis=0)]
    if len(masked):
        notes.append(f"{len(masked):,} of {len(columns):,} classes left out: their logits are -inf for every image")
    return [place for place in range(len(columns)) if place not in {*masked.tolist()}]


def _read_groups(groups: str) -> dict[str, Any]:
    """Return the classes of each coarse class. Raises InputError: there are fewer than two coarse classes."""
    classes_by_group = read_json(Path(groups), "coarse classes: {coarse: [class, ...]}")
    if not isinstance(classes_by_group, dict) or len(classes_by_group) < 2:
        raise InputError(groups, "groups", str(classes_by_group)[:80], "an object with 2 coarse classes or more")
    return classes_by_group


def _sorted_by_name(columns: Sequence[str], predicted: Sequence[int]) -> tuple[tuple[str, ...], Gather]:
    """Return the names of the classes that are predicted, sorted, and a function that reads their logits."""
    order = np.array(sorted(predicted, key=lambda place: columns[place]), int)
    return tuple(columns[place] for place in order), lambda file, run: file.block(order, run)


def _grouped(
    columns: Sequence[str], classes_by_group: Mapping[str, Any], groups: str | None
) -> tuple[tuple[str, ...], Gather]:
    """Return the names of the coarse classes, sorted, and a function that reads their logits.

    Raises InputError: the file `groups` names no class of the logits, or one twice.
    """
    place = {name: number for number, name in enumerate(columns)}
    members = []
    for coarse in sorted(classes_by_group):
        if not isinstance(classes_by_group[coarse], list) or not classes_by_group[coarse]:
            raise InputError(groups, coarse, str(classes_by_group[coarse])[:80], "a list of classes, at least one")
        for one in classes_by_group[coarse]:
            if one not in place:
                raise InputError(groups, coarse, one, f"one of the {len(columns)} classes of the logits")
        members.append(np.array([place[one] for one in classes_by_group[coarse]]))
    grouped_columns = np.concatenate(members)
    if len(set(grouped_columns.tolist())) != len(grouped_columns):
        raise InputError(groups, "groups", "a class in two of them", "every class at most once")

    def gather(file: LogitsFile, run: slice) -> np.ndarray:
        ends = np.cumsum([len(each) for each in members])[:-1]
        parts = np.split(file.block(grouped_columns, run), ends, axis=1)
        return np.concatenate([_log_mean_exp(part) for part in parts], axis=1)

    return tuple(sorted(classes_by_group)), gather


def _log_mean_exp(logits: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean of the exponentials of each row, as a column."""
    top = logits.max(axis=1, keepdims=True)
    return top + np.log(np.exp(logits - top).mean(axis=1, keepdims=True))


def _task(name: str, classes: tuple[str, ...], truth: Labels, source: str) -> ClassifyTask:
    place = {each: number for number, each in enumerate(classes)}
    for row, label in enumerate(truth.labels):
        if label not in place:
            few = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
            raise InputError(source, f"label of row {row}", label, f"one of the {len(classes)} classes: {few}")
    label = np.array([place[each] for each in truth.labels])
    absent = np.flatnonzero(np.bincount(label, minlength=len(classes)) == 0)
    if len(absent):
        problem = f"no image, as for {len(absent):,} of {len(classes):,} classes"
        expected = "at least one image of every class; logits of a class that is not predicted are -inf in every row"
        raise InputError(source, f"class {classes[absent[0]]!r}", problem, expected)
    rows = np.arange(len(label))
    prompts = np.zeros((len(classes), 0), int)
    return ClassifyTask(name, CLEAN, classes, prompts, Rows.of(ORIGINALS, rows), rows, truth.images, label)
