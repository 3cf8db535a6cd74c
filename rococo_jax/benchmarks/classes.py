"""Zero-shot classification benchmarks: a reader lists labelled images; prompts, tasks and errors are built here.

Prompt templates are either the first n of this project's own list (the set of 5 contains the set of 1), or the lines of
a user's file; `{}` stands for the name of the class. In our own templates the article is adapted to the name. A user's
templates are filled in by `template.format(name)`, as in OpenAI's and open_clip's zero-shot code, so that published
templates give the published prompts ("a photo of a owl.").

A label identifies a class in tables of images and in folders; a name is its text in prompts. A label without a name is
used as name, with blanks instead of underscores. Names may repeat: OpenAI's names of ImageNet's classes have two
"missile".
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, downloads_of, open_images, register
from rococo_jax.benchmarks.class_folders import class_name_of, few
from rococo_jax.benchmarks.excluded_input import in_turns
from rococo_jax.benchmarks.image_sets import CroppedImages
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import Rows
from rococo_jax.benchmarks.tasks.classify import ClassifyTask
from rococo_jax.benchmarks.tasks.out_of_distribution import OutOfDistributionTask
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.data.image_files import image_names, left_out_notes
from rococo_jax.data.images import FileImages
from rococo_jax.data.pictures import image_size
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.words import article_of
from rococo_jax.storage import hash_json, read_json
from rococo_jax.texts import read_lines


@dataclasses.dataclass(frozen=True)
class Labelled:
    """An image with its class.

    Attributes:
        image: its name, a path inside the folder of images.
        label: the class.
        task: name of its task; the benchmark's name by default.
        texture: the class of its texture, in benchmarks where it can differ from the class of its shape.
    """

    image: str
    label: str
    task: str = ""
    texture: str | None = None


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """Labelled images, as a reader returns them.

    Attributes:
        images: all labelled images.
        classes: name of each class in prompts, by label.
        source: the file or folder of the labels.
        notes: sentences for readers of the results.
        border: number of pixels that are cut from each side of every image.
    """

    images: tuple[Labelled, ...]
    classes: Mapping[str, str]
    source: Path
    notes: tuple[str, ...] = ()
    border: int = 0


Read = Callable[[Mapping[str, Path]], LabelledImages]


def class_benchmark(read: Read, headline: Headline, **about: Any) -> BenchmarkInfo:
    """Register a classification benchmark; `about` as in `BenchmarkInfo`. By default its one task has its name."""
    about = {"tasks": (about["name"],), "files": (), "downloads": downloads_of(about["name"]), **about}
    opener = partial(_open, about["name"], read, headline)
    return register(BenchmarkInfo(**about, open=opener, headline=headline))


def _open(name: str, read: Read, headline: Headline, folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    labelled = read(folders)
    _check(labelled, name)
    names = [each.image for each in labelled.images]
    order = in_turns([(each.task, each.label, each.texture) for each in labelled.images])
    effect = "numbers are of these images only"
    names_in_turns = [names[place] for place in order]
    originals, excluded, data = open_images(folders["images"], names, settings, effect, names_in_turns)
    images = _without_border(originals, labelled.border) if labelled.border else originals
    row = {image: place for place, image in enumerate(originals.names)}
    opened = [each for each in labelled.images if each.image in row]
    texts: dict[str, int] = {}
    # Classes are ordered by name, not by label.
    classes = sorted(labelled.classes, key=lambda label: (labelled.classes[label], label))
    prompts = {}
    for templates in dict.fromkeys(settings.templates):
        of_classes = prompts_of(templates, [labelled.classes[label] for label in classes])
        prompts[templates] = np.array([[texts.setdefault(each, len(texts)) for each in row] for row in of_classes])
    printed_names = distinct_names(labelled.classes)
    class_index = {label: number for number, label in enumerate(classes)}
    tasks = []
    for task in dict.fromkeys(each.task or name for each in labelled.images):
        task_images = [each for each in opened if (each.task or name) == task]
        if not task_images or not settings.wants(task):
            continue
        rows = np.array([row[each.image] for each in task_images])
        texture = np.array([class_index[each.texture or each.label] for each in task_images])
        for number, (templates, texts_of) in enumerate(prompts.items()):
            tasks.append(ClassifyTask(
                name=task,
                variant=CLEAN if number == 0 else variant_of(templates),
                classes=tuple(printed_names[label] for label in classes),
                prompts=texts_of,
                images=Rows.of(images.name, rows),
                image_names=rows,
                names=[each.image for each in task_images],
                label=np.array([class_index[each.label] for each in task_images]),
                texture=texture if any(each.texture for each in task_images) else None,
            ))  # fmt: skip
    labels = [[each.image, each.label, each.task, each.texture] for each in opened]
    strings = np.array(list(texts), object)
    prompt_hashes = {templates: hash_json(strings[texts_of].tolist()) for templates, texts_of in prompts.items()}
    sources = {each: each if each.isdecimal() else str(Path(each).resolve()) for each in prompts}
    conditions = {"labels": hash_json(labels), "classes": dict(labelled.classes)}
    conditions["first_templates"] = prompt_hashes[settings.templates[0]]
    requested = {
        "templates": {
            Path(each).stem: {"from": sources[each], "sha256": sha256} for each, sha256 in prompt_hashes.items()
        }
    }
    conditions["images"] = hash_json(dict(zip(originals.names, originals.hashes, strict=True)))
    data |= {"annotations": str(labelled.source.resolve()), "caption_count": len(texts)}
    sets = {images.name: images}
    notes = tuple(labelled.notes)
    return Benchmark(
        name,
        originals.names,
        tuple(texts),
        sets,
        tuple(tasks),
        notes,
        data,
        conditions,
        excluded=excluded,
        requested=requested,
        headline=headline,
    )


def _without_border(originals: FileImages, border: int) -> CroppedImages:
    """Return the images without `border` pixels on each side. Raises InputError if a file is not an image."""
    sizes = map(image_size, originals.paths)
    boxes = [(border, border, width - border, height - border) for width, height in sizes]
    return CroppedImages(originals, tuple(range(len(boxes))), tuple(boxes), "without_border")


def with_out_images(benchmark: Benchmark, out_images: Sequence[tuple[str, str]]) -> Benchmark:
    """Return the benchmark with out-of-distribution tasks: each clean classify task against images of other folders.

    Raises InputError: a folder is missing or has no image.
    """
    clean_tasks = [task for task in benchmark.tasks if task.has_classes and task.variant == CLEAN]
    if not out_images or not clean_tasks:
        return benchmark
    sets, tasks, hashes, notes = dict(benchmark.image_sets), list(benchmark.tasks), {}, list(benchmark.notes)
    for name, folder in out_images:
        files = image_names(Path(folder))
        if not files:
            found = "no image" if Path(folder).is_dir() else "nothing there"
            raise InputError(folder, "out images", found, "a folder of images")
        notes += left_out_notes(Path(folder))
        names = tuple(f"{name}/{file}" for file in files)
        paths = tuple(Path(folder) / file for file in files)
        sets[f"out_{name}"] = images = FileImages(names, paths, f"out_{name}")
        source = str(Path(folder).resolve())
        hashes[name] = {"from": source, "sha256": hash_json(dict(zip(names, images.hashes, strict=True)))}
        outside = Rows.of(images.name, np.arange(len(names)))
        tasks += [OutOfDistributionTask(f"{task.name}_ood", name, task, outside, names) for task in clean_tasks]
    requested, notes = {**benchmark.requested, "out_images": hashes}, tuple(notes)
    return dataclasses.replace(benchmark, image_sets=sets, tasks=tuple(tasks), requested=requested, notes=notes)


def _check(labelled: LabelledImages, name: str) -> None:
    if len(labelled.classes) < 2:
        raise InputError(labelled.source, "classes", len(labelled.classes), f"at least 2 for {name}")
    for label, name_of_class in labelled.classes.items():
        if not name_of_class.strip():
            raise InputError(labelled.source, f"class {label!r}", "an empty name", "a name for prompts")
    checked = set()
    for each in labelled.images:
        for label in (each.label, each.texture):
            if label is not None and label not in labelled.classes:
                wanted = f"one of {few(list(labelled.classes), 8)}"
                raise InputError(labelled.source, f"label of {each.image}", label, wanted)
        if (each.task, each.image) in checked:
            raise InputError(labelled.source, f"image {each.image}", "the same image twice", "one line for each image")
        checked.add((each.task, each.image))
    if without := sorted(set(labelled.classes) - {each.label for each in labelled.images}):
        raise InputError(labelled.source, f"class {without[0]!r}", "no image", "at least one image of every class")


def distinct_names(classes: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each label in results: its name, followed by the label if several labels have that name."""
    counts = collections.Counter(classes.values())
    return {label: name if counts[name] == 1 else f"{name} ({label})" for label, name in classes.items()}


_WAYS = (
    *("a picture of a {}.", "a {}.", "a close view of a {}.", "a {} seen from far away.", "an image that shows a {}."),
    *("a {} in bright light.", "a {} in dim light.", "a blurred picture of a {}.", "a sharp picture of a {}."),
    *("a small {}.", "a big {}.", "a {} in the middle.", "a {} at the edge.", "part of a {}.", "a whole {}."),
    *("a drawing of a {}.", "a painting of a {}.", "a sketch of a {}.", "a model of a {}.", "a toy {}."),
    *("a {} outdoors.", "a {} indoors.", "one {}.", "several of them: {}.", "the {}.", "this is a {}."),
    *("here is a {}.", "a grainy picture of a {}.", "a picture in black and white of a {}.", "a clean {}."),
)
_MANNERS = ("colourful", "dark", "noisy", "pale", "cropped", "plain", "good", "bad", "old", "compressed")
_THINGS = ("picture of the {}.", "image of one {}.", "view of a {}.", "snapshot of a {}.", "rendering of a {}.")
TEMPLATES = (*_WAYS, *(f"a {manner} {thing}" for thing in _THINGS for manner in _MANNERS))
COUNTS = (1, 5, 30, 80)
_OURS = {str(count): TEMPLATES[:count] for count in COUNTS}


def templates_of(name: str) -> tuple[str, ...]:
    """Return the first templates of our list if `name` is their number, else the templates of the file `name`.

    Raises InputError: `name` is neither, or a template is empty or has no `{}` for the class.
    """
    if name in _OURS:
        return _OURS[name]
    path = Path(name)
    if not path.is_file():
        wanted = f"one of {', '.join(map(str, COUNTS))}, or a file with one template per line"
        raise InputError("templates", "name", name or "nothing", wanted)
    lines = read_lines(path, "templates, one per line")
    if not lines:
        raise InputError(path, "templates", "none", "at least one, on a line of its own")
    for number, line in enumerate(lines, 1):
        if _OF_PYTHON.fullmatch(line.strip()):
            raise InputError(
                path, f"line {number}", f"{line.strip()!r}, with marks of Python"[:80], "the template alone"
            )
        if not _is_template(line):
            raise InputError(path, f"line {number}", repr(line)[:80], "a template with {} once, for the class")
    return tuple(lines)


# A line of a list in Python or JSON.
_OF_PYTHON = re.compile(r"""\[?\s*(['"]).*\1\s*(?:,|,?\s*\])|\[\s*(['"]).*\2,?""")


def _is_template(line: str) -> bool:
    try:
        line.format("name")
    except (IndexError, KeyError, ValueError, AttributeError):
        return False
    return line.count("{}") == 1


def prompts_of(name: str, classes: Sequence[str]) -> list[list[str]]:
    """Return the prompts of each class. Our templates adapt the article; those of a file are used as they are.

    Raises InputError: as `templates_of`.
    """
    templates = templates_of(name)
    write = prompt if name in _OURS else str.format
    return [[write(template, each) for template in templates] for each in classes]


def prompt(template: str, name: str) -> str:
    """Return one of our templates with the name of a class and the article that goes with it.

    >>> prompt("a picture of a {}.", "oven"), prompt("a {}.", "European robin")
    ('a picture of an oven.', 'a European robin.')
    """
    before, _, after = template.partition("{}")
    if before == "a " or before.endswith(" a "):
        before = f"{before[:-2]}{article_of(name)} "
    return f"{before}{name}{after}"


def variant_of(name: str) -> str:
    """Return the variant of templates: `templates_5`, or `templates_FILE` without the file's ending."""
    return f"templates_{Path(name).stem}"


def read_classes(path: Path) -> dict[str, str]:
    """Return the name of each label.

    Raises InputError: it is neither a list of labels nor an object of names by label.
    """
    value = read_json(path, "a list of labels, or names by label")
    names = value
    if isinstance(value, list):
        names = {label: class_name_of(label) for label in value if isinstance(label, str)}
    if (
        not isinstance(names, dict)
        or len(names) != len(value)
        or not all(isinstance(each, str) for each in names.values())
    ):
        raise InputError(
            path, "classes", str(value)[:80], "a list of labels, each once, or an object of names by label"
        )
    return names
