"""Availability of benchmarks: which of their files and images are on disk."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.benchmark import BenchmarkInfo, existing_files
from rococo_jax.data.image_files import find_images

READY, PARTLY, MISSING = "ready", "partly", "missing"


@dataclasses.dataclass(frozen=True)
class Availability:
    """Files and images of a benchmark that are on disk.

    Attributes:
        missing_paths: required folders and files that do not exist.
        missing_files: annotation files of parts that do not exist.
        present_images: number of images that exist.
        total_images: number of images that the annotations name; None if that is unknown.
        works_without_images: whether texts can be compared without any image.
    """

    missing_paths: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    present_images: int = 0
    total_images: int | None = None
    works_without_images: bool = False

    @property
    def status(self) -> str:
        """`ready`, `partly`, or `missing` if nothing can be evaluated."""
        has_no_image = bool(self.total_images) and not self.present_images
        if self.missing_paths or (has_no_image and not self.works_without_images):
            return MISSING
        has_all_images = self.total_images is None or self.present_images == self.total_images
        return READY if has_all_images and not self.missing_files else PARTLY

    @property
    def details(self) -> str:
        """A phrase with the numbers of images, and the missing files."""
        phrases = []
        if self.total_images is not None:
            texts_only = ": only texts are compared" * (self.works_without_images and not self.present_images)
            phrases.append(f"{self.present_images:,} of {self.total_images:,} images{texts_only}")
        if self.missing_files:
            phrases.append(f"without {', '.join(self.missing_files)}")
        if self.missing_paths:
            phrases.append(f"not found: {', '.join(dict.fromkeys(self.missing_paths))}")
        return "; ".join(phrases)


def availability(info: BenchmarkInfo, folders: Mapping[str, Path]) -> Availability:
    """Check which files and images of a benchmark exist. Raises InputError: an annotation file cannot be read."""
    missing_paths = tuple(info.missing(folders))
    if missing_paths:
        return Availability(missing_paths)
    annotations = folders.get("annotations")
    if annotations is None or info.image_names is None or not annotations.is_dir():
        return Availability()
    # Patterns name the same items in another form, so only complete names count as parts.
    missing_files = tuple(name for name in info.files if "*" not in name and not existing_files(annotations, name))
    if any("*" in name and existing_files(annotations, name) for name in info.files):
        missing_files = ()
    names = list(dict.fromkeys(info.image_names(annotations)))
    inside_tables = sum(".parquet/" in name for name in names)
    present = inside_tables
    if folders["images"].is_dir():
        present += len(find_images([name for name in names if ".parquet/" not in name], folders["images"])[0])
    return Availability((), missing_files, present, len(names), "images" in info.optional)
