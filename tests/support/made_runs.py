"""Write results of made-up models: random vectors through the project's own ranking and writers, so files agree."""

import contextlib
import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.benchmarks.tables import ORIGINALS, TEXTS, Embeddings, Rows
from rococo_jax.benchmarks.tasks import RankTask
from rococo_jax.errors import InputError
from rococo_jax.evaluation.caption_baselines import baselines_of
from rococo_jax.evaluation.counts import row_table, rows_of_outcomes
from rococo_jax.evaluation.results import make_fingerprint, make_results, pair_table, per_query_table, write_per_query
from rococo_jax.storage import atomic_directory, write_json

IMAGES, EACH = 60, 2
CAPTIONS = IMAGES * EACH


def made_benchmark() -> Benchmark:
    """Images with two captions each; altered captions of two variants, and blended images of two seeds."""
    image, caption = np.arange(IMAGES), np.arange(CAPTIONS)
    owner = caption // EACH
    images, captions = Rows.of(ORIGINALS, image), Rows.of(TEXTS, caption)
    tasks = [RankTask("image_to_text", "clean", images, captions, image, owner, np.zeros(CAPTIONS, bool))]
    for place, variant in enumerate(("same_concept", "danger"), 1):
        gallery = Rows.of(TEXTS, np.concatenate([caption, caption + place * CAPTIONS]))
        altered = np.arange(2 * CAPTIONS) >= CAPTIONS
        task = RankTask("image_to_text", variant, images, gallery, image, np.tile(owner, 2), altered)
        tasks.append(dataclasses.replace(task, gallery_origin=np.concatenate([np.full(CAPTIONS, -1), caption])))
    tasks.append(RankTask("text_to_image", "clean", captions, images, owner, image, np.zeros(IMAGES, bool)))
    for seed in (1, 10):
        gallery = images + Rows.of(f"mix_0.9_seed{seed}", image)
        altered = np.arange(2 * IMAGES) >= IMAGES
        task = RankTask("text_to_image", "mix_0.9", captions, gallery, owner, np.tile(image, 2), altered, seed=seed)
        tasks.append(dataclasses.replace(task, gallery_origin=np.concatenate([np.full(IMAGES, -1), image])))
    words = [f"{what} of a thing numbered {number}" for what in ("photo", "picture", "weapon") for number in caption]
    return Benchmark("rococo", tuple(f"val/{number:03}.jpg" for number in image), tuple(words), {}, tuple(tasks))


def make_run(folder: Path, name: str, noise: float, seed: int = 0) -> Path:
    """A results folder of a model whose captions lie at random around their images, the further the more `noise`.

    Made once for all files of a run of the tests (`ROCOCO_MADE_RUNS`, tests/conftest.py), and copied.
    """
    template = Path(os.environ["ROCOCO_MADE_RUNS"]) / f"{name}-{noise}-{seed}".replace("/", "-")
    if not template.is_dir():
        # Another worker may be first.
        with contextlib.suppress(OSError, InputError), atomic_directory(template) as temporary:
            _write_run(temporary, name, noise, seed)
    shutil.copytree(template, folder, dirs_exist_ok=True)
    return folder


def _write_run(folder: Path, name: str, noise: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    benchmark = made_benchmark()
    images = np.random.default_rng(99).normal(size=(IMAGES, 16))
    captions = np.repeat(images, EACH, axis=0) + noise * rng.normal(size=(CAPTIONS, 16))
    altered = [captions + 0.4 * rng.normal(size=captions.shape) for _ in range(2)]
    mixed = [images + 0.5 * rng.normal(size=images.shape) for _ in range(2)]
    tables = {ORIGINALS: images, "mix_0.9_seed1": mixed[0], "mix_0.9_seed10": mixed[1]}
    tables[TEXTS] = np.concatenate([captions, *altered])
    embeddings = Embeddings({key: unit(table) for key, table in tables.items()})
    outcomes = [task.score(embeddings) for task in benchmark.tasks]
    data = {"rococo": {"captions": "made"}}
    fingerprint = make_fingerprint(model={"weights": f"{name} {noise}"}, data=data, protocol="paper")
    about = {
        "provenance": {"source": f"made/{name}", "source_format": "huggingface"},
        "parameters": {"vision": 86_192_640, "text": 63_165_952, "total": 149_358_592},
        "flops": {"image": 8_819_700_000, "text": 5_960_000_000},
        "embedding_dimensions": 16,
        "warnings": [],
    }
    results = make_results(name, "paper", fingerprint, outcomes)
    data = {"rococo": {"annotations": "made/annotations", "image_count": IMAGES, "caption_count": CAPTIONS}}
    baselines = {"captions": None, "tasks": baselines_of(benchmark)}
    write_json(folder / "results.json", results | {"baselines": baselines, "data": data, "about": about})
    write_per_query(folder / "pairs.parquet", pair_table(outcomes, benchmark))
    rows = [row_table("rococo", rows, benchmark) for rows in rows_of_outcomes(outcomes)]
    write_per_query(folder / "per_query.parquet", per_query_table(rows))


def unit(table: np.ndarray) -> np.ndarray:
    """The rows with length 1, in float32."""
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


def six_runs(folder: Path) -> Path:
    """Six models, the last as good as the first."""
    for place, noise in enumerate((1.0, 1.2, 1.4, 1.7, 2.2, 1.0)):
        name = f"family-{place % 2}/model-{'abcdef'[place]}"
        make_run(folder / name.replace("/", "-"), name, noise, seed=place)
    return folder
