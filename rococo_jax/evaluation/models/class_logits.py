"""Scores logits of any model against labels: all that classify tasks report, without an encoder.

Labels are a table (`image,label` in .csv, .tsv, .jsonl), one label a line in .txt, an array in .npy, or the folder of
evaluated results, whose images and labels are taken: then both stand in one table of a report. A label that is a whole
number, of .npy or .jsonl, is the place of its column, from 0; one that is a text is the name of a class.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.benchmarks.classes import distinct_names, read_classes
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, Rows
from rococo_jax.benchmarks.tasks import Outcome
from rococo_jax.benchmarks.tasks.classify import ClassifyTask, ClassOutcome
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionOutcome, OutOfDistributionTask
from rococo_jax.benchmarks.variants import CLEAN, UNCORRUPTED, Variant
from rococo_jax.data.caption_tables import USUAL
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.errors import InputError, is_whole
from rococo_jax.evaluation.models.logits_file import LogitsFile, open_logits, refuse_probabilities
from rococo_jax.evaluation.models.model import Model
from rococo_jax.evaluation.results import PER_QUERY, RESULTS, read_results
from rococo_jax.evaluation.runner import evaluate_model
from rococo_jax.evaluation.sections import Evaluated
from rococo_jax.evaluation.table_metadata import read_rows
from rococo_jax.metrics.class_statistics import ClassStatistics, class_statistics
from rococo_jax.perturb.images.corruptions import CORRUPTIONS, SEVERITIES
from rococo_jax.storage import hash_json, load_arrays, read_json
from rococo_jax.texts import JSON_LINES, TABLES, form_of, read_lines

# Corruptions by the names that variants of them have.
_CORRUPTED = {
    variant.name: variant
    for kind in CORRUPTIONS
    for variant in (Variant(corruption=kind, severity=severity) for severity in SEVERITIES)
}


@dataclasses.dataclass(frozen=True)
class Labels:
    """Right answers for the rows of the logits.

    Attributes:
        images: names.
        labels: by image: names of classes, or the places of their columns.
        textures: by image, where shape and texture are told apart.
        data: of the fingerprint, where evaluated results were given.
        versions: the same.
    """

    images: tuple[str, ...]
    labels: tuple[str | int, ...]
    textures: tuple[str, ...] | None = None
    data: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] | None = None


class ClassLogits(Model):
    """Logits of images in files, and those of the same images corrupted and of other images.

    Args:
        name: what tables call it.
        files: by variant, `clean` first.
        outside: by name, of images of none of the classes.
        gather: reads some rows of a file, a column a class.
        truth: the labels; their versions stand for those of the logits' makers.
        columns: names of the columns of the logits.
        groups: coarse classes, by the names of their columns; none where the columns are the classes.
    """

    def __init__(
        self,
        name: str,
        files: Mapping[str, LogitsFile],
        outside: Mapping[str, LogitsFile],
        gather: "Gather",
        truth: Labels,
        columns: Sequence[str],
        groups: Mapping[str, Sequence[str]],
    ):
        self.name, self.files, self.outside, self.gather = name, files, outside, gather
        self.columns, self.groups = columns, groups
        self.versions = truth.versions
        unnamed = bool(truth.images) and files[CLEAN].names is None
        by_place = ("rows of logits without names are taken to be in the order of the labels",) * unnamed
        self.notes = ("scored from logits", *by_place)

    def describe(self) -> dict[str, Any]:
        """Return the hash of each table of logits, and what its columns stand for."""
        return {
            **{variant: file.hash() for variant, file in self.files.items()},
            "outside": {name: file.hash() for name, file in self.outside.items()},
            "columns": {"names": list(self.columns), "groups": dict(self.groups)},
        }

    def outcomes(self, benchmark: Benchmark, settings: Settings, cache: EmbeddingCache) -> list[Outcome]:
        """The outcomes of each task: clean, then every corruption and every set of other images.

        Raises InputError: a logit is no number.
        """
        return [outcome for task in benchmark.tasks for outcome in self._outcomes_of(task)]

    def _outcomes_of(self, task: ClassifyTask) -> Iterator[Outcome]:
        def measured(file: LogitsFile, label: np.ndarray, half: np.ndarray, temperatures=None) -> ClassStatistics:
            block = functools.partial(self.gather, file)
            return class_statistics(block, label, half, len(task.classes), 1.0, temperatures)

        clean = measured(self.files[CLEAN], task.label, task.half)
        yield ClassOutcome(task, clean)
        if len(self.files) > 1:
            uncorrupted = Variant(corruption=UNCORRUPTED)
            yield ClassOutcome(_with_variant(task, uncorrupted), clean)
        for variant, file in list(self.files.items())[1:]:
            corrupted = _with_variant(task, _CORRUPTED.get(variant, Variant(alteration=variant)))
            yield ClassOutcome(corrupted, measured(file, task.label, task.half))
        for variant, file in self.outside.items():
            rows = np.arange(file.shape[0])
            statistics = measured(file, np.full(len(rows), -1), np.zeros(len(rows), np.int8), (1.0, 1.0))
            names = file.names or tuple(f"{variant}/{row}" for row in rows.tolist())
            others = Rows.of(f"out_{variant}", rows)
            separated = OutOfDistributionTask(f"{task.name}_ood", variant, task, others, names)
            yield OutOfDistributionOutcome(separated, clean, statistics)


def _with_variant(task: ClassifyTask, variant: Variant) -> ClassifyTask:
    """Return the task as another variant, whose drops are measured against uncorrupted images."""
    return dataclasses.replace(
        task,
        variant=variant.alteration,
        corruption=variant.corruption,
        severity=variant.severity,
        baseline=UNCORRUPTED,
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
        labels: see the module.
        task: what to call it; of evaluated results the task to take.
        name: of the model; the file's stem by default.
        classes: file of the names of the columns, as `classes.json`; those in the logits' file by default.
        groups: file of coarse classes, `{coarse: [class, ...]}`; labels are then coarse ones. A group's probability is
            the mean over its classes.
        corrupted: variant (`fog_3`) -> logits of the same images, corrupted.
        outside: name -> logits of images of none of the classes.

    Raises:
        InputError: a file cannot be used or has probabilities, counts disagree, a label is not known, or a class has no
            image.
    """
    with contextlib.ExitStack() as stack:
        clean = open_logits(logits, stack)
        truth = read_labels(Path(labels), task)
        columns, by_label = _columns(clean, classes)
        named = _named(truth, clean, columns, by_label, labels, groups is not None)
        files = {CLEAN: clean, **{each: open_logits(path, stack) for each, path in (corrupted or {}).items()}}
        others = {each: open_logits(path, stack) for each, path in (outside or {}).items()}
        for file in (*files.values(), *others.values()):
            if file.shape[1] != len(columns):
                raise InputError(file.source, "classes", f"{file.shape[1]} columns", f"{len(columns)}, as {logits} has")
            if None not in (file.classes, clean.classes) and [*map(str, file.classes)] != [*map(str, clean.classes)]:
                raise InputError(file.source, "classes", "others, or in another order", f"those of {logits}")
        for file in files.values():
            if file.shape[0] != len(truth.labels):
                raise InputError(file.source, "rows", file.shape[0], f"{len(truth.labels)}, as {labels} has labels")
            if truth.images and file.names not in (None, truth.images):
                raise InputError(file.source, "names", "other images, or in another order", f"those of {labels}")
        for file in (*files.values(), *others.values()):
            refuse_probabilities(file)
        coarse = {} if groups is None else _read_groups(groups)
        class_names, gather = _grouped(columns, coarse, groups)
        question = _task(task, class_names, named, labels)
        answers = {"images": list(truth.images), "labels": list(named.labels)}
        decides = truth.data or {"classes": {"labels": hash_json(answers), "groups": hash_json(coarse)}}
        # Evaluated results may be of several benchmarks, all of which stand in the fingerprint.
        tasks = {benchmark: (question,) if place == 0 else () for place, benchmark in enumerate(decides)}
        benchmarks = [Benchmark(each, question.names, (), {}, tasks[each], decides=decides[each]) for each in decides]
        model = ClassLogits(name or Path(logits).stem, files, others, gather, truth, columns, coarse)
        return evaluate_model(model, benchmarks, Settings(), EmbeddingCache(None))


def read_labels(path: Path, task: str) -> Labels:
    """The labels of a file, or those of evaluated results. Raises InputError: there are none."""
    if path.is_dir():
        return _evaluated(path, task)
    if form_of(path) in (*TABLES, *JSON_LINES):
        records = [*read_records(path)[1]]
        roles = {name.strip().lower(): name for name in records[0].value}
        label = roles.get("label", "label")
        image = next((roles[name] for name in USUAL["image"] if name in roles), None)
        images = () if image is None else tuple(record.text(image) for record in records)
        places = [is_whole(record.get(label, "a label")) for record in records]
        return Labels(images, tuple(record.value[label] if is_place else record.word(label)
                                    for record, is_place in zip(records, places, strict=True)))  # fmt: skip
    if not path.is_file():
        raise InputError(path, "labels", "nothing there", "a table, a text file, an .npy file, or evaluated results")
    if form_of(path) == ".npy":
        values = np.asarray(load_arrays(path, "whole numbers or names"))
        if values.ndim != 1 or values.dtype.kind not in "iuU":
            wanted = "places of columns (whole numbers), or names of classes (texts), in one row"
            raise InputError(path, "labels", f"{values.dtype} of shape {values.shape}", wanted)
        return Labels((), tuple(values.tolist()))
    lines = read_lines(path, "labels, one a line")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(path, f"line {number}", "nothing", "a label")
    return Labels((), tuple(line.strip() for line in lines))


def _evaluated(folder: Path, task: str) -> Labels:
    import pyarrow.compute

    results = read_results(folder / RESULTS)
    rows = read_rows(folder / PER_QUERY, "the rows that `rococo evaluate` writes")
    if task not in results["tasks"] or not {"label", "image"} <= set(rows.column_names):
        raise InputError(folder / RESULTS, "task", task, f"a task with classes, of {', '.join(results['tasks'])}")
    rows = rows.filter((pyarrow.compute.field("task") == task) & (pyarrow.compute.field("variant") == CLEAN))
    images, labels = (tuple(rows.column(name).to_pylist()) for name in ("image", "label"))
    texture = tuple(rows.column("texture").to_pylist()) if "texture" in rows.column_names else (None,)
    about = results["fingerprint"]
    return Labels(images, labels, None if None in texture else texture, about["data"], about["versions"])


def _columns(file: LogitsFile, classes: str | None) -> tuple[list[str], Mapping[str, str]]:
    """The names of the columns, and those of the labels of `classes`.

    Raises InputError: there are more or fewer, one comes twice, or some of the file's own are not among the labels.
    """
    by_label = {} if classes is None else distinct_names(read_classes(Path(classes)))
    own = list(map(str, range(file.shape[1]) if file.classes is None else file.classes))
    named = list(by_label.values()) or own
    if file.classes is not None and by_label.keys() & {*own}:
        if unknown := [label for label in own if label not in by_label]:
            raise InputError(classes, "classes", f"no {unknown[0]!r}, which {file.source} has", "all of its classes")
        named = [by_label[label] for label in own]
    if len(named) != file.shape[1] or len(set(named)) != len(named):
        raise InputError(
            classes or file.source, "classes", f"{len(set(named))} names", f"{file.shape[1]} different ones"
        )
    return named, by_label


def _named(
    truth: Labels, file: LogitsFile, columns: Sequence[str], by_label: Mapping[str, str], source: str, grouped: bool
) -> Labels:
    """The labels as names of classes; those that are places are named by their columns.

    Raises InputError: a place that no column has, or a label that could be taken for two classes, or for a group.
    """
    numbered = any(isinstance(name, int) for name in file.classes or ())
    if any(isinstance(label, int) for label in truth.labels) and (
        grouped or (numbered and file.classes != tuple(range(len(columns))))
    ):
        among = "coarse classes" if grouped else "classes that are whole numbers in another order"
        raise InputError(source, "labels", f"whole numbers, beside {among}", "names of classes, as texts")
    labels = []
    for row, label in enumerate(truth.labels):
        if isinstance(label, int) and not 0 <= label < len(columns):
            raise InputError(source, f"label of row {row}", label, f"the place of a column, 0 to {len(columns) - 1}")
        name = columns[label] if isinstance(label, int) else label if grouped else by_label.get(label, label)
        if label in columns and name != label:
            raise InputError(
                source, f"label of row {row}", f"{label!r}, a label and another class's name", "one of them"
            )
        labels.append(name)
    return dataclasses.replace(truth, labels=tuple(labels))


Gather = Callable[[LogitsFile, slice], np.ndarray]


def _read_groups(groups: str) -> dict[str, Any]:
    """Return the classes of each coarse class. Raises InputError: there are fewer than two coarse classes."""
    classes_by_group = read_json(Path(groups), "coarse classes: {coarse: [class, ...]}")
    if not isinstance(classes_by_group, dict) or len(classes_by_group) < 2:
        raise InputError(groups, "groups", str(classes_by_group)[:80], "an object with 2 coarse classes or more")
    return classes_by_group


def _grouped(
    columns: Sequence[str], classes_by_group: Mapping[str, Any], groups: str | None
) -> tuple[tuple[str, ...], Gather]:
    """Return the names of the classes, sorted, and a function that reads their logits.

    Raises InputError: the file `groups` names no class of the logits, or one twice.
    """
    order = np.array(sorted(range(len(columns)), key=lambda place: columns[place]))
    names = tuple(columns[place] for place in order)
    if groups is None:
        return names, lambda file, run: file.block(order, run)
    place = {name: number for number, name in enumerate(columns)}
    members = []
    for coarse in sorted(classes_by_group):
        if not isinstance(classes_by_group[coarse], list) or not classes_by_group[coarse]:
            raise InputError(groups, coarse, str(classes_by_group[coarse])[:80], "a list of classes, at least one")
        for one in classes_by_group[coarse]:
            if one not in place:
                raise InputError(groups, coarse, one, f"one of the {len(columns)} classes of the logits")
        members.append(np.array([place[one] for one in classes_by_group[coarse]]))
    twice = np.concatenate(members)
    if len(set(twice.tolist())) != len(twice):
        raise InputError(groups, "groups", "a class in two of them", "every class at most once")

    def gather(file: LogitsFile, run: slice) -> np.ndarray:
        # The logarithm of the mean of a group's exponentials.
        z = file.block(twice, run)
        ends = np.cumsum([len(each) for each in members])[:-1]
        parts = np.split(z, ends, axis=1)
        tops = [part.max(axis=1, keepdims=True) for part in parts]
        return np.concatenate([top + np.log(np.exp(part - top).mean(axis=1, keepdims=True))
                               for part, top in zip(parts, tops, strict=True)], axis=1)  # fmt: skip

    return tuple(sorted(classes_by_group)), gather


def _task(name: str, classes: tuple[str, ...], truth: Labels, source: str) -> ClassifyTask:
    place = {each: number for number, each in enumerate(classes)}
    for row, label in enumerate(truth.labels):
        if label not in place:
            few = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
            raise InputError(source, f"label of row {row}", label, f"one of the {len(classes)} classes: {few}")
    label = np.array([place[each] for each in truth.labels])
    without = np.flatnonzero(np.bincount(label, minlength=len(classes)) == 0)
    if len(without):
        raise InputError(source, f"class {classes[without[0]]!r}", "no image", "at least one image of every class")
    texture = None if truth.textures is None else np.array([place[each] for each in truth.textures])
    rows = np.arange(len(label))
    names = truth.images or tuple(map(str, range(len(label))))
    prompts = np.zeros((len(classes), 0), int)
    return ClassifyTask(name, CLEAN, classes, prompts, Rows.of(ORIGINALS, rows), rows, names, label, texture)
