"""Kill processes that make files from files forty times; the next opening is right and leaves nothing over.

    python experiments/kill_remembered.py [--kills 40] [--seed 0]

Each process opens tars (indexes), a Parquet file with images (a copy), an influence table (a map) and images (a table
of hashes) with one cache folder, and is stopped by SIGKILL after a random time. Then one more process opens all of
them: what it reads is compared with the sources, and the folders must contain no temporary file and no lock.
"""

import argparse
import hashlib
import io
import json
import os
import random
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from rococo_jax.data import content_hashes
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.perturb.text.influence_table import InfluenceTable

IMAGES = 300


def write_sources(folder: Path) -> list[bytes]:
    """Write a tar in each of eight files, a table, images and an influence table; return the images."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(IMAGES):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(file, "PNG")
        images.append(file.getvalue())
    (folder / "photos").mkdir(parents=True)
    for number, image in enumerate(images):
        (folder / "photos" / f"{number}.png").write_bytes(image)
        (folder / "photos" / f"{number}.txt").write_text(f"a dog {number}")
    for tar_number in range(8):
        with tarfile.open(folder / f"{tar_number}.tar", "w") as tar:
            for number in range(tar_number, IMAGES, 8):
                for suffix, data in (("png", images[number]), ("txt", f"a dog {number}".encode())):
                    member = tarfile.TarInfo(f"{number:05}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    names = [f"{number}.png" for number in range(IMAGES)]
    captions = [f"a dog {number}" for number in range(IMAGES)]
    cells = [{"bytes": image, "path": name} for image, name in zip(images, names, strict=True)]
    pyarrow.parquet.write_table(pa.table({"image": cells, "caption": captions}), folder / "t.parquet", row_group_size=9)
    lines = [
        {"image": name, "caption": caption, "words": caption.split(), "influence": [0.25, 0.5, number / 1000]}
        for number, (name, caption) in enumerate(zip(names, captions, strict=True))
    ]
    (folder / "influence.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return images


def open_all(folder: Path, images: list[bytes]) -> None:
    """Open every source and compare it with what was written."""
    content_hashes._BYTES_WORTH_SAVING = 0
    tars = open_pairs(f"{folder}/{{0..7}}.tar")
    order = [number for tar_number in range(8) for number in range(tar_number, IMAGES, 8)]
    assert [tars[row].image for row in range(IMAGES)] == [images[number] for number in order]
    assert [tars.captioned(row).captions[0] for row in range(IMAGES)] == [f"a dog {number}" for number in order]
    table = open_pairs(f"{folder}/t.parquet")
    assert [table[row].image for row in range(IMAGES)] == images
    photos = open_pairs(f"{folder}/photos")
    wanted = {f"{number}.png": hashlib.sha256(image).hexdigest() for number, image in enumerate(images)}
    assert dict(zip(photos.names, photos.image_hashes(), strict=True)) == wanted
    influence = InfluenceTable(folder / "influence.jsonl")
    assert [influence[f"a dog {number}"][2] for number in range(IMAGES)] == [
        np.float32(number / 1000) for number in range(IMAGES)
    ]


def remove_some(folder: Path, cache: Path, rng: random.Random) -> None:
    """Remove some of the files that were made, so that the next process makes them."""
    for path in (*folder.glob(".*"), *cache.rglob("*")):
        if path.is_file() and not path.name.endswith((".part", ".lock")) and rng.random() < 0.5:
            path.unlink()


def run(folder: Path, images: list[bytes]) -> int:
    """Open all in a child process; return its id."""
    process = os.fork()
    if process == 0:
        try:
            sys.stderr = io.StringIO()
            open_all(folder, images)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}"[:300], flush=True)
            os._exit(1)
    return process


def main() -> int:
    """Kill, open, compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as root:
        folder, cache = Path(root) / "data", Path(root) / "cache"
        os.environ["ROCOCO_CACHE"] = str(cache)
        images = write_sources(folder)
        start = time.monotonic()
        assert os.waitpid(run(folder, images), 0)[1] == 0
        seconds = time.monotonic() - start
        leftovers = 0
        for _ in range(options.kills):
            remove_some(folder, cache, rng)
            process = run(folder, images)
            time.sleep(rng.random() * seconds)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            leftovers += len(left_over(folder, cache))
        failed = os.waitpid(run(folder, images), 0)[1] != 0
        rest = left_over(folder, cache)
        print(f"{options.kills} kills, {leftovers} leftovers seen after them; the next opening: ", end="")
        print("wrong" if failed else "all right", f"and {len(rest)} files left over {[path.name for path in rest]}")
    return int(failed or bool(rest))


def left_over(folder: Path, cache: Path) -> list[Path]:
    """Return temporary files and locks."""
    return [path for path in (*folder.glob(".*"), *cache.rglob("*")) if path.name.endswith((".part", ".lock"))]


if __name__ == "__main__":
    sys.exit(main())
