"""Sixteen coarse classes (Geirhos et al. 2019, arXiv 1811.12231): cue conflict, and photographs of ImageNet.

`cue_conflict`: the shape of one class with the texture of another, cue_conflict/SHAPE/SHAPEn-TEXTUREm.jpg; beside it
edges/ and silhouettes/ with CLASSn.jpg, in folders or flat; or the published folder `stimuli` with its own names.

`imagenet16`: photographs of ImageNet's classes, WORDNETID_name.jpg in one folder. Which of its classes belong to a
coarse one is told by their places in the order of WordNet ids, from 0; classes of none of the 16 are left out. The
list is this project's, close to that of Geirhos et al.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.classes import Labelled, LabelledImages, class_benchmark
from rococo_jax.benchmarks.pooling import Headline
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.data.image_files import image_names, left_out_notes
from rococo_jax.errors import InputError

# Coarse class -> the places of its classes in ImageNet.
PLACES = {
    "airplane": "404",
    "bear": "294-297",
    "bicycle": "444 671",
    "bird": "8 10-16 18-20 22-24 80-84 87-96 98-100 127-133 135-145",
    "boat": "472 554 625 814 914",
    "bottle": "440 720 737 898-899 901 907",
    "car": "436 511 817",
    "cat": "281-286",
    "chair": "423 559 765 857",
    "clock": "409 530 892",
    "dog": "151-268",
    "elephant": "385-386",
    "keyboard": "508 878",
    "knife": "499",
    "oven": "766",
    "truck": "555 569 656 675 717 734 864 867",
}
CLASSES = tuple(PLACES)
TASKS = ("cue_conflict", "edges", "silhouettes")
_PUBLISHED = {"cue_conflict": "style-transfer-preprocessed-512", "silhouettes": "filled-silhouettes"}
_NAME = re.compile(r"([a-z]+)\d*(?:-([a-z]+)\d*)?")
_ALL = 1000
_PHOTOGRAPH = re.compile(r"(n\d{8})_.+")


def read(folders: Mapping[str, Path]) -> LabelledImages:
    """The stimuli that are there, by the names of their files."""
    folder, stimuli = folders["images"], []
    folder_of = {task: task if (folder / task).is_dir() else _PUBLISHED.get(task, task) for task in TASKS}
    for task, inside in folder_of.items():
        for name in image_names(folder / inside):
            path = folder / inside / name
            parts = _NAME.fullmatch(path.stem)
            if parts is None or (task == TASKS[0] and parts[2] is None):
                raise InputError(path, "name", path.name, "SHAPEn-TEXTUREm" if task == TASKS[0] else "CLASSn")
            stimuli.append(Labelled(f"{inside}/{name}", parts[1], task, parts[2]))
    if not stimuli:
        raise InputError(folder, "stimuli", "none", f"images under {', '.join(TASKS)}")
    notes = left_out_notes(*(folder / inside for inside in folder_of.values()))
    return LabelledImages(tuple(stimuli), {name: name for name in CLASSES}, folder, notes)


def coarse_places() -> dict[int, str]:
    """The coarse class of each place that has one.

    >>> coarse_places()[404], coarse_places()[200], 0 in coarse_places()
    ('airplane', 'dog', False)
    """
    class_at = {}
    for name, listed in PLACES.items():
        for first, _, last in (part.partition("-") for part in listed.split()):
            class_at |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return class_at


def read_photographs(folders: Mapping[str, Path]) -> LabelledImages:
    """The images of the 16 classes, by the places of their WordNet ids among all 1,000 in the folder."""
    folder = folders["images"]
    names = [name for name in image_names(folder) if "/" not in name]
    matches = [(name, _PHOTOGRAPH.fullmatch(name)) for name in names]
    for name, match in matches:
        if match is None:
            raise InputError(folder, "image", name, "WORDNETID_name")
    place = {wordnet: number for number, wordnet in enumerate(sorted({match[1] for _, match in matches}))}
    if len(place) != _ALL:
        raise InputError(folder, "classes of ImageNet", len(place), f"{_ALL}, whose order says which is which")
    coarse = coarse_places()
    images = tuple(Labelled(name, coarse[at]) for name, match in matches if (at := place[match[1]]) in coarse)
    return LabelledImages(images, {name: name for name in CLASSES}, folder, left_out_notes(folder))


class_benchmark(
    read,
    Headline("shape_bias", "items", "shape bias over all stimuli in the paper (arXiv 1811.12231)", CLEAN),
    name="cue_conflict",
    question="Does a model go by shape or by texture, where an image has one of each class?",
    paper="ImageNet-trained CNNs are biased towards texture, arXiv 1811.12231",
    licence="CC BY 4.0",
    size="1,280 images of 16 classes; edges and silhouettes 160 each",
    folders={"images": "cue_conflict"},
    source="the benchmark's public repository",
    tasks=TASKS,
)
class_benchmark(
    read_photographs,
    Headline("top1", "items", "[ours]: the list of classes is this project's", CLEAN),
    name="imagenet16",
    question="Which of 16 coarse classes does a photograph of ImageNet show?",
    paper="ImageNet-trained CNNs are biased towards texture, arXiv 1811.12231 (the 16 classes)",
    licence="images: ImageNet's terms, research",
    size="images of about 240 of ImageNet's 1,000 classes",
    folders={"images": "imagenet_sample/images"},
    source="ImageNet; any number of images of each of its 1,000 classes",
)
