"""Folders of altered images: one run a folder, resumable, no partial files.

Every image is written by rename, `manifest.json` last. Until then `.unfinished.json` holds the manifest of the run, so
that the same run resumes and another one is refused, and `.written.jsonl` the hashes of its files. The manifest has the
hashes of all images read and written: changed inputs are refused, damaged outputs are written again.
"""

import functools
import hashlib
import io
import json
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
from rococo_jax.data.images import chunks
from rococo_jax.data.pictures import as_rgb, open_image
from rococo_jax.errors import InputError
from rococo_jax.perturb.images.corruptions import DEFINITION_VERSION, Corruption, check_severity
from rococo_jax.progress import progress
from rococo_jax.safe_paths import stays_inside
from rococo_jax.storage import atomic_write, hash_file, read_json_object, write_json

MANIFEST = "manifest.json"
_UNFINISHED, _WRITTEN = ".unfinished.json", ".written.jsonl"


class ResumableFolder:
    """The folder of one run: claimed for the run that `manifest` describes, or that run resumed.

    Args:
        out: the folder.
        manifest: what identifies the run, without the hashes of its files.
        inputs: name -> image file that the run reads.

    Raises:
        InputError: `out` is a file, or holds another run (the first field that differs is named), or an image has
            changed since the run began.
    """

    def __init__(self, out: str | os.PathLike, manifest: dict[str, Any], inputs: Mapping[str, ImageFile]):
        self.out, self.done = Path(out), {}
        if self.out.exists() and not self.out.is_dir():
            raise InputError(out, "output folder", "a file", "a folder")
        with ThreadPoolExecutor(thread_name_prefix="hash") as pool:
            hashes = dict(zip(inputs, pool.map(hash_image, inputs.values()), strict=True))
        self.manifest = {**manifest, "inputs_sha256": hashes}
        found = next((self.out / name for name in (MANIFEST, _UNFINISHED) if (self.out / name).exists()), None)
        if found is None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / _WRITTEN).unlink(missing_ok=True)
            write_json(self.out / _UNFINISHED, self.manifest)
            return
        kept = read_json_object(found, "a manifest of altered images")
        _check_same_run(found, kept, self.manifest)
        self.done = kept.get("files_sha256", {}) if found.name == MANIFEST else _hashes_written(self.out / _WRITTEN)

    def missing(self, names: Iterable[str]) -> set[str]:
        """Files that are not there, or are not as they were written. Raises InputError for names outside the folder."""
        paths = {name: self.out / name for name in names}
        if outside := next((name for name in paths if not stays_inside(self.out, name)), None):
            raise InputError(self.out, "image", repr(outside), "names of files below the folder")
        return {name for name, path in paths.items() if not path.is_file() or hash_file(path) != self.done.get(name)}

    def write(self, name: str, content: bytes) -> None:
        """Write a file by rename."""
        with atomic_write(self.out / name) as temporary:
            temporary.write_bytes(content)
        self.done[name] = hashlib.sha256(content).hexdigest()
        with (self.out / _WRITTEN).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, self.done[name]]) + "\n")

    def finish(self) -> None:
        """Write the manifest, which marks the folder as complete."""
        write_json(self.out / MANIFEST, self.manifest | {"files_sha256": dict(sorted(self.done.items()))})
        for name in (_UNFINISHED, _WRITTEN):
            (self.out / name).unlink(missing_ok=True)


def _hashes_written(path: Path) -> dict[str, str]:
    """The hashes of the files that an unfinished run has written; a line cut short counts for nothing."""
    done = {}
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            name, digest = json.loads(line)
            done[name] = digest
        except (ValueError, TypeError, RecursionError):
            continue
    return done


def _check_same_run(path: Path, found: dict[str, Any], manifest: dict[str, Any]) -> None:
    for field, wanted in manifest.items():
        had = found.get(field)
        if had == wanted:
            continue
        if field == "inputs_sha256" and isinstance(had, dict):
            changed = next(name for name in {**wanted, **had} if had.get(name) != wanted.get(name))
            raise InputError(path, f"image {changed!r}", "changed since", "the same images, or another output folder")
        had, asked = (had, wanted) if isinstance(wanted, str | int | float) else ("others", "those of this run")
        raise InputError(path, field, had, f"{asked}, or another output folder: a folder holds one run")


def names_without_suffix(images: Sequence[str]) -> list[str]:
    """Image names without suffix, except where two would collide (`a.jpg`, `a.png` and `a.jpg.jpg` keep theirs)."""
    stems = [str(PurePosixPath(image).with_suffix("")) for image in images]
    while len(set(stems)) < len(set(images)):
        count = Counter(stems)
        stems = [image if count[stem] > 1 else stem for image, stem in zip(images, stems, strict=True)]
    return stems


def encode_image(image: UInt8[np.ndarray, "height width 3"], kind: str, **options: Any) -> bytes:
    """The bytes of a PNG or JPEG file; `options` are passed to Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def versions() -> dict[str, str]:
    """Versions of the packages that the bytes of an altered image may depend on."""
    return {name: version(name) for name in ("rococo_jax", "jax", "numpy", "pillow")}


FORMAT, FORMAT_VERSION = "rococo_jax.corrupted_images", 1
KINDS = ("png", "jpeg")
_READ_AHEAD = 32


def image_id(name: str) -> int:
    """A number from an image's name, so that its corruption does not depend on the other files."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def rgb_pixels(image: Image.Image, size: int | None) -> UInt8[np.ndarray, "height width 3"]:
    """RGB pixels, white behind; with `size` the shorter side is resized to it (bicubic), the centre square cropped."""
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
    """Write the missing corrupted images, then the manifest. Returns (written, already there).

    Args:
        images: every image below this folder is corrupted.
        seed: of everything random.
        size: resize and crop to a square of this side first; None keeps the size.
        kind: `png` (lossless) or `jpeg` (quality 95).

    Raises:
        InputError: an argument out of range, `out` inside `images` or holding another run, or a file that is no image.
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
    absent = folder.missing(files)
    missing = [(name, file) for name, file in zip(names, files, strict=True) if file in absent]
    encode = functools.partial(encode_image, kind="PNG", compress_level=1)
    if kind == "jpeg":
        encode = functools.partial(encode_image, kind="JPEG", quality=95)
    key = jax.random.key(seed)
    with (
        ThreadPoolExecutor(2, thread_name_prefix="images") as pool,
        progress(f"corrupting images ({corruption.name} {severity})", len(names), "images") as advance,
    ):
        advance(len(names) - len(missing))
        for run in chunks(missing, _READ_AHEAD):
            pixels = pool.map(lambda item: rgb_pixels(open_image(Path(images) / item[0]), size), run)
            for batch in _same_size(zip(run, pixels, strict=True), corruption.at_a_time):
                ids = np.array([image_id(name) for (name, _), _ in batch], np.uint32)
                try:
                    corrupted = corruption(np.stack([image for _, image in batch]), severity, key, ids=ids)
                except InputError as error:
                    raise InputError(Path(images) / batch[0][0][0], error.field, error.found, error.wanted) from None
                encoded = pool.map(encode, np.asarray(corrupted))
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


def _same_size(items: Iterator, length: int) -> Iterator[list]:
    """Batches of up to `length` images of one size."""
    waiting: dict[tuple[int, ...], list] = {}
    for item in items:
        batch = waiting.setdefault(item[1].shape, [])
        batch.append(item)
        if len(batch) == length:
            yield waiting.pop(item[1].shape)
    yield from waiting.values()
