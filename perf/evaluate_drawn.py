"""Time `rococo evaluate` with its default galleries on drawn images, from files to results; print one JSON object.

python perf/evaluate_drawn.py MODEL [--count 1000]
"""

import json
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np
from PIL import Image

from rococo_jax.cli.main import main as rococo


def write_benchmark(count: int, folder: Path) -> list[str]:
    """Write images of smooth random colours with five captions and five altered ones; return the options for them."""
    rng = np.random.default_rng(0)
    images, annotations = folder / "images", folder / "annotations"
    images.mkdir(), annotations.mkdir()
    items = []
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(images / f"{number}.jpg")
        captions = [f"scene {number} seen by {who}" for who in ("a man", "a dog", "a bird", "two men", "a cat")]
        items.append({"image": f"{number}.jpg", "caption": [*captions, *(f"{text} alone" for text in captions)]})
    (annotations / "danger.json").write_text(json.dumps(items))
    return ["--images", str(images), "--annotations", str(annotations), "--out", str(folder / "out")]


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("model")
    parser.add_argument("--count", type=int, default=1000, help="number of images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = write_benchmark(arguments.count, Path(folder))
        start = time.perf_counter()
        if rococo(["evaluate", arguments.model, *options, "--no-cache"]):
            raise SystemExit("rococo evaluate failed")
        seconds = time.perf_counter() - start
    rate = arguments.count / seconds
    print(json.dumps({"images": arguments.count, "seconds": round(seconds, 2), "images_per_second": round(rate, 2)}))


if __name__ == "__main__":
    main()
