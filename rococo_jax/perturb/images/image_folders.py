"""Write folders of altered images, one run each, which resume after an interruption and have no partial files.

Every image is written by rename, and `manifest.json` last. Until then `.unfinished.json` contains the manifest of the
run, so that the same run resumes and another one is refused, and `.written.jsonl` the hashes of its files. The manifest
contains the hashes of all images read and written: changed inputs are refused, damaged outputs are written again.
"""

import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image

from rococo_jax.data.image_files import ImageFile, hash_image, list_images
from rococo_jax.data.images import Task, chunks, run_tasks
from rococo_jax.data.pictures import as_rgb, image_bytes, open_image
from rococo_jax.errors import InputError, naming_source
from rococo_jax.perturb.images.corruptions import DEFINITION_VERSION, Corruption, check_severity
from rococo_jax.progress import progress
from rococo_jax.safe_paths import stays_inside
from rococo_jax.storage import atomic_write, hash_file, read_json_object, write_json

MANIFEST = "manifest.json"
_UNFINISHED, _WRITTEN_FILES = ".unfinished.json", ".written.jsonl"


class ResumableFolder:
    """The output folder of one run: a new folder, or that of the same run after an interruption.

    Args:
        out: the folder.
        manifest: fields that identify the run, without the hashes of its files.
        inputs: the image files that the run reads, by name.

    Attributes:
        hashes: SHA-256 of the files that are already written.

    Raises:
        InputError: `out` is a file, or contains another run (the first field that differs is named), or an image has
            changed since the run started.
    """

    def __init__(self, out: str | os.PathLike, manifest: dict[str, Any], inputs: Mapping[str, ImageFile]):
        self.out, self.hashes = Path(out), {}
        if self.out.exists() and not self.out.is_dir():
            raise InputError(out, "output folder", "a file", "a folder")
        with ThreadPoolExecutor(thread_name_prefix="hash") as pool:
            input_hashes = dict(zip(inputs, pool.map(hash_image, inputs.values()), strict=True))
        self.manifest = {**manifest, "inputs_sha256": input_hashes}
        names = [name for name in (MANIFEST, _UNFINISHED) if (self.out / name).exists()]
        if not names:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / _WRITTEN_FILES).unlink(missing_ok=True)
            write_json(self.out / _UNFINISHED, self.manifest)
            return
        saved_path = self.out / names[0]
        saved = read_json_object(saved_path, "a manifest of altered images")
        _check_same_run(saved_path, saved, self.manifest)
        is_complete = names[0] == MANIFEST
        self.hashes = saved.get("files_sha256", {}) if is_complete else _read_hashes(self.out / _WRITTEN_FILES)

    def missing(self, names: Iterable[str]) -> set[str]:
        """Return the files that are missing or have changed. Raises InputError for a name outside the folder."""
        paths = {name: self.out / name for name in names}
        if outside := next((name for name in paths if not stays_inside(self.out, name)), None):
            raise InputError(self.out, "image", repr(outside), "names of files below the folder")
        return {name for name, path in paths.items() if not path.is_file() or hash_file(path) != self.hashes.get(name)}

    def write(self, name: str, content: bytes) -> None:
        """Write a file by rename."""
        with atomic_write(self.out / name) as temporary:
            temporary.write_bytes(content)
        self.hashes[name] = hashlib.sha256(content).hexdigest()
        with (self.out / _WRITTEN_FILES).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, self.hashes[name]]) + "\n")

    def finish(self) -> None:
        """Write the manifest, which marks the folder as complete."""
        write_json(self.out / MANIFEST, self.manifest | {"files_sha256": dict(sorted(self.hashes.items()))})
        for name in (_UNFINISHED, _WRITTEN_FILES):
            (self.out / name).unlink(missing_ok=True)


def _read_hashes(path: Path) -> dict[str, str]:
    """Return the hashes of the files that an unfinished run has written; incomplete lines are ignored."""
    hashes = {}
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            name, digest = json.loads(line)
            hashes[name] = digest
        except (ValueError, TypeError, RecursionError):
            continue
    return hashes


def _check_same_run(path: Path, saved: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Raise InputError with the first field of a manifest that differs from the saved one."""
    for field, value in manifest.items():
        saved_value = saved.get(field)
        if saved_value == value:
            continue
        if field == "inputs_sha256" and isinstance(saved_value, dict):
            image = next(name for name in {**value, **saved_value} if saved_value.get(name) != value.get(name))
            raise InputError(path, f"image {image!r}", "changed since", "the same images, or another output folder")
        if not isinstance(value, str | int | float):
            saved_value, value = "others", "those of this run"
        raise InputError(path, field, saved_value, f"{value}, or another output folder: a folder holds one run")


def names_without_suffix(images: Sequence[str]) -> list[str]:
    """Return image names without suffix, except names that would collide (`a.jpg`, `a.png` and `a.jpg.jpg`)."""
    stems = [str(PurePosixPath(image).with_suffix("")) for image in images]
    while len(set(stems)) < len(set(images)):
        count = Counter(stems)
        stems = [image if count[stem] > 1 else stem for image, stem in zip(images, stems, strict=True)]
    return stems


def versions() -> dict[str, str]:
    """Return the versions of the packages that may change the bytes of an altered image."""
    return {name: version(name) for name in ("rococo_jax", "jax", "numpy", "pillow")}


FORMAT, FORMAT_VERSION = "rococo_jax.corrupted_images", 1
KINDS = ("png", "jpeg")
_IMAGES_AT_ONCE = 32
_MOST_BYTES = 2**27


def image_id(name: str) -> int:
    """Return a number from an image's name, so that its corruption does not depend on the other files."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def rgb_pixels(image: Image.Image, size: int | None) -> UInt8[np.ndarray, "height width 3"]:
    """Return RGB pixels on white; with `size`, resize the shorter side to it (bicubic) and crop the centre square."""
    image = as_rgb(image)
    if size is not None:
        scale = size / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
    return np.asarray(image)


def write_corrupted(
    images: str | os.PathLike,
    corruption: Corruption,
    severity: int,
    out: str | os.PathLike,
    *,
    seed: int = 0,
    size: int | None = None,
    kind: str = "png",
) -> tuple[int, int]:
    """Write the missing corrupted images, then the manifest.

    Args:
        images: folder whose images are corrupted, including those in subfolders.
        corruption: the kind of corruption.
        severity: 1 to 5.
        out: the output folder.
        seed: seed of everything random.
        size: resize and crop to a square of this side first; None keeps the size.
        kind: `png` (lossless) or `jpeg` (quality 95).

    Returns:
        The number of images that were written, and the number that already existed.

    Raises:
        InputError: an argument is out of range, `out` is inside `images` or contains another run, or a file is not an
            image.
    """
    check_severity(severity)
    if kind not in KINDS:
        raise InputError("corruption", "kind", repr(kind), " or ".join(KINDS))
    if not 0 <= seed < 2**32:
        raise InputError("corruption", "seed", seed, "a whole number from 0 to 4294967295")
    if size is not None and size < 32:
        raise InputError("corruption", "size", size, "at least 32 pixels")
    if Path(out).resolve().is_relative_to(Path(images).resolve()):
        raise InputError(out, "output folder", f"a folder inside {images}", "a folder outside the images")
    names = list_images(images)
    suffix = {"png": ".png", "jpeg": ".jpg"}[kind]
    files = [stem + suffix for stem in names_without_suffix(names)]
    manifest = _manifest(names, files, corruption, severity, seed, size)
    folder = ResumableFolder(out, manifest, {name: Path(images) / name for name in names})
    missing_files = folder.missing(files)
    missing = [(name, file) for name, file in zip(names, files, strict=True) if file in missing_files]
    to_bytes = functools.partial(image_bytes, kind="PNG", compress_level=1)
    if kind == "jpeg":
        to_bytes = functools.partial(image_bytes, kind="JPEG", quality=95)
    key = jax.random.key(seed)
    with (
        ThreadPoolExecutor(2, thread_name_prefix="images") as pool,
        progress(f"corrupting images ({corruption.name} {severity})", len(names), "images") as advance,
    ):
        advance(len(names) - len(missing))
        for run in chunks(missing, _IMAGES_AT_ONCE):
            tasks = (Task(1, lambda name=name: [rgb_pixels(open_image(Path(images) / name), size)]) for name, _ in run)
            pixels = run_tasks(tasks, most_bytes=_MOST_BYTES)
            for batch in _batches_of_one_size(zip(run, pixels, strict=True), corruption.at_a_time):
                ids = np.array([image_id(name) for (name, _), _ in batch], np.uint32)
                with naming_source(Path(images) / batch[0][0][0]):
                    corrupted = corruption(np.stack([image for _, image in batch]), severity, key, ids=ids)
                encoded = pool.map(to_bytes, np.asarray(corrupted))
                for ((_, file), _), content in zip(batch, encoded, strict=True):
                    folder.write(file, content)
                advance(len(batch))
    folder.finish()
    return len(missing), len(names) - len(missing)


def _manifest(
    names: list[str], files: list[str], corruption: Corruption, severity: int, seed: int, size: int | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "corruption": corruption.name,
        "definition": DEFINITION_VERSION,
        "severity": severity,
        "seed": seed,
        "size": "as found" if size is None else size,
        "versions": versions(),
        "images": [{"file": file, "image": name} for name, file in zip(names, files, strict=True)],
    }


def _batches_of_one_size(items: Iterator, length: int) -> Iterator[list]:
    """Yield batches of up to `length` images of one size; all that wait for others take less than `_MOST_BYTES`."""
    waiting: dict[tuple[int, ...], list] = {}
    for item in items:
        waiting.setdefault(item[1].shape, []).append(item)
        sizes = {shape: len(batch) * math.prod(shape) for shape, batch in waiting.items()}
        if len(waiting[item[1].shape]) == length:
            yield waiting.pop(item[1].shape)
        elif sum(sizes.values()) > _MOST_BYTES:
            yield waiting.pop(max(sizes, key=sizes.__getitem__))
    yield from waiting.values()
