"""Availability of benchmarks: which of their files and images are on disk."""

from collections.abc import Mapping
from pathlib import Path

from rococo_jax.benchmarks.benchmark import BenchmarkInfo, existing_files
from rococo_jax.data.image_files import find_images

READY, PARTLY, MISSING = "ready", "partly", "missing"


def availability(info: BenchmarkInfo, folders: Mapping[str, Path]) -> tuple[str, str]:
    """Return `ready`, `partly`, or `missing` if nothing can be evaluated, and a phrase on images and missing files.

    Raises InputError: an annotation file cannot be read.
    """
    if missing_paths := info.missing(folders):
        return MISSING, f"not found: {', '.join(dict.fromkeys(missing_paths))}"
    annotations = folders.get("annotations")
    if annotations is None or info.image_names is None or not annotations.is_dir():
        return READY, ""
    # Patterns name the same items in another form, so only complete names count as parts.
    missing_files = [name for name in info.files if "*" not in name and not existing_files(annotations, name)]
    if any("*" in name and existing_files(annotations, name) for name in info.files):
        missing_files = []
    names = list(dict.fromkeys(info.image_names(annotations)))
    present = sum(".parquet/" in name for name in names)
    if folders["images"].is_dir():
        present += len(find_images([name for name in names if ".parquet/" not in name], folders["images"])[0])
    works_without_images = "images" in info.optional
    texts_only = ": only texts are compared" * (works_without_images and not present)
    details = f"{present:,} of {len(names):,} images{texts_only}"
    details += f"; without {', '.join(missing_files)}" if missing_files else ""
    if names and not present and not works_without_images:
        return MISSING, details
    return READY if present == len(names) and not missing_files else PARTLY, details
