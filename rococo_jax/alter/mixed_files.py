"""Mixed galleries as files: the images of a plan and a manifest, resumable, nothing half-written.

Images appear whole under names that carry method, ratio and seed; `manifest.json` appears last. Until then
`.unfinished.json` says what the folder is going to hold, so that the same command goes on and another one is refused.
"""

import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from rococo_jax.alter.published_mixing import (
    BATCH,
    SIDE,
    MixingPlan,
    SquashedImages,
    encode_jpeg,
    mix_places,
    plan_batches,
    squash,
)
from rococo_jax.data.images import open_image
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import file_by_rename, read_json, write_json

FORMAT, FORMAT_VERSION = "rococo_jax.mixed_images", 1
_UNFINISHED = ".unfinished.json"


def squash_files(files: Mapping[str, Path], images: Sequence[str], workers: int = 2) -> SquashedImages:
    """A reader of squashed images: decodes and squashes the asked-for files in threads, and keeps none.

    The reader raises InputError for a file that is missing, cut short or not an image.
    """

    def read(indices: Sequence[int]) -> np.ndarray:
        with ThreadPoolExecutor(workers, thread_name_prefix="squash") as pool:
            return np.stack(list(pool.map(lambda index: squash(open_image(files[images[index]])), indices)))

    return read


def describe(plan: MixingPlan) -> dict[str, Any]:
    """The manifest of a plan: what was asked for, boxes, and for each mixed image its file, pair and true share."""
    names = file_names(plan)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "method": plan.method,
        "ratio": plan.ratio,
        "seed": plan.seed,
        "protocol": plan.protocol,
        "side": SIDE,
        "batch_size": BATCH,
        "self_mixed": plan.self_mixed,
        "mean_true_ratio": float(plan.true_ratio.mean()),
        "versions": {name: version(name) for name in ("rococo_jax", "numpy", "pillow")},
        "boxes": plan.boxes.tolist(),
        "pairs": [
            {
                "file": names[place],
                "image": plan.images[plan.first[place]],
                "partner": plan.images[plan.partner[place]],
                "batch": int(plan.batch[place]),
                "true_ratio": float(plan.true_ratio[place]),
            }
            for place in range(len(names))
        ],
    }


def file_names(plan: MixingPlan) -> list[str]:
    """A name for each place of the plan: the first image's, then variant and seed. No two runs share a name."""
    stems = [str(PurePosixPath(image).with_suffix("")) for image in plan.images]
    twice = {stem for stem, count in Counter(stems).items() if count > 1}
    kept = [image if stem in twice else stem for image, stem in zip(plan.images, stems, strict=True)]
    strict = "_strict" if plan.protocol == "strict" else ""
    suffix = ".jpg" if plan.compressed else ".png"
    return [f"{kept[first]}_{plan.variant}_seed{plan.seed}{strict}{suffix}" for first in plan.first]


def write_mixed(plan: MixingPlan, squashed: SquashedImages, out: str | os.PathLike, workers: int = 2) -> int:
    """Writes what is missing of the plan's images, then the manifest. Returns how many images were written.

    `paper` and `control` are saved as the script saves them (JPEG); `strict` as PNG, without loss.

    Raises:
        InputError: `out` holds another run, finished or not, or an image cannot be read.
    """
    out, manifest = Path(out), describe(plan)
    _check_same_run(out, manifest)
    names = file_names(plan)
    missing = [places for places in plan_batches(plan) if any(not (out / names[place]).is_file() for place in places)]
    if not (out / "manifest.json").exists():
        write_json(out / _UNFINISHED, manifest)
    encode = encode_jpeg if plan.compressed else _encode_png
    written = 0
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool,
        progress("mixing images", len(plan.images), "images") as advance,
    ):
        advance(len(plan.images) - sum(map(len, missing)))
        for places in missing:
            mixed = mix_places(plan, places, squashed(plan.first[places].tolist()))
            for place, encoded in zip(places, pool.map(encode, mixed), strict=True):
                with file_by_rename(out / names[place]) as temporary:
                    temporary.write_bytes(encoded)
            written += len(places)
            advance(len(places))
    write_json(out / "manifest.json", manifest)
    (out / _UNFINISHED).unlink(missing_ok=True)
    return written


def _check_same_run(out: Path, manifest: dict[str, Any]) -> None:
    """Raises InputError where `out` belongs to a run with other settings, images or versions."""
    if out.exists() and not out.is_dir():
        raise InputError(out, "output folder", "a file", "a folder")
    for name in ("manifest.json", _UNFINISHED):
        if not (out / name).exists():
            continue
        found = read_json(out / name, "a manifest of mixed images")
        if not isinstance(found, dict):
            found = {}
        for field, wanted in manifest.items():
            if found.get(field) != wanted:
                asked = wanted if isinstance(wanted, str | int | float) else "the same as in this run"
                had = found.get(field) if isinstance(wanted, str | int | float) else "others"
                raise InputError(out / name, field, had, f"{asked}, or another --out: a folder holds one run")


def _encode_png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
