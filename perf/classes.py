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
    table = np.lib.format.open_memmap(folder / "logits.npy", "w+", np.float16, (images, classes))
    labels = np.arange(images) % classes
    for start in range(0, images, ROWS):
        rows = labels[start : start + ROWS]
        block = rng.standard_normal((len(rows), classes), np.float32)
        block[np.arange(len(rows)), rows] += 3
        table[start : start + ROWS] = block
    table.flush()
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
