"""Time the training input on folders, ArrayRecord shards and tars; print one JSON object.

    python perf/input_rate.py --images coco/images --captions captions_train.json --tokenizer towers/minilm_l6_v2

The same images lie as files, shards and tars; `bare` decodes and resizes the files in a pool of as many processes and
throws the pixels away, the rate that nothing in this language exceeds. `webdataset` is that library's reader on the
same tar, decoding and resizing alike in a torch DataLoader of as many workers, as open_clip does it, batched without
texts; left out where it is not installed. Kinds take turns in every round, after a warm-up that starts the workers;
rates are medians, a `ratio` the median over rounds of a rate over that of `bare`. `held` is what workers hold at the
end: of shared memory, and of memory of their own (Linux). `of_64_cores` is the rate a worker times 64: what a host
would reach whose disk, main process and memory keep up.
"""

import argparse
import io
import json
import multiprocessing
import os
import shutil
import statistics
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from rococo_jax.data.array_record import pack_pairs
from rococo_jax.data.pairs import open_pairs
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.shard_order import ShardOrder
from rococo_jax.data.tokenizers import read_huggingface_tokenizer
from rococo_jax.data.training_input import make_training_input


def prepared(side: int) -> Preprocessing:
    """Resizing and centre crop, bicubic, as CLIP's."""
    return Preprocessing(shortest_edge=side, crop_size=(side, side), resample="bicubic")


def decode(of: tuple[str, int]) -> None:
    """One file, as the bare pool does it."""
    path, side = of
    with Image.open(path) as opened:
        prepared(side).resize(opened.convert("RGB"))


def time_bare(paths: list[str], side: int, workers: int, count: int) -> float:
    work = [(paths[number % len(paths)], side) for number in range(count)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(decode, work[: 32 * workers], chunksize=8)
        start = time.perf_counter()
        for _ in pool.imap_unordered(decode, work, chunksize=16):
            pass
        return count / (time.perf_counter() - start)


def time_ours(source, side: int, workers: int, count: int, batch_size: int, tokenizer, order) -> tuple[float, dict]:
    made = make_training_input(
        source, preprocessing=prepared(side), tokenizer=tokenizer, batch_size=batch_size, seed=0, workers=workers,
        text_length=32, order=order,
    )  # fmt: skip
    batches = max(1, count // batch_size)
    with made:
        for _ in range(4):  # what was made while the workers started is used up
            next(made)
        start = time.perf_counter()
        for _ in range(batches):
            next(made)
        seconds = time.perf_counter() - start
        held = {"shared_bytes": shutil.disk_usage("/dev/shm").used, "worker_bytes": worker_bytes()}
    return batches * batch_size / seconds, held


def worker_bytes() -> int:
    """Memory of its own that the largest child process holds."""
    found = [0]
    for child in multiprocessing.active_children():
        lines = Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines()
        found.append(1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")))
    return max(found)


def time_webdataset(tar: str, side: int, workers: int, count: int, batch_size: int) -> float | None:
    try:
        import torch
        import webdataset
    except ImportError:
        return None
    data = webdataset.WebDataset([tar] * workers, shardshuffle=False, nodesplitter=None)
    data = data.shuffle(1000, initial=1000).map(Decode(side)).batched(batch_size)
    batches, loader = (
        max(1, count // batch_size),
        torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers),
    )
    seen, start = 0, None
    while True:
        for batch in loader:
            if start is None:
                start = time.perf_counter()  # after the first batch, which fills the shuffle buffer
                continue
            seen += len(batch)
            if seen >= batches * batch_size:
                return seen / (time.perf_counter() - start)


class Decode:
    """A sample's pixels."""

    def __init__(self, side: int):
        self.side = side

    def __call__(self, sample: dict) -> np.ndarray:
        with Image.open(io.BytesIO(sample["jpg"])) as opened:
            return prepared(self.side).resize(opened.convert("RGB"))


def write_forms(source, folder: Path, shorter: int | None) -> dict[str, str]:
    """The images as files, shards and one tar, resized to a shorter side where one is given."""
    files = folder / "files"
    files.mkdir(parents=True)
    items = []
    for number in range(len(source)):
        sample = source[number]
        image = sample.open().convert("RGB")
        if shorter is not None:
            scale = shorter / min(image.size)
            size = tuple(max(shorter, round(each * scale)) for each in image.size)
            image = image.resize(size, Image.Resampling.BICUBIC)
            image.save(files / f"{number:06}.jpg", quality=90)
        else:
            shutil.copy(sample.image, files / f"{number:06}.jpg")
        items.append({"image": f"{number:06}.jpg", "caption": list(sample.captions[:1])})
    (folder / "captions.json").write_text(json.dumps(items))
    pairs = open_pairs(str(files), str(folder / "captions.json"))
    pack_pairs(pairs, folder / "shards", shards=4)
    with tarfile.open(folder / "all.tar", "w") as tar:
        for item in items:
            tar.add(files / item["image"], arcname=item["image"])
            text = item["caption"][0].encode()
            member = tarfile.TarInfo(item["image"].replace("jpg", "txt"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return {"folder": str(files), "array_record": str(folder / "shards"), "tar": str(folder / "all.tar")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--captions", required=True)
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER", help="a Hugging Face folder of a text tower")
    parser.add_argument("--shorter-side", type=int, help="resize the images first; as they are by default")
    parser.add_argument("--side", type=int, default=224, help="pixels that the tower reads")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--count", type=int, default=2048, help="images a round")
    parser.add_argument("--most", type=int, default=2000, help="images that are used, some again where there are fewer")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    whole = open_pairs(arguments.images, arguments.captions, allow_missing=True)
    source = [whole[number % len(whole)] for number in range(arguments.most)]
    config = json.loads((Path(arguments.tokenizer) / "config.json").read_text())
    tokenizer = read_huggingface_tokenizer(arguments.tokenizer, config)
    results = {"side": arguments.side, "shorter_side": arguments.shorter_side, "images": len(source)}
    with tempfile.TemporaryDirectory() as folder:
        forms = write_forms(source, Path(folder) / "data", arguments.shorter_side)
        sources = {"folder": open_pairs(forms["folder"], str(Path(folder) / "data" / "captions.json"))}
        sources |= {name: open_pairs(forms[name]) for name in ("array_record", "tar")}
        kinds = {name: (each, None) for name, each in sources.items()}
        kinds["tar, by shards"] = sources["tar"], ShardOrder(sources["tar"].shards, arguments.batch_size, 0)
        paths = list(sources["folder"].paths)
        for workers in map(int, arguments.workers.split(",")):
            rates, held = {"bare": []}, {}
            for _ in range(arguments.rounds):
                rates["bare"].append(time_bare(paths, arguments.side, workers, arguments.count))
                for name, (each, order) in kinds.items():
                    rate, held[name] = time_ours(
                        each, arguments.side, workers, arguments.count, arguments.batch_size, tokenizer, order
                    )
                    rates.setdefault(name, []).append(rate)
                of_library = time_webdataset(
                    forms["tar"], arguments.side, workers, arguments.count, arguments.batch_size
                )
                if of_library:
                    rates.setdefault("webdataset", []).append(of_library)
            results[f"{workers} workers"] = {
                name: {
                    "images_per_second": round(statistics.median(each), 1),
                    "ratio": round(statistics.median(a / b for a, b in zip(each, rates["bare"], strict=True)), 3),
                    "of_64_cores": round(64 * statistics.median(each) / workers),
                    **({"held": held[name]} if name in held else {}),
                }
                for name, each in rates.items()
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
