"""What an evaluation reads: a folder of annotations and the images that are there, with their hashes."""

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.rococo.annotations import AnnotationSet, read_annotation_folder
from rococo_jax.data.captions import find_images, refuse_missing_images
from rococo_jax.storage import hash_file, hash_json


@dataclasses.dataclass(frozen=True)
class EvaluationInputs:
    """Annotations, and the files of the images that are present.

    Attributes:
        annotations: clean captions and variants.
        annotation_folder, image_folder: where they came from.
        paths: name -> file of every image that is present, in the order of the annotations.
        missing: names of images without a file.
    """

    annotations: AnnotationSet
    annotation_folder: Path
    image_folder: Path
    paths: Mapping[str, Path]
    missing: tuple[str, ...]

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of every image file by name."""
        return {name: hash_file(path) for name, path in self.paths.items()}

    @property
    def is_partial(self) -> bool:
        """Whether images are missing, so that the gallery is smaller than the benchmark's."""
        return bool(self.missing)

    def fingerprint(self) -> dict[str, Any]:
        """What of the data decides a result, whatever the folders are called."""
        clean = [[item.image, *item.captions] for item in self.annotations.clean]
        variants = {
            name: hash_json([[item.image, item.originals, item.altered] for item in annotation.items])
            for name, annotation in self.annotations.variants.items()
        }
        return {"captions": hash_json(clean), "variants": variants, "images": hash_json(self.hashes)}

    def describe(self) -> dict[str, Any]:
        """What a reader of the results needs to know of the data."""
        captions = sum(len(item.captions) for item in self.annotations.clean if item.image in self.paths)
        wanted = len(self.annotations.clean)
        return {
            "images": str(self.image_folder.resolve()),
            "annotations": str(self.annotation_folder.resolve()),
            "image_count": len(self.paths),
            "caption_count": captions,
            "coverage": {"present": len(self.paths), "wanted": wanted, "complete": not self.missing},
        }

    def in_words(self) -> str:
        """What is there, for the line that a command says before it starts."""
        found = self.describe()
        variants = ", ".join(("clean", *self.annotations.variants))
        wanted = found["coverage"]["wanted"]
        return f"{found['image_count']} of {wanted} images, {found['caption_count']} captions; variants {variants}"


def read_inputs(images: str | os.PathLike, annotations: str | os.PathLike, allow_missing: bool) -> EvaluationInputs:
    """Reads and checks both folders.

    Raises:
        InputError: an annotation file is unusable, or images are missing and that is not allowed.
    """
    read = read_annotation_folder(annotations)
    names = [item.image for item in read.clean]
    present, missing = find_images(names, images)
    refuse_missing_images(images, missing, len(names), allow_missing)
    ordered = {name: present[name] for name in names if name in present}
    return EvaluationInputs(read, Path(annotations), Path(images), ordered, tuple(missing))
