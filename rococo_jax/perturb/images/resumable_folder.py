"""Folders of altered images: one run a folder, resumable, no partial files.

Every image is written by rename, `manifest.json` last. Until then `.unfinished.json` holds the manifest of the run, so
that the same run resumes and another one is refused.
"""

import io
import os
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from rococo_jax.errors import InputError
from rococo_jax.storage import atomic_write, read_json, write_json

MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished.json"


def begin(out: str | os.PathLike, manifest: dict[str, Any]) -> Path:
    """Claim the folder `out` for the run that `manifest` describes, or resume that run.

    Raises:
        InputError: `out` is a file, or holds another run, finished or not (the first field that differs is named).
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(out, "output folder", "a file", "a folder")
    for name in (MANIFEST, _UNFINISHED):
        if (out / name).exists():
            _check_same_run(out / name, manifest)
            return out
    write_json(out / _UNFINISHED, manifest)
    return out


def _check_same_run(path: Path, manifest: dict[str, Any]) -> None:
    found = read_json(path, "a manifest of altered images")
    found = found if isinstance(found, dict) else {}
    for field, wanted in manifest.items():
        if found.get(field) == wanted:
            continue
        simple = isinstance(wanted, str | int | float)
        had, asked = (found.get(field), wanted) if simple else ("others", "those of this run")
        raise InputError(path, field, had, f"{asked}, or another output folder: a folder holds one run")


def finish(out: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, which marks the folder as complete."""
    write_json(out / MANIFEST, manifest)
    (out / _UNFINISHED).unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file by rename."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def names_without_suffix(images: Sequence[str]) -> list[str]:
    """Image names without suffix, except where two names would collide (`a.jpg` and `a.png` keep theirs)."""
    stems = [str(PurePosixPath(image).with_suffix("")) for image in images]
    count = Counter(stems)
    return [image if count[stem] > 1 else stem for image, stem in zip(images, stems, strict=True)]


def encode_image(image: UInt8[np.ndarray, "height width 3"], kind: str, **options: Any) -> bytes:
    """The bytes of a PNG or JPEG file; `options` are passed to Pillow."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def versions() -> dict[str, str]:
    """Versions of the packages that the bytes of an altered image may depend on."""
    return {name: version(name) for name in ("rococo_jax", "jax", "numpy", "pillow")}
