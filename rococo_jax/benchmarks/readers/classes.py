"""Zero-shot classification on CIFAR-10, and on your own classes.

Your own classes (`classes`) are a folder of class folders, or a table of labels:

classes/images/CLASS/...                     the folders' names are the names of the classes
classes/labels.csv, .tsv (image,label)       or labels.jsonl {"image", "label"}
classes/classes.json                         optional: a list of labels, or {label: name}
"""

from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.choices.records import read_records
from rococo_jax.benchmarks.class_folders import class_folders, class_name_of
from rococo_jax.benchmarks.classes import Labelled, LabelledImages, class_benchmark, read_classes
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.data.image_files import left_out_notes
from rococo_jax.texts import find_file

FILES = ("labels.csv", "labels.tsv", "labels.jsonl")
CLASSES = "classes.json"


def read_class_folders(folders: Mapping[str, Path]) -> LabelledImages:
    """Read a folder of class folders, which have the names of the classes."""
    images_of = class_folders(folders["images"])
    images = tuple(Labelled(image, label) for label, names in images_of.items() for image in names)
    notes = left_out_notes(folders["images"])
    return LabelledImages(images, {label: class_name_of(label) for label in images_of}, folders["images"], notes)


def read_own(folders: Mapping[str, Path]) -> LabelledImages:
    """Read the table of labels if there is one, else the class folders."""
    annotations = folders["annotations"]
    table = find_file(annotations, FILES)
    if table is None:
        return read_class_folders(folders)
    _, records = read_records(table)
    images = tuple(Labelled(record.image("image").file, record.label("label")) for record in records)
    named = find_file(annotations, [CLASSES])
    labels = dict.fromkeys(sorted({each.label for each in images}))
    classes = read_classes(named) if named else {label: class_name_of(label) for label in labels}
    return LabelledImages(images, classes, table)


class_benchmark(
    read_own,
    Headline("top1", "items", "[ours]: classes of your own", CLEAN),
    name="classes",
    question="Which of your own classes does an image show, and how well calibrated is the model?",
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
    Headline("top1", "items", "[ours]: accuracy on all test images", CLEAN),
    name="cifar10",
    question="Which of ten classes does a photograph of 32 pixels show?",
    paper="Learning Multiple Layers of Features from Tiny Images, Krizhevsky 2009",
    licence="none given; for research",
    size="10,000 test images of 10 classes",
    folders={"images": "cifar10/images"},
    source="the data set's public page, unpacked into a folder for each class",
)
