"""Cue conflict (Geirhos et al. 2019, arXiv 1811.12231): images with the shape of one class and the texture of another.

Files are `cue_conflict/SHAPE/SHAPEn-TEXTUREm.jpg`, and `CLASSn.jpg` below `edges/` and `silhouettes/`, in class folders
or without; or the published folder `stimuli` with its own names.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.classes import Labelled, LabelledImages, class_benchmark
from rococo_jax.benchmarks.pooling import Headline, HumanResults
from rococo_jax.benchmarks.variants import CLEAN
from rococo_jax.data.image_files import image_names, left_out_notes
from rococo_jax.errors import InputError

CLASSES = (
    *("airplane", "bear", "bicycle", "bird", "boat", "bottle", "car", "cat", "chair", "clock", "dog", "elephant"),
    *("keyboard", "knife", "oven", "truck"),
)
TASKS = ("cue_conflict", "edges", "silhouettes")
_PUBLISHED = {"cue_conflict": "style-transfer-preprocessed-512", "silhouettes": "filled-silhouettes"}
_NAME = re.compile(r"([a-z]+)\d*(?:-([a-z]+)\d*)?")

_HUMANS = "10 observers in github.com/rgeirhos/texture-vs-shape, raw-data"


def read(folders: Mapping[str, Path]) -> LabelledImages:
    """Read the stimuli from the names of their files."""
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
    # Counted in the published answers of each observer; 95.9 is the number of the paper as well.
    humans=(
        HumanResults({CLEAN: {"shape_bias": 95.87}}, "on all 1,280 images", _HUMANS),
        HumanResults({CLEAN: {"top1": 87.12}}, "on all 160 images", _HUMANS, "edges"),
        HumanResults({CLEAN: {"top1": 75.31}}, "on all 160 images", _HUMANS, "silhouettes"),
    ),
)
