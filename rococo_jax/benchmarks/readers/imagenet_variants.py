"""Test sets with classes of ImageNet: ImageNet-V2, -R, -A, -Sketch and ObjectNet, in the layouts of their archives.

imagenetv2-matched-frequency-format-val/INDEX/...    ImageNet-V2: folders 0 to 999, the rank of the class's WordNet id
imagenet-r/WNID/...                                  ImageNet-R: 200 classes
imagenet-a/WNID/...                                  ImageNet-A: 200 other classes
sketch/WNID/...                                      ImageNet-Sketch: all 1,000
objectnet-1.0/images/FOLDER/...                      ObjectNet; its folder `mappings` names the 113 classes of ImageNet
imagenet/classes.json                                optional: names for prompts, {WNID: name} or a list of 1,000 names

The classes of a benchmark are those of its images: a model chooses among 200 of ImageNet-R, as in the authors' code
(logits of other classes are left out). `assets/imagenet_classes.csv` has the 1,000 WordNet ids in the order of ImageNet
2012, and which of them are in ImageNet-R (github.com/hendrycks/imagenet-r, eval.py) and ImageNet-A
(github.com/hendrycks/natural-adv-examples, eval.py).

Its names are the first word of each synset in WordNet 3.0; "crane" and "maillot", which occur twice, are told apart.
Published zero-shot results use other names, those of OpenAI's CLIP, which `imagenet/classes.json` may contain.
"""

import csv
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.class_folders import class_folders
from rococo_jax.benchmarks.classes import Labelled, LabelledImages, class_benchmark
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.data.image_files import left_out_notes
from rococo_jax.errors import InputError
from rococo_jax.storage import read_json
from rococo_jax.texts import find_file

_TABLE = Path(__file__).parents[1] / "assets" / "imagenet_classes.csv"
_NAMES = "classes.json"
# ObjectNet's images have a red border; the published zero-shot code (github.com/mlfoundations/wise-ft) cuts two pixels.
_OBJECTNET_BORDER = 2
_OBJECTNET_COUNT = 113
_OBJECTNET_NAMES, _OBJECTNET_CLASSES = "folder_to_objectnet_label.json", "objectnet_to_imagenet_1k.json"


@functools.cache
def imagenet_classes() -> tuple[dict[str, str], ...]:
    """Return the 1,000 classes in order, each with `class` (its WordNet id), `name`, `imagenet_r` and `imagenet_a`."""
    with _TABLE.open(newline="") as file:
        return tuple(csv.DictReader(file))


def _names_of(annotations: Path | None) -> dict[str, str]:
    """Return the name of every class by WordNet id: those of `classes.json`, or of WordNet.

    Raises InputError: the file has neither 1,000 names nor a name for each id.
    """
    names = {each["class"]: each["name"] for each in imagenet_classes()}
    path = None if annotations is None else find_file(annotations, [_NAMES])
    if path is None:
        return names
    user_names = read_json(path, "names of ImageNet's classes")
    if isinstance(user_names, list) and len(user_names) == len(names):
        user_names = dict(zip(names, user_names, strict=True))
    if not isinstance(user_names, dict) or not all(isinstance(user_names.get(label), str) for label in names):
        expected = "1,000 names in the order of ImageNet's classes, or a name for each of the 1,000 WordNet ids"
        raise InputError(path, "names", str(user_names)[:80], expected)
    return {label: user_names[label] for label in names}


def _reader(
    label_of_folder: Mapping[str, str],
) -> Callable[[Mapping[str, Path]], LabelledImages]:
    """Return a reader of class folders with exactly the names of `label_of_folder`, whose values are WordNet ids."""

    def read(folders: Mapping[str, Path]) -> LabelledImages:
        images_of = class_folders(folders["images"])
        unknown = sorted(set(images_of) - set(label_of_folder))
        absent = sorted(set(label_of_folder) - set(images_of))
        if unknown or absent:
            example = f"without {absent[0]!r}" if absent else f"also {unknown[0]!r}"
            expected = f"the {len(label_of_folder):,} folders of the published archive"
            raise InputError(folders["images"], "class folders", f"{len(images_of):,}, {example}", expected)
        names = _names_of(folders.get("annotations"))
        images = [Labelled(image, label_of_folder[folder]) for folder, images in images_of.items() for image in images]
        classes = {label: names[label] for label in label_of_folder.values()}
        return LabelledImages(tuple(images), classes, folders["images"], left_out_notes(folders["images"]))

    return read


def read_objectnet(folders: Mapping[str, Path]) -> LabelledImages:
    """Read the images of ObjectNet's 113 classes that ImageNet also has; the names are ObjectNet's, in lower case."""
    mappings = folders["annotations"]
    name_of_folder = read_json(mappings / _OBJECTNET_NAMES, "ObjectNet's names by folder")
    in_imagenet = read_json(mappings / _OBJECTNET_CLASSES, "ObjectNet's names with those of ImageNet")
    images_of = class_folders(folders["images"])
    used = {folder: name for folder, name in name_of_folder.items() if name in in_imagenet}
    if len(used) != _OBJECTNET_COUNT:
        expected = f"the {_OBJECTNET_COUNT} that ObjectNet shares with ImageNet"
        raise InputError(mappings, "classes", f"{len(used)} named by both files", expected)
    if absent := sorted(set(used) - set(images_of)):
        raise InputError(folders["images"], "class folders", f"no {absent[0]!r}", f"all that {mappings} names")
    images = tuple(Labelled(image, folder) for folder in used for image in images_of[folder])
    classes = {folder: name.lower() for folder, name in used.items()}
    notes = (
        f"{len(used)} of ObjectNet's {len(images_of)} classes, those that ImageNet has; {_OBJECTNET_BORDER} pixels are"
        " cut from each side (a red border)",
        *left_out_notes(folders["images"]),
    )
    return LabelledImages(images, classes, folders["images"], notes, border=_OBJECTNET_BORDER)


def _labels(column: str | None = None) -> dict[str, str]:
    """Return the WordNet ids of a test set by themselves."""
    return {each["class"]: each["class"] for each in imagenet_classes() if column is None or each[column] == "1"}


def _register(name: str, label_of_folder: Mapping[str, str], folder: str, **about: Any) -> None:
    class_benchmark(
        _reader(label_of_folder),
        Headline("top1", "items", f"top-1 accuracy in the paper ({about['paper'].rsplit(', ', 1)[1]})", CLEAN),
        name=name,
        folders={"images": folder, "annotations": "imagenet"},
        optional=("annotations",),
        **about,
    )


_register(
    "imagenet_v2",
    {str(index): each["class"] for index, each in enumerate(imagenet_classes())},
    "imagenetv2-matched-frequency-format-val",
    question="Does accuracy on ImageNet hold for photographs that were collected again in the same way?",
    paper="Do ImageNet Classifiers Generalize to ImageNet?, arXiv 1902.10811",
    licence="MIT for the code; photographs under their Flickr licences",
    size="10,000 images of 1,000 classes",
    source="github.com/modestyachts/ImageNetV2 (imagenetv2-matched-frequency.tar.gz)",
)
_register(
    "imagenet_r",
    _labels("imagenet_r"),
    "imagenet-r",
    question="Does a model recognise drawings, sculptures and other renditions of ImageNet's classes?",
    paper="The Many Faces of Robustness, arXiv 2006.16241",
    licence="MIT for the code; none given for the images",
    size="30,000 images of 200 classes",
    source="github.com/hendrycks/imagenet-r (imagenet-r.tar)",
)
_register(
    "imagenet_a",
    _labels("imagenet_a"),
    "imagenet-a",
    question="Does a model recognise photographs that were selected because a ResNet-50 fails on them?",
    paper="Natural Adversarial Examples, arXiv 1907.07174",
    licence="MIT for the code; none given for the images",
    size="7,500 images of 200 classes",
    source="github.com/hendrycks/natural-adv-examples (imagenet-a.tar)",
)
_register(
    "imagenet_sketch",
    _labels(),
    "sketch",
    question="Does a model recognise the classes of ImageNet in black and white sketches?",
    paper="Learning Robust Global Representations by Penalizing Local Predictive Power, arXiv 1905.13549",
    licence="none given",
    size="50,889 images of 1,000 classes",
    source="github.com/HaohanWang/ImageNet-Sketch",
)
class_benchmark(
    read_objectnet,
    Headline("top1", "items", "top-1 accuracy over the 113 classes, as in github.com/mlfoundations/wise-ft", CLEAN),
    name="objectnet",
    question="Does a model recognise household objects in unusual poses, rooms and views?",
    paper="ObjectNet, Barbu et al., NeurIPS 2019",
    licence="its own: for testing only, never for training",
    size="18,574 of 50,000 images: 113 of 313 classes",
    folders={"images": "objectnet-1.0/images", "annotations": "objectnet-1.0/mappings"},
    files=(_OBJECTNET_CLASSES,),
    source="objectnet.dev",
)
