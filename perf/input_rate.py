"""Time the training input on folders and tars; print one JSON object.

    python perf/input_rate.py --images coco/images --captions captions_train.json --tokenizer towers/minilm_l6_v2

The same images are read from files and from tars. The kinds of input are

    bare         a pool of the same number of processes that decodes and resizes the files to the same pixels (checked)
                 and discards them: an upper bound of the rate in Python
    folder, tar  the training input, which also shuffles, selects a caption, tokenises it and collects batches in the
                 main process
    table        the training input on a Parquet table that contains the images
    ... draft    the same with `data.decode=draft`
    threads      the same on the folder, with threads of one process
    webdataset   that library's reader on the same tar with the same decoding in a torch DataLoader, as in open_clip,
                 without texts; only if it is installed

Kinds alternate in every round, after a warm-up that starts the workers. Rates are medians; `ratio` is the median over
rounds of a rate over that of `bare`, and `ratios` its range. `held` is the workers' memory at the end: shared memory,
and private memory (Linux). `processor_us` is the processor time of all processes for an image, and `processor_ratio`
that of `bare` divided by it: the ratio on an idle machine whose main process shares the workers' cores. `of_64_cores`
is the rate of one worker times 64: the rate of a host whose disk, main process and memory are fast enough.

`--main-thread ROWS` measures only the seconds that the main thread computes for a batch of that many rows, with images
that take almost no time to decode. During that time it cannot start training steps. Waiting does not count.
"""

import io
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from rococo_jax.cores import usable_cores
from rococo_jax.data.captioned_images import open_pairs
from rococo_jax.data.packing import pack_pairs
from rococo_jax.data.pair_source import PairSample, PairSource
from rococo_jax.data.pictures import open_image
from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.tokenizer_files import read_huggingface_tokenizer
from rococo_jax.data.tokenizers import Tokenizer
from rococo_jax.data.training_input import make_training_input
from rococo_jax.data.training_samples import DrawSample


def prepared(side: int) -> Preprocessing:
    """Return bicubic resizing and a centre crop, as CLIP's."""
    return Preprocessing(shortest_edge=side, crop_size=(side, side), resample="bicubic")


def decode(of: tuple[str, int]) -> np.ndarray:
    """Decode one file without this project."""
    path, side = of
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    size = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, upper = (image.width - side) // 2, (image.height - side) // 2
    return np.array(image.crop((left, upper, left + side, upper + side)))


def decode_only(of: tuple[str, int]) -> None:
    decode(of)


class Timed:
    """Measures rate and processor time of a `with` block on `count` images, child processes included (Linux)."""

    def __init__(self, count: int):
        self.count = count

    def __enter__(self) -> "Timed":
        self.rate, self.processor = -time.perf_counter(), -processor_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.rate = self.count / (self.rate + time.perf_counter())
        self.processor = 1e6 * (self.processor + processor_seconds()) / self.count


def processor_seconds() -> float:
    """Return the processor seconds of this process and its running children."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def time_bare(paths: list[str], side: int, workers: int, count: int) -> Timed:
    work = [(paths[number % len(paths)], side) for number in range(count)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(decode_only, work[: 32 * workers], chunksize=8)
        with Timed(count) as timed:
            for _ in pool.imap_unordered(decode_only, work, chunksize=16):
                pass
        return timed


def time_ours(source, workers: int, side: int, count: int, batch_size: int, **options) -> tuple[Timed, dict]:
    order = options.pop("order", None) or SampleOrder(len(source), batch_size, 0)
    draw = DrawSample(source, order, prepared(side), decode=options.pop("decode", "exact"))
    training_input = make_training_input(draw, workers=workers, text_length=32, **options)
    batches = max(1, count // batch_size)
    with training_input:
        for _ in range(4):  # use up the batches that were made while the workers started
            next(training_input)
        with Timed(batches * batch_size) as timed:
            for _ in range(batches):
                batch = next(training_input)
        memory = {"shared_bytes": shutil.disk_usage("/dev/shm").used, "worker_bytes": worker_bytes()}
    assert batch["skipped_images"] == 0 and batch["ids"].any()
    return timed, memory


class SmallImages(PairSource):
    """Source of many images with sides of 8 pixels."""

    def __init__(self, count: int):
        self.count, file = count, io.BytesIO()
        Image.new("RGB", (8, 8), (200, 100, 50)).save(file, "PNG")
        self.file = file.getvalue()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> PairSample:
        return PairSample(self.file, str(index), ("a red dog",))

    def hash(self) -> str:
        return "small images"


def main_thread_seconds(rows: int, workers: int, side: int, batches: int, tokenizer: Tokenizer) -> dict:
    """Return processor seconds of the main thread and wall seconds of a batch, after two batches."""
    preprocessing = Preprocessing(exact_size=(side, side), resample="nearest")
    draw = DrawSample(SmallImages(2 * rows), SampleOrder(2 * rows, rows, 0), preprocessing)
    seconds, start = [], 0.0
    with make_training_input(draw, tokenizer, text_length=16, workers=workers, prefetch=0) as training_input:
        for number in range(batches + 2):
            start = time.perf_counter() if number == 2 else start
            thread_start = time.thread_time()
            next(training_input)
            seconds.append(time.thread_time() - thread_start)
        clock = (time.perf_counter() - start) / batches
    batch_seconds = [round(each, 4) for each in seconds[2:]]
    return {"rows": rows, "side": side, "main_thread_seconds": batch_seconds, "seconds": round(clock, 2)}


def check_same_pixels(source, side: int) -> None:
    """Raise SystemExit if the two sides produce different pixels."""
    for path in source.paths[:: max(1, len(source) // 100)]:
        if not np.array_equal(decode((path, side)), prepared(side).resize(open_image(path))):
            raise SystemExit(f"{path}: found different pixels in the two loops")


def worker_bytes() -> int:
    """Return the private memory of the largest child process."""
    sizes = [0]
    for child in multiprocessing.active_children():
        lines = Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines()
        sizes.append(1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")))
    return max(sizes)


def time_webdataset(tar: str, workers: int, side: int, count: int, batch_size: int) -> Timed | None:
    try:
        import torch
        import webdataset
    except ImportError:
        return None
    data = webdataset.WebDataset([tar] * workers, shardshuffle=False, nodesplitter=None)
    data = data.shuffle(1000, initial=1000).map(Decode(side)).batched(batch_size)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)  # fills the shuffle buffer
    batch_count = max(1, count // batch_size)
    with Timed(batch_count * batch_size) as timed:
        for _ in range(batch_count):
            next(batches)
    return timed


class Decode:
    """Decodes the image of a sample."""

    def __init__(self, side: int):
        self.side = side

    def __call__(self, sample: dict) -> np.ndarray:
        with Image.open(io.BytesIO(sample["jpg"])) as opened:
            return prepared(self.side).resize(opened.convert("RGB"))


def write_forms(source, folder: Path) -> dict[str, str]:
    """Write the images as files, as one tar and as a table, and return the paths."""
    files = folder / "files"
    files.mkdir(parents=True)
    items = []
    for number, sample in enumerate(source):
        shutil.copy(sample.image, files / f"{number:06}.jpg")
        items.append({"image": f"{number:06}.jpg", "caption": list(sample.captions[:1])})
    (folder / "captions.json").write_text(json.dumps(items))
    pairs = open_pairs(str(files), str(folder / "captions.json"))
    (tar,) = pack_pairs(pairs, folder / "tars", shards=1).pairs.tars
    images = [(files / item["image"]).read_bytes() for item in items]
    table = pa.table({"image": images, "caption": [item["caption"][0] for item in items]})
    pq.write_table(table, folder / "table.parquet", row_group_size=100)
    return {"folder": str(files), "tar": tar, "table": str(folder / "table.parquet")}


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--images")
    parser.add_argument("--captions")
    parser.add_argument("--tokenizer", required=True, metavar="FOLDER", help="a Hugging Face folder of a text tower")
    parser.add_argument("--side", type=int, default=224, help="pixels that the tower reads")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--count", type=int, default=2048, help="images a round")
    parser.add_argument("--most", type=int, default=2000, help="number of different images; fewer are repeated")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", help="of the training input, with commas between them; all by default")
    parser.add_argument("--main-thread", type=int, metavar="ROWS", help="measure the main thread for a batch alone")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    config = json.loads((Path(arguments.tokenizer) / "config.json").read_text())
    tokenizer = read_huggingface_tokenizer(arguments.tokenizer, config)
    if arguments.main_thread:
        workers = int(arguments.workers.split(",")[-1])
        size = (arguments.main_thread, workers, arguments.side, arguments.rounds)
        print(json.dumps(main_thread_seconds(*size, tokenizer)))
        return
    pairs = open_pairs(arguments.images, arguments.captions, allow_missing=True)
    source = [pairs[number % len(pairs)] for number in range(arguments.most)]
    results = {"side": arguments.side, "images": len(source)}
    with tempfile.TemporaryDirectory() as folder:
        forms = write_forms(source, Path(folder) / "data")
        sources = {"folder": open_pairs(forms["folder"], str(Path(folder) / "data" / "captions.json"))}
        check_same_pixels(sources["folder"], arguments.side)
        sources |= {name: open_pairs(forms[name]) for name in ("tar", "table")}
        options = {"tokenizer": tokenizer}
        tar = sources["tar"]
        by_shards = {"order": SampleOrder(len(tar), arguments.batch_size, 0, tar.shards)}
        kinds = {name: (each, {}) for name, each in sources.items()}
        kinds |= {f"{name} draft": (each, {"decode": "draft"}) for name, each in sources.items()}
        kinds |= {"tar by shards": (sources["tar"], by_shards), "threads": (sources["folder"], {})}
        selected = arguments.kinds.split(",") if arguments.kinds else [*kinds, "webdataset"]
        paths = list(sources["folder"].paths)
        size = (arguments.side, arguments.count, arguments.batch_size)
        for workers in map(int, arguments.workers.split(",")):
            timed, memory = {"bare": []}, {}
            for _ in range(arguments.rounds):
                timed["bare"].append(time_bare(paths, arguments.side, workers, arguments.count))
                for name, (each, order) in kinds.items():
                    if name in selected and (name != "threads" or workers == usable_cores()):
                        of_kind = time_ours(each, 0 if name == "threads" else workers, *size, **options, **order)
                        timed.setdefault(name, []).append(of_kind[0])
                        memory[name] = of_kind[1]
                of_library = time_webdataset(forms["tar"], workers, *size) if "webdataset" in selected else None
                if of_library:
                    timed.setdefault("webdataset", []).append(of_library)
            results[f"{workers} workers"] = {
                name: summary(each, timed["bare"], workers) for name, each in timed.items()
            }
            for name, each in memory.items():
                results[f"{workers} workers"][name]["held"] = each
    print(json.dumps(results))


def summary(timed: list[Timed], bare: list[Timed], workers: int) -> dict:
    """Return the medians of one kind, and the range of its ratios."""
    ratios = [each.rate / of_bare.rate for each, of_bare in zip(timed, bare, strict=True)]
    rate, processor, of_bare = (statistics.median(each) for each in (
        [each.rate for each in timed], [each.processor for each in timed], [each.processor for each in bare],
    ))  # fmt: skip
    return {
        "images_per_second": round(rate, 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "processor_us": round(processor, 1),
        "processor_ratio": round(of_bare / processor, 3),
        "of_64_cores": round(64 * rate / workers),
    }


if __name__ == "__main__":
    main()
