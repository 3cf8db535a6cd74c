"""Cue conflict (Geirhos et al. 2019, arXiv 1811.12231): the shape of one class with the texture of another.

cue_conflict/SHAPE/SHAPEn-TEXTUREm.jpg; beside it edges/ and silhouettes/ with CLASSn.jpg, in folders or flat.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.classes.labelled import IMAGE_ENDINGS, Labelled, LabelledImages, class_benchmark
from rococo_jax.errors import InputError

CLASSES = (
    *("airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat", "chair", "clock", "dog", "elephant"),
    *("keyboard", "knife", "oven", "truck"),
)
TASKS = ("cue_conflict", "edges", "silhouettes")
_NAME = re.compile(r"([a-z]+)\d*(?:-([a-z]+)\d*)?")


def read(folders: Mapping[str, Path]) -> LabelledImages:
    """The stimuli that are there, by the names of their files."""
    folder, stimuli = folders["images"], []
    for task in TASKS:
        for path in sorted(path for path in (folder / task).rglob("*") if path.suffix.lower() in IMAGE_ENDINGS):
            parts = _NAME.fullmatch(path.stem)
            if parts is None or (task == TASKS[0] and parts[2] is None):
                raise InputError(path, "name", path.name, "SHAPEn-TEXTUREm" if task == TASKS[0] else "CLASSn")
            stimuli.append(Labelled(path.relative_to(folder).as_posix(), parts[1], task, parts[2]))
    if not stimuli:
        raise InputError(folder, "stimuli", "none", f"images under {', '.join(TASKS)}")
    return LabelledImages(tuple(stimuli), {name: name for name in CLASSES}, folder)


INFO = class_benchmark(
    read,
    name="cue_conflict",
    question="Does a model go by shape or by texture, where an image has one of each class?",
    paper="ImageNet-trained CNNs are biased towards texture, arXiv 1811.12231",
    licence="CC BY 4.0",
    size="1,280 images of 16 classes; edges and silhouettes 160 each",
    folders={"images": "cue_conflict"},
    source="the benchmark's public repository",
    tasks=TASKS,
)
