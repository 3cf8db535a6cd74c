"""SugarCrepe (arXiv 2306.14610): is the true caption more similar to its image than a fluent false one?

Seven parts, `PART.json`: `{id: {"filename", "caption", "negative_caption"}}`. Accuracy is OTA: a strict comparison, so
an equal score is an error. `mean` is the macro mean over the parts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, open_images, partial_note, register
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Rows
from rococo_jax.benchmarks.tasks import ChoiceTask
from rococo_jax.errors import InputError
from rococo_jax.storage import hash_json, read_json

PARTS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_FIELDS = ("filename", "caption", "negative_caption")


def open_sugarcrepe(folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    """The parts that are there, over the images that are present."""
    files = [folders["annotations"] / f"{part}.json" for part in PARTS]
    parts = {path.stem: _read_part(path) for path in files if path.is_file()}
    if not parts:
        raise InputError(folders["annotations"], "annotations", "none of the parts", f"{', '.join(PARTS)} (.json)")
    names = [item["filename"] for items in parts.values() for item in items.values()]
    originals, missing, data = open_images(folders["images"], names, settings.allow_missing_images)
    image_row, text_row, tasks = {name: row for row, name in enumerate(originals.names)}, {}, []
    for part, items in parts.items():
        kept = {key: item for key, item in items.items() if item["filename"] in image_row}
        texts = [[text_row.setdefault(item[f], len(text_row)) for item in kept.values()] for f in _FIELDS[1:]]
        images = Rows.of(ORIGINALS, [image_row[item["filename"]] for item in kept.values()])
        if kept and settings.wants(INFO.name):
            tasks.append(ChoiceTask(INFO.name, part, tuple(kept), images, *(Rows.of(TEXTS, rows) for rows in texts)))
    data |= {"annotations": str(folders["annotations"].resolve()), "caption_count": len(text_row)}
    notes = (partial_note(len(originals), len(set(names))),) if missing else ()
    hashes = dict(zip(originals.names, originals.hashes, strict=True))
    decides = {"parts": {part: hash_json(items) for part, items in parts.items()}, "images": hash_json(hashes)}
    sets = {ORIGINALS: originals}
    # A misspelt name is on both sides: its part is absent, and its file is no part.
    others = sorted(path.name for path in folders["annotations"].glob("*.json") if path not in files)
    unread = (*others, *(f"{path.name} (absent)" for path in files if path.stem not in parts))
    return Benchmark(INFO.name, originals.names, tuple(text_row), sets, tuple(tasks), notes, data, decides, unread)


def _read_part(path: Path) -> dict[str, Any]:
    items = read_json(path, "a part of SugarCrepe")
    if not isinstance(items, dict) or not items:
        raise InputError(path, "items", f"a JSON {type(items).__name__}", "an object of items by id, at least one")
    for key, item in items.items():
        for field in _FIELDS:
            value = item.get(field) if isinstance(item, dict) else None
            if not isinstance(value, str) or not value.strip():
                raise InputError(path, f"item {key}: {field}", repr(value)[:80], "a non-empty string")
    return items


INFO = register(
    BenchmarkInfo(
        name="sugarcrepe",
        question="Is the true caption more similar to its image than a fluent false one?",
        paper="SugarCrepe: Fixing Hackable Benchmarks for Vision-Language Compositionality, arXiv 2306.14610",
        licence="annotations MIT; images under their Flickr licences",
        size="7,511 items on 1,560 images in 7 parts",
        folders={"images": "coco/images", "annotations": "sugar_crepe"},
        files=tuple(f"{part}.json" for part in PARTS),
        source="annotations: the benchmark's public repository; images: MS-COCO val2017, cocodataset.org",
        tasks=("sugarcrepe",),
        open=open_sugarcrepe,
    )
)
