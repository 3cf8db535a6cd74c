"""The demo's benchmark on disk, in the form that a user's own data would have.

FOLDER/images/scene_000000.png ...       pictures
FOLDER/annotations/captions.json         captions, Karpathy form
FOLDER/annotations/same_concept.json ... altered captions, this project's own form

Captions are altered as `rococo alter-captions` does it, at the noun of lowest influence on the plain demo model's
embedding.
"""

import concurrent.futures
import functools
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

from rococo_jax.checkpoints.shipped import shipped_models
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of
from rococo_jax.demo.lexicon import demo_lexicon
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.errors import InputError
from rococo_jax.progress import progress
from rococo_jax.storage import atomic_directory, write_json

IMAGES, ANNOTATIONS, CAPTIONS_FILE = "images", "annotations", "captions.json"
SCENES, SEED, SIZE = 250, 1, 256
_MOST_WORKERS = 4


def draw_benchmark(folder: str | os.PathLike, scenes: int = SCENES, seed: int = SEED) -> tuple[Path, Path]:
    """Draws the demo's benchmark below `folder`, or finds it drawn: the folders of images and of annotations.

    Args:
        folder: `rococo demo --out`; the scenes are named after what made them, so that another seed never meets them.
        scenes: how many.
        seed: any whole number.

    Raises:
        InputError: fewer than two scenes.
    """
    if scenes < 2:
        raise InputError("--scenes", "number", scenes, "at least 2")
    benchmark = Path(folder) / run_name(scenes, seed) / "benchmark"
    if not benchmark.exists():
        with atomic_directory(benchmark) as made, progress("drawing", scenes, "scenes") as advance:
            write_benchmark(made, scenes, seed, advance=advance)
    return benchmark / IMAGES, benchmark / ANNOTATIONS


def run_name(scenes: int, seed: int) -> str:
    """The folder of everything about these scenes."""
    return f"{scenes}-scenes-seed-{seed}"


def write_benchmark(
    folder: str | os.PathLike,
    count: int = SCENES,
    seed: int = SEED,
    split: str = "test",
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Writes pictures, captions and altered captions into `folder`. The same arguments write the same scenes.

    Many pictures are drawn by several processes, so a script that calls this needs `if __name__ == "__main__":`.

    Args:
        folder: made where it does not exist. For a folder that appears whole or not at all, hand over the temporary
            one of `storage.atomic_directory`.
        count: number of scenes.
        seed: any whole number.
        split: `test`, `validation` or `train`; their compositions do not overlap.
        advance: called with the number of pictures done since the last call.
    """
    folder = Path(folder)
    scenes = [make_scene(split, seed, index) for index in range(count)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    annotations = folder / ANNOTATIONS
    write_json(annotations / CAPTIONS_FILE, [{"image": item.image, "caption": list(item.captions)} for item in items])
    _write_altered(items, annotations, seed, split)
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    draw = functools.partial(_draw_to_file, folder / IMAGES, split, seed)
    for _ in map_in_processes(draw, range(count)):
        advance(1)


def _write_altered(items: list[CaptionedImage], annotations: Path, seed: int, split: str) -> None:
    # The processes that draw have no need of JAX.
    from rococo_jax.benchmarks.rococo.generate import alter_captions, write_altered
    from rococo_jax.encoders import load_model

    encoder, lexicon = load_model(shipped_models()["plain"]), demo_lexicon()
    made_by = {"model": encoder.describe(), "lexicon": {"name": lexicon.name, "sha256": lexicon.hash()}}
    for variant, altered in alter_captions(encoder, items, lexicon=lexicon, seed=seed, fit_article=True).items():
        write_altered(annotations / f"{variant}.json", altered, {**made_by, "seed": seed, "split": split})


def _draw_to_file(folder: Path, split: str, seed: int, index: int) -> None:
    scene = make_scene(split, seed, index)
    draw_scene(scene, SIZE).save(folder / f"{scene.name}.png", compress_level=3)


def map_in_processes(function: Callable, things, chunk: int = 16):
    """`map` over a few fresh processes, in order; in this process where there is one core or little to do."""
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    if workers < 2 or len(things) < 4 * chunk:
        yield from map(function, things)
        return
    # Fresh processes, because a process that runs JAX must not be forked.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(function, things, chunksize=chunk)
