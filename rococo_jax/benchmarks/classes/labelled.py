"""The base of all benchmarks of classes: a reader lists labelled images; prompts, tasks and errors are here."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, register
from rococo_jax.benchmarks.classes.templates import prompt, templates_of, variant_of
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, Rows
from rococo_jax.benchmarks.tasks.classify import CLEAN, ClassifyTask
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionTask
from rococo_jax.data.images import FileImages
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@dataclasses.dataclass(frozen=True)
class Labelled:
    """An image with its class.

    Attributes:
        image: its name, a path inside the folder of images.
        label: the class.
        task: that it is of; the benchmark's name by default.
        texture: the class of its texture, where that may be another.
    """

    image: str
    label: str
    task: str = ""
    texture: str | None = None


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """What a reader finds.

    Attributes:
        images: all of them.
        classes: label -> what prompts call it.
        source: the file or folder that says so.
        notes: what a reader of any results must know.
    """

    images: tuple[Labelled, ...]
    classes: Mapping[str, str]
    source: Path
    notes: tuple[str, ...] = ()


Read = Callable[[Mapping[str, Path]], LabelledImages]


def class_benchmark(read: Read, **about: Any) -> BenchmarkInfo:
    """Registers a benchmark of classes; `about` as in `BenchmarkInfo`, with the benchmark's name as its one task."""
    about = {"tasks": (about["name"],), "files": (), **about}
    return register(BenchmarkInfo(**about, open=partial(_open, about["name"], read)))


def _open(name: str, read: Read, folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    found = read(folders)
    _check(found, name)
    originals, missing, data = open_images(folders["images"], [each.image for each in found.images], settings)
    row = {image: place for place, image in enumerate(originals.names)}
    there = [each for each in found.images if each.image in row]
    notes = list(found.notes)
    if missing:
        notes.append(f"only {len(originals)} of {len(originals) + len(missing)} images of {name} were present")
    texts: dict[str, int] = {}
    # Names decide the order, whatever the labels are.
    classes = sorted(found.classes, key=lambda label: (found.classes[label], label))
    prompts = {
        templates: np.array([
            [texts.setdefault(prompt(each, found.classes[label]), len(texts)) for each in templates_of(templates)]
            for label in classes
        ])
        for templates in dict.fromkeys(settings.templates)
    }  # fmt: skip
    place = {label: number for number, label in enumerate(classes)}
    tasks = []
    for task in dict.fromkeys(each.task or name for each in found.images):
        of_task = [each for each in there if (each.task or name) == task]
        if not of_task or not settings.wants(task):
            continue
        rows = np.array([row[each.image] for each in of_task])
        texture = np.array([place[each.texture or each.label] for each in of_task])
        for number, (templates, texts_of) in enumerate(prompts.items()):
            tasks.append(ClassifyTask(
                name=task,
                variant=CLEAN if number == 0 else variant_of(templates),
                classes=tuple(found.classes[label] for label in classes),
                prompts=texts_of,
                images=Rows.of(ORIGINALS, rows),
                image_names=rows,
                names=[each.image for each in of_task],
                label=np.array([place[each.label] for each in of_task]),
                texture=texture if any(each.texture for each in of_task) else None,
            ))  # fmt: skip
    labels = [[each.image, each.label, each.task, each.texture] for each in there]
    decides = {"labels": hash_json(labels), "classes": dict(found.classes), "templates": hash_json(list(texts))}
    decides["images"] = hash_json(dict(zip(originals.names, originals.hashes, strict=True)))
    data |= {"annotations": str(found.source.resolve()), "caption_count": len(texts)}
    sets = {ORIGINALS: originals}
    return Benchmark(name, originals.names, tuple(texts), sets, tuple(tasks), tuple(notes), data, decides)


def with_out_images(benchmark: Benchmark, out_images: Sequence[tuple[str, str]]) -> Benchmark:
    """The benchmark with every clean classify task also asked to tell its images from those of other folders.

    Raises:
        InputError: a folder is missing or has no image.
    """
    asked = [task for task in benchmark.tasks if isinstance(task, ClassifyTask) and task.variant == CLEAN]
    if not out_images or not asked:
        return benchmark
    sets, tasks, hashes = dict(benchmark.image_sets), list(benchmark.tasks), {}
    for name, folder in out_images:
        paths = image_files(Path(folder))
        if not paths:
            found = "no image" if Path(folder).is_dir() else "nothing there"
            raise InputError(folder, "out images", found, "a folder of images")
        names = tuple(f"{name}/{path.relative_to(folder).as_posix()}" for path in paths)
        sets[f"out_{name}"] = images = FileImages(names, tuple(paths), f"out_{name}")
        hashes[name] = hash_json(list(images.hashes))
        outside = Rows.of(images.name, np.arange(len(names)))
        tasks += [OutOfDistributionTask(f"{task.name}_ood", name, task, outside, names) for task in asked]
    decides = {**benchmark.decides, "out_images": hashes}
    return dataclasses.replace(benchmark, image_sets=sets, tasks=tuple(tasks), decides=decides)


def image_files(folder: Path) -> list[Path]:
    """All image files in and below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)


def _check(found: LabelledImages, name: str) -> None:
    if len(found.classes) < 2:
        raise InputError(found.source, "classes", len(found.classes), f"at least 2 for {name}")
    by_name: dict[str, str] = {}
    for label, called in found.classes.items():
        if not called.strip():
            raise InputError(found.source, f"class {label!r}", "an empty name", "a name for prompts")
        if by_name.setdefault(called, label) != label:
            raise InputError(found.source, f"class {label!r}", f"the name of {by_name[called]!r}", "another name")
    seen = set()
    for each in found.images:
        for label in (each.label, each.texture):
            if label is not None and label not in found.classes:
                raise InputError(found.source, f"label of {each.image}", label, f"one of {_few(found.classes)}")
        if (each.task, each.image) in seen:
            raise InputError(found.source, f"image {each.image}", "the same image twice", "one line an image")
        seen.add((each.task, each.image))
    if without := sorted(set(found.classes) - {each.label for each in found.images}):
        raise InputError(found.source, f"class {without[0]!r}", "no image", "at least one image of every class")


def _few(names: Mapping[str, str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f", ... ({len(listed)})" if len(listed) > 8 else "")


def class_folders(folder: Path) -> dict[str, list[str]]:
    """The images of each class in a folder of class folders, by the class folder's name, sorted.

    Raises:
        InputError: it is no folder, has no class folders, or one of them has no image.
    """
    if not folder.is_dir():
        raise InputError(folder, "image folder", "a file" if folder.exists() else "nothing there", "class folders")
    found = {}
    for below in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        images = image_files(below)
        if not images:
            raise InputError(below, "class folder", "no image", "at least one image of every class")
        found[below.name] = [path.relative_to(folder).as_posix() for path in images]
    if not found:
        raise InputError(folder, "class folders", "none", "a folder of images for each class")
    return found


def spoken(label: str) -> str:
    """What prompts call a folder.

    >>> spoken("great_white_shark")
    'great white shark'
    """
    return " ".join(label.replace("_", " ").split())


def read_class_folders(folders: Mapping[str, Path]) -> LabelledImages:
    """A folder of class folders, whose names are the classes'."""
    found = class_folders(folders["images"])
    images = tuple(Labelled(image, label) for label, names in found.items() for image in names)
    return LabelledImages(images, {label: spoken(label) for label in found}, folders["images"])
