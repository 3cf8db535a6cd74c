"""Time and memory of `rococo score --logits` on many images and classes: python perf/classes.py [IMAGES] [CLASSES]

Writes a file of random logits (float16, block by block), scores it in a fresh process, and prints seconds and the peak
of resident memory. 1,000,000 x 1,000 takes 2 GB of disk.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS = 10_000


def write(folder: Path, images: int, classes: int) -> None:
    """Logits that are often right, and their labels."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    # Written and not mapped: a child's peak as the system counts it begins with that of its parent.
    with (folder / "logits.npy").open("wb") as file:
        head = {"descr": "<f2", "fortran_order": False, "shape": (images, classes)}
        np.lib.format.write_array_header_1_0(file, head)
        for start in range(0, images, ROWS):
            rows = labels[start : start + ROWS]
            block = rng.standard_normal((len(rows), classes), np.float32)
            block[np.arange(len(rows)), rows] += 3
            file.write(block.astype("<f2").tobytes())
    np.save(folder / "labels.npy", labels)


def main() -> None:
    """Prints one line."""
    images, classes = (int(each) for each in (*sys.argv[1:], *("1000000", "1000")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        write(folder, images, classes)
        command = [sys.executable, "-m", "rococo_jax", "score", "--logits", str(folder / "logits.npy"), "--labels",
                   str(folder / "labels.npy"), "--out", str(folder / "r.json")]  # fmt: skip
        started = time.time()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        print(f"{images:,} x {classes:,}: {time.time() - started:.1f} s, peak {peak:,.0f} MB")


if __name__ == "__main__":
    main()
