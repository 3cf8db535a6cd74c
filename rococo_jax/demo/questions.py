"""The other two questions of the demo, about the same scenes: which colour, and which of two captions is right?

FOLDER/classes/labels.csv      image,label: the colour of the first thing of each scene; another thing may have another
FOLDER/classes/classes.json    what prompts call a colour: "red object"
FOLDER/choices/items.jsonl     the first altered caption of each scene beside its original, by variant
"""

import json
from pathlib import Path

from rococo_jax.benchmarks.benchmark import Benchmark, find_benchmark
from rococo_jax.benchmarks.rococo.annotations import read_annotation
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.demo.scenes import make_scene
from rococo_jax.storage import atomic_directory

VARIANTS = ("same_concept", "danger")


def open_questions(images: Path, annotations: Path, scenes: int, seed: int, settings: Settings) -> list[Benchmark]:
    """The benchmarks of classes and of choices, whose files are written beside the annotations' folder if need be."""
    folder = annotations.parent.parent / "questions"
    if not folder.exists():
        with atomic_directory(folder) as unfinished:
            _write(unfinished, annotations, scenes, seed)
    return [find_benchmark(name).open({"images": images, "annotations": folder / name}, settings)
            for name in ("choices", "classes")]  # fmt: skip


def _write(folder: Path, annotations: Path, scenes: int, seed: int) -> None:
    colours = {(scene := make_scene("test", seed, index)).name: scene.main.colour for index in range(scenes)}
    lines = ["image,label", *(f"{name}.png,{colour}" for name, colour in colours.items())]
    (folder / "classes").mkdir()
    (folder / "classes" / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    called = {colour: f"{colour} object" for colour in sorted(set(colours.values()))}
    (folder / "classes" / "classes.json").write_text(json.dumps(called), encoding="utf-8")
    items = []
    for variant in VARIANTS:
        for item in read_annotation(annotations / f"{variant}.json").items:
            pairs = zip(item.originals, item.altered, strict=True)
            pair = next(((one, other) for one, other in pairs if other is not None and one != other), None)
            if pair is not None:
                items.append({"id": f"{variant} {item.image}", "part": variant, "texts": list(pair), "match": [[0, 0]],
                              "images": [{"file": item.image}]})  # fmt: skip
    (folder / "choices").mkdir()
    (folder / "choices" / "items.jsonl").write_text(
        "".join(json.dumps(item) + "\n" for item in items), encoding="utf-8"
    )
