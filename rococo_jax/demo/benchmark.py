"""Write the demo's benchmark to disk, in the form of a user's own data.

FOLDER/images/scene_000000.png ...       pictures
FOLDER/annotations/captions.json         captions, Karpathy form
FOLDER/annotations/same_concept.json ... altered captions, this project's own form
FOLDER/classes/labels.csv                image,label: the colour of the first thing of each scene
FOLDER/classes/classes.json              what prompts call a colour: "red object"
FOLDER/choices/items.jsonl               the first altered caption of each scene beside its original, by variant

Captions are altered as by `rococo alter-captions`, at the noun of lowest influence on the plain demo model's embedding.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

from rococo_jax.benchmarks.benchmark import Benchmark, find_benchmark
from rococo_jax.benchmarks.readers.plain_choices import text_choice
from rococo_jax.benchmarks.rococo.annotations import read_annotation
from rococo_jax.benchmarks.rococo.generate import alter_captions, write_altered
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.checkpoints.zoo import shipped_models
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.scenes import Scene, draw_scene, make_scene
from rococo_jax.encoders import load_model
from rococo_jax.errors import InputError
from rococo_jax.locks import made_once
from rococo_jax.progress import progress
from rococo_jax.storage import write_json, write_json_lines

IMAGES, ANNOTATIONS, CAPTIONS_FILE = "images", "annotations", "captions.json"
SCENES, SEED, SIZE = 250, 1, 256


def draw_benchmark(folder: str | os.PathLike, scenes: int = SCENES, seed: int = SEED) -> tuple[Path, Path]:
    """Draw the demo's benchmark in a subfolder of `folder` named after its arguments, unless it exists already.

    Returns the folders of images and of annotations. Raises InputError for fewer than two scenes.
    """
    if scenes < 2:
        raise InputError("scenes", "number", scenes, "at least 2")
    benchmark = Path(folder) / run_name(scenes, seed) / "benchmark"

    def draw(unfinished: Path) -> None:
        with progress("drawing", scenes, "scenes") as advance:
            write_benchmark(unfinished, scenes, seed, on_progress=advance)

    made_once(benchmark, draw)
    return benchmark / IMAGES, benchmark / ANNOTATIONS


def run_name(scenes: int, seed: int) -> str:
    """Return the name of the subfolder of everything about these scenes."""
    return f"{scenes}-scenes-seed-{seed}"


def write_benchmark(
    folder: str | os.PathLike,
    count: int = SCENES,
    seed: int = SEED,
    on_progress: Callable[[int], None] = lambda count: None,
) -> None:
    """Write pictures, captions and altered captions into `folder`. The same arguments write the same scenes.

    Args:
        on_progress: called with the number of pictures that were drawn since its last call.
    """
    folder = Path(folder)
    scenes = [make_scene("test", seed, index) for index in range(count)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    annotations = folder / ANNOTATIONS
    write_json(annotations / CAPTIONS_FILE, [{"image": item.image, "caption": list(item.captions)} for item in items])
    _write_altered(items, annotations, seed)
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        draw_scene(scene, SIZE).save(folder / IMAGES / f"{scene.name}.png", compress_level=3)
        on_progress(1)


def _write_altered(items: list[CaptionedImage], annotations: Path, seed: int) -> None:
    encoder, lexicon = load_model(shipped_models()["plain"]), demo_lexicon()
    made_by = {"model": encoder.describe(), "lexicon": {"name": lexicon.name, "sha256": lexicon.hash()}}
    for variant, altered in alter_captions(encoder, items, lexicon=lexicon, seed=seed, fit_article=True).items():
        write_altered(annotations / f"{variant}.json", altered, {**made_by, "seed": seed, "split": "test"})


VARIANTS = ("same_concept", "danger")


def open_questions(images: Path, annotations: Path, scenes: int, seed: int, settings: Settings) -> list[Benchmark]:
    """Open the benchmarks of choices and classes; write their files first if they do not exist."""

    def write(unfinished: Path) -> None:
        drawn_scenes = [make_scene("test", seed, index) for index in range(scenes)]
        _write_classes(unfinished / "classes", drawn_scenes)
        _write_choices(unfinished / "choices", annotations)

    folder = made_once(annotations.parent.parent / "questions", write)
    return [
        find_benchmark(name).open({"images": images, "annotations": folder / name}, settings)
        for name in ("choices", "classes")
    ]


def _write_classes(folder: Path, scenes: list[Scene]) -> None:
    lines = ["image,label", *(f"{scene.name}.png,{scene.main.colour}" for scene in scenes)]
    prompt_names = {colour: f"{colour} object" for colour in sorted({scene.main.colour for scene in scenes})}
    folder.mkdir()
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "classes.json").write_text(json.dumps(prompt_names), encoding="utf-8")


def _write_choices(folder: Path, annotations: Path) -> None:
    items = []
    for variant in VARIANTS:
        for item in read_annotation(annotations / f"{variant}.json").items:
            pairs = zip(item.originals, item.altered, strict=True)
            pair = next(((one, other) for one, other in pairs if other is not None and one != other), None)
            if pair is not None:
                items.append(text_choice(f"{variant} {item.image}", variant, pair[:1], pair[1], item.image))
    write_json_lines(folder / "items.jsonl", items)
