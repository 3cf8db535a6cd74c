"""All images and texts that a model must embed for some benchmarks, as files, for models that run elsewhere.

OUT/images.jsonl     one line per image: {"image": KEY, "file": path below OUT, "set": image set}
OUT/captions.jsonl   one line per caption: a JSON string, exactly as it must be embedded
OUT/images/KEY...    the images; originals byte for byte, mixed, corrupted and cropped ones as PNG

The key of an original is its name in the annotations; that of another image is `SET/NAME`, and that of a crop
`crops/NAME@LEFT,TOP,RIGHT,BOTTOM`. `models.stored_embeddings` reads embeddings by these keys.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import ORIGINALS
from rococo_jax.data.images import FileBackedImageSet, source_files
from rococo_jax.data.pictures import as_rgb, image_bytes
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_write, write_json_lines

IMAGES_LIST, CAPTIONS_LIST, FOLDER = "images.jsonl", "captions.jsonl", "images"
_AT_ONCE = 64


def image_files(benchmark: Benchmark) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return names and hashes of the benchmark's images; None where they are not files."""
    for images in benchmark.image_sets.values():
        files = source_files(images)
        if files is not None and files.names == benchmark.images:
            return files.names, files.hashes
    return None


def write_inputs(out: str | os.PathLike, benchmarks: Sequence[Benchmark]) -> dict[str, int]:
    """Write lists and images. Existing images are kept, so the same call resumes after an interruption.

    Returns the numbers of images and captions.

    Raises InputError: a key is not a safe path, two benchmarks use one name for different images, or an image cannot be
    read.
    """
    out = Path(out)
    captions = list(dict.fromkeys(text for benchmark in benchmarks for text in benchmark.texts))
    lines, total = {}, sum(len(images) for each in benchmarks for images in each.image_sets.values())
    with progress("writing images", total, "images") as advance:
        for benchmark in benchmarks:
            for images in benchmark.image_sets.values():
                for line, content in _write_set(out, images, advance):
                    if lines.setdefault(line["image"], (line, content))[1] != content:
                        problem = f"two images with this name, one in {benchmark.name} and one in an earlier benchmark"
                        raise InputError(
                            line["image"], "image", problem, "one benchmark at a time, in separate folders"
                        )
    # Written last, so that everything a list names exists.
    write_json_lines(out / CAPTIONS_LIST, captions)
    write_json_lines(out / IMAGES_LIST, [line for line, _ in lines.values()])
    return {"images": len(lines), "captions": len(captions)}


def _write_set(out: Path, images: FileBackedImageSet, advance: Any) -> Iterator[tuple[dict[str, str], bytes]]:
    keys, is_original = images.input_keys(), images.name == ORIGINALS
    files = [f"{FOLDER}/{_safe(key)}{'' if is_original else '.png'}" for key in keys]
    for run in images.runs(_AT_ONCE):
        missing = [row for row in run if not (out / files[row]).is_file()]
        if is_original:
            contents = map(images.encoded, missing)
        else:
            contents = (image_bytes(image, "PNG", compress_level=1) for image in images.read(missing, as_rgb))
        for row, content in zip(missing, contents, strict=True):
            with atomic_write(out / files[row]) as temporary:
                temporary.write_bytes(content)
        advance(len(run))
    for row, (key, file) in enumerate(zip(keys, files, strict=True)):
        yield {"image": key, "file": file, "set": images.name}, images.content(row)


def _safe(key: str) -> str:
    parts = PurePosixPath(key).parts
    if key.startswith("/") or ".." in parts:
        raise InputError(key, "image name", "a path that leaves its folder", "a path below the folder of images")
    return "/".join(parts)
