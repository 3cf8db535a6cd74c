"""Winoground in its published form with made images, and a model that is right on as many items of a tag as planted."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, find_benchmark
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.benchmarks.tables import TEXTS, Embeddings
from rococo_jax.evaluation.results import make_fingerprint, make_results
from tests.support.world import noise, write_pictures

# The published numbers of items by collapsed tag.
ITEMS = {"Object": 141, "Relation": 233, "Both": 26}


@dataclasses.dataclass(frozen=True)
class Planted:
    """A benchmark, a model's outcomes on it, and its results."""

    benchmark: Benchmark
    outcomes: list[Any]
    results: dict[str, Any]


def _vector(name: str) -> np.ndarray:
    vector = np.random.default_rng([*name.encode()]).standard_normal(64)
    return vector / np.linalg.norm(vector)


def planted_winoground(folder: Path, right: Mapping[str, int], items: Mapping[str, int] = ITEMS, name="m") -> Planted:
    """Write the items and score a model whose captions lie on their images, exchanged where it is wrong."""
    rows, is_right = [], {}
    for tag, count in items.items():
        for number in range(count):
            id = f"{tag}{number}"
            is_right[id] = number < right[tag]
            sides = {f"{what}_{side}": f"{id} {side}" for what in ("image", "caption") for side in (0, 1)}
            rows.append({"id": id, "collapsed_tag": tag, **sides})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = [f"{row[f'image_{side}']}.png" for row in rows for side in (0, 1)]
    write_pictures(folder / "images", names, noise(8, 8))
    benchmark = find_benchmark("winoground").open({"images": folder / "images", "annotations": folder}, Settings())

    def image_of(caption: str) -> str:
        id, side = caption.split()
        return caption if is_right[id] else f"{id} {1 - int(side)}"

    images = np.stack([_vector(image.removesuffix(".png")) for image in benchmark.images])
    texts = np.stack([_vector(image_of(text)) for text in benchmark.texts])
    outcomes = [task.score(Embeddings({"originals": images, TEXTS: texts})) for task in benchmark.tasks]
    data = {"winoground": benchmark.fingerprint()}
    fingerprint = make_fingerprint(model={"name": name}, data=data, protocol="paper")
    results = make_results(name, "paper", fingerprint, outcomes, headline=benchmark.headline)
    return Planted(benchmark, outcomes, results)
