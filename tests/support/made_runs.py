"""Results of made-up models: random vectors through the project's own ranking and writers, so that all files agree."""

from pathlib import Path

import numpy as np

from rococo_jax.benchmarks.tasks import RankBenchmark, RankTask
from rococo_jax.evaluation.results import make_fingerprint, make_results, per_query_table, write_per_query
from rococo_jax.evaluation.scoring import rank_by_embeddings
from rococo_jax.storage import write_json

IMAGES, EACH = 60, 2
CAPTIONS = IMAGES * EACH


def made_benchmark() -> RankBenchmark:
    """Images with two captions each; altered captions of two variants, and blended images of two seeds."""
    image, caption = np.arange(IMAGES), np.arange(CAPTIONS)
    owner = caption // EACH
    tasks = [RankTask("image_to_text", "clean", image, caption, image, owner, np.zeros(CAPTIONS, bool))]
    for place, variant in enumerate(("same_concept", "danger"), 1):
        gallery = np.concatenate([caption, caption + place * CAPTIONS])
        altered = np.arange(2 * CAPTIONS) >= CAPTIONS
        tasks.append(RankTask("image_to_text", variant, image, gallery, image, np.tile(owner, 2), altered))
    tasks.append(RankTask("text_to_image", "clean", caption, image, owner, image, np.zeros(IMAGES, bool)))
    for place, seed in enumerate((1, 10), 1):
        gallery = np.concatenate([image, image + place * IMAGES])
        altered = np.arange(2 * IMAGES) >= IMAGES
        tasks.append(
            RankTask("text_to_image", "mix_0.9", caption, gallery, owner, np.tile(image, 2), altered, seed=seed)
        )
    words = [f"{what} of a thing numbered {number}" for what in ("photo", "picture", "weapon") for number in caption]
    return RankBenchmark(tuple(f"val/{number:03}.jpg" for number in image), tuple(words), tuple(tasks))


def make_run(folder: Path, name: str, noise: float, seed: int = 0) -> Path:
    """A results folder of a model whose captions lie at random around their images, the further the more `noise`."""
    rng = np.random.default_rng(seed)
    benchmark = made_benchmark()
    images = np.random.default_rng(99).normal(size=(IMAGES, 16))
    captions = np.repeat(images, EACH, axis=0) + noise * rng.normal(size=(CAPTIONS, 16))
    altered = [captions + 0.4 * rng.normal(size=captions.shape) for _ in range(2)]
    mixed = [images + 0.5 * rng.normal(size=images.shape) for _ in range(2)]
    tables = (np.concatenate([images, *mixed]), np.concatenate([captions, *altered]))
    units = [(table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32) for table in tables]
    outcomes = rank_by_embeddings(benchmark, *units)
    fingerprint = make_fingerprint(model={"weights": f"{name} {noise}"}, data={"captions": "made"}, protocol="paper")
    about = {
        "provenance": {"source": f"made/{name}", "source_format": "huggingface"},
        "parameters": {"vision": 86_192_640, "text": 63_165_952, "total": 149_358_592},
        "flops": {"image": 8_819_700_000, "text": 5_960_000_000},
        "embedding_dimensions": 16,
        "warnings": [],
    }
    results = make_results(name, "paper", fingerprint, outcomes)
    data = {"annotations": "made/annotations", "image_count": IMAGES, "caption_count": CAPTIONS}
    write_json(folder / "results.json", results | {"data": data, "about": about})
    write_per_query(folder / "per_query.parquet", per_query_table(benchmark, outcomes, "paper"))
    return folder


def six_runs(folder: Path) -> Path:
    """Six models, the last as good as the first."""
    for place, noise in enumerate((1.0, 1.2, 1.4, 1.7, 2.2, 1.0)):
        name = f"family-{place % 2}/model-{'abcdef'[place]}"
        make_run(folder / name.replace("/", "-"), name, noise, seed=place)
    return folder
