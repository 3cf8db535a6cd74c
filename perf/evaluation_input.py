"""Time what the host does for one model of `rococo evaluate`: files to prepared pixels of all galleries, no tower.

    python perf/evaluation_input.py --images coco/originals/val2014 [--count 480] [--models 2] [--corruptions fog]

The galleries are the default ones: originals, `mix` and `patch` with three seeds, control. The encoder prepares pixels
as CLIP does (224 pixels, bicubic) and throws them away, so that the time is the host's alone. The peer decodes and
resizes every file once, in a bare pool of as many threads as cores. Files are read `--count` times in all, under
different names, from the page cache.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import measuring
import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark, with_corrupted_images
from rococo_jax.benchmarks.rococo.mixed_galleries import MixedImages
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.data.images import FileImages
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.foreign import ForeignEncoder
from rococo_jax.evaluation.models.model import embed_benchmark

CLIP = Preprocessing(shortest_edge=224, crop_size=(224, 224))


class NoTower:
    """Vectors that say nothing, of prepared pixels."""

    def encode_image(self, images) -> np.ndarray:
        return np.ones((len(images), 2), np.float32)

    encode_text = encode_image


class HostOnly(ForeignEncoder):
    """Prepares images as an encoder of this project does."""

    pixel_view = getattr(CLIP, "view", None)

    def prepare(self, image) -> np.ndarray:
        return CLIP.resize(image)


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--images", required=True, type=Path, help="folder of images")
    parser.add_argument("--count", type=int, default=480, help="images of a gallery")
    parser.add_argument("--models", type=int, default=2, help="one after the other")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--corruptions", default="", help="kinds, with commas between them, at severity 3")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    files = sorted(path for path in arguments.images.iterdir() if path.suffix == ".jpg")
    paths = tuple(files[place % len(files)] for place in range(arguments.count))
    names = tuple(f"{place}_{path.name}" for place, path in enumerate(paths))
    report = {"files": len(files), "images": arguments.count, "cores": arguments.cores}
    wall, processor = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(arguments.cores) as pool:
        list(pool.map(lambda path: CLIP.resize(open_image(path)).shape, paths))
    report["bare_pool"] = {
        "images_per_second": round(arguments.count / (time.perf_counter() - wall), 1),
        "processor_milliseconds_an_image": round(1e3 * (time.process_time() - processor) / arguments.count, 2),
    }
    benchmark = make_benchmark(names, paths, [kind for kind in arguments.corruptions.split(",") if kind])
    items = sum(map(len, benchmark.image_sets.values()))
    # One small run first: what is compiled, is compiled once for any number of images.
    warm_up = make_benchmark(names[:65], paths[:65], [kind for kind in arguments.corruptions.split(",") if kind])
    embed_benchmark(HostOnly(NoTower()), warm_up, EmbeddingCache(None))
    for images in benchmark.image_sets.values() if arguments.models > 1 else ():
        if hasattr(images, "views"):  # as `evaluate` does for several models that want the same pixels
            images.views.announce(HostOnly.pixel_view)
    report["galleries"], report["models"] = len(benchmark.image_sets), []
    for _ in range(arguments.models):
        wall, processor = time.perf_counter(), time.process_time()
        embed_benchmark(HostOnly(NoTower()), benchmark, EmbeddingCache(None))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        report["models"].append(
            {
                "seconds": round(wall, 2),
                "processor_seconds": round(processor, 2),
                "images_per_second": round(items / wall),
            }
        )
    print(json.dumps(report, indent=2))


def make_benchmark(names: tuple[str, ...], paths: tuple[Path, ...], kinds: list[str]) -> Benchmark:
    """The default galleries of these files, without annotations or tasks."""
    originals = FileImages(names, paths)
    plans = [make_plan(names, method, 0.9, seed) for method in ("mix", "patch") for seed in (1, 10, 100)]
    sets = [originals, *(MixedImages(originals, plan) for plan in [*plans, make_plan(names, protocol="control")])]
    benchmark = Benchmark("made", names, ("a",), {images.name: images for images in sets}, ())
    return with_corrupted_images(benchmark, kinds, (3,))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
