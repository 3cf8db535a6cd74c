"""Class folders: one folder of images for each class, whose name is the class's label."""

import re
from collections.abc import Sequence
from pathlib import Path

from rococo_jax.data.image_files import image_names, is_hidden
from rococo_jax.errors import InputError, require_folder

# Folders of a data set's splits, such as `train`, `Validation` and `val2017`. `train` alone may be a class.
_SPLIT = re.compile(r"(train|training|val|valid|validation|dev|eval|test|testing)[-_ ]?\d*", re.IGNORECASE)
_EVALUATED = ("val", "dev", "eval", "test")


def class_name_of(label: str) -> str:
    """Return the name of a class in prompts: its label with blanks instead of underscores.

    >>> class_name_of("great_white_shark")
    'great white shark'
    """
    return " ".join(label.replace("_", " ").split())


def class_folders(folder: Path) -> dict[str, list[str]]:
    """Return the images of each class in a folder of class folders, by the class folder's name, sorted.

    Raises InputError: it is no folder, has no class folders, one of them has no image or only folders, or all of them
    are splits of a data set.
    """
    require_folder(folder, "image folder", "class folders")
    labels = sorted(path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
    images_of: dict[str, list[str]] = {label: [] for label in labels}
    for name in image_names(folder):
        label, in_folder, _ = name.partition("/")
        if in_folder:
            images_of[label].append(name)
    if nested := [label for label, images in images_of.items() if images and not _has_image_itself(images)]:
        inside = sorted({name.split("/")[1] for name in images_of[nested[0]]})
        found = f"only folders in {few(nested)} ({few(inside)})"
        wanted = f"images in each, or a folder whose folders are the classes, such as {folder / _evaluated(nested)}"
        raise InputError(folder, "class folders", found, wanted)
    if labels and all(map(_SPLIT.fullmatch, labels)):
        found = f"splits of a data set: {few(labels)}"
        raise InputError(folder, "class folders", found, "a folder of images for each class, of one split")
    if without := [label for label, images in images_of.items() if not images]:
        raise InputError(folder / without[0], "class folder", "no image", "at least one image of every class")
    if not images_of:
        raise InputError(folder, "class folders", "none", "a folder of images for each class")
    return images_of


def _has_image_itself(images: Sequence[str]) -> bool:
    """Return whether an image, named `CLASS/...`, is directly in the class folder."""
    return any(name.count("/") == 1 for name in images)


def _evaluated(labels: Sequence[str]) -> str:
    """Return the folder of a validation or test split, or the first folder if no name is that of a split."""
    return next((label for start in _EVALUATED for label in labels if label.lower().startswith(start)), labels[0])


def few(names: Sequence[str], most: int = 4) -> str:
    """Return the first names, and the count if there are more."""
    return ", ".join(names[:most]) + (f", ... ({len(names)})" if len(names) > most else "")
