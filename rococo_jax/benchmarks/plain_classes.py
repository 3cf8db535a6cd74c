"""Anyone's own classes: a folder of class folders, or a table of labels.

classes/images/CLASS/...                     the folders' names are the classes'
classes/labels.csv, .tsv (image,label)       or labels.jsonl {"image", "label"}
classes/classes.json                         optional: a list of labels, or {label: what prompts call it}
"""

from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.benchmarks.classes.labelled import (
    Labelled,
    LabelledImages,
    class_benchmark,
    read_class_folders,
    spoken,
)
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json

FILES = ("labels.csv", "labels.tsv", "labels.jsonl")
CLASSES = "classes.json"


def read(folders: Mapping[str, Path]) -> LabelledImages:
    """The table of labels where there is one, else the class folders."""
    annotations = folders["annotations"]
    table = next((path for name in FILES if (path := annotations / name).is_file()), None)
    if table is None:
        return read_class_folders(folders)
    _, records = read_records(table)
    images = tuple(Labelled(record.image("image").file, record.word("label")) for record in records)
    named = annotations / CLASSES
    labels = dict.fromkeys(sorted({each.label for each in images}))
    classes = read_classes(named) if named.is_file() else {label: spoken(label) for label in labels}
    return LabelledImages(images, classes, table)


def read_classes(path: Path) -> dict[str, str]:
    """Labels, and what prompts call them.

    Raises:
        InputError: it is neither a list of labels nor an object of names by label.
    """
    value = read_json(path, "a list of labels, or names by label")
    names = {label: spoken(label) for label in value if isinstance(label, str)} if isinstance(value, list) else value
    if (
        not isinstance(names, dict)
        or len(names) != len(value)
        or not all(isinstance(each, str) for each in names.values())
    ):
        raise InputError(
            path, "classes", str(value)[:80], "a list of labels, each once, or an object of names by label"
        )
    return names


INFO = class_benchmark(
    read,
    name="classes",
    question="Which class does an image show, and how sure is the model, for classes of your own?",
    paper="none; the form is this project's",
    licence="yours",
    size="as many images and classes as you have",
    folders={"images": "classes/images", "annotations": "classes"},
    files=FILES,
    optional=("annotations",),
    source="your own images",
)

class_benchmark(
    read_class_folders,
    name="cifar10",
    question="Which of ten classes does a photograph of 32 pixels show?",
    paper="Learning Multiple Layers of Features from Tiny Images, Krizhevsky 2009",
    licence="none given; for research",
    size="10,000 test images of 10 classes",
    folders={"images": "cifar10/images"},
    source="the data set's public page, unpacked into a folder for each class",
)
