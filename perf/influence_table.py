"""Write and read an influence table of many synthetic captions; print one JSON object.

    python perf/influence_table.py --captions 1000000

The influences are drawn, not computed: what is measured is everything around the model. Two processes share the work;
one is killed half-way and the same command goes on. `private_bytes` is what a worker that has looked up 20,000 captions
holds beside one that has not opened the table: memory that no other process can share (Linux's smaps_rollup). Beside
it, the same for the table as a dictionary.
"""

import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np

NOUNS = [f"{a}{b}" for a in "bcdfgmprst" for b in ("ar", "en", "ion", "ola", "uma", "ind", "esk", "ork", "ash", "ell")]


def caption(number: int) -> str:
    """Eleven words, no two captions alike."""
    return " ".join([*(NOUNS[number * step // 7 % len(NOUNS)] for step in range(3, 23, 2)), str(number)])


class Captions:
    """As a source's captions: made when they are read."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        from rococo_jax.data.captions import CaptionedImage

        return (CaptionedImage(f"{number}.jpg", (caption(number),)) for number in range(self.count))


def write(path: str, count: int, port: int, number: int, stop_after: int | None) -> None:
    """One of two processes; prints its peak of memory."""
    os.environ |= {"ROCOCO_COORDINATOR": f"localhost:{port}", "ROCOCO_PROCESSES": "2", "ROCOCO_PROCESS": str(number)}
    os.environ["JAX_PLATFORMS"] = "cpu"
    from rococo_jax.encoders import Encoder
    from rococo_jax.perturb.text import influence_table
    from rococo_jax.processes import distributed_run

    def word_influence(encoder, captions, **choices):
        drawn = np.random.default_rng(0).random((64, 11)).astype(np.float32)
        for text in captions:
            yield drawn[len(text) % 64]

    influence_table.word_influence = word_influence
    encoder = object.__new__(Encoder)
    encoder.describe = lambda: {"name": "none"}
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if stop_after is not None and done > stop_after:
            os._exit(9)

    with distributed_run():
        before = private_bytes()
        left = influence_table.write_influence_table(
            encoder, Captions(count), path, on_progress=advance, captions_at_once=4096
        )
        print(json.dumps({"process": number, "resumed": left, "bytes": private_bytes() - before}), flush=True)


def private_bytes() -> int:
    """Memory that this process shares with none."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) * 1024


def read(path: str, count: int, how: str, answer) -> None:
    """A worker's memory after 20,000 look-ups."""
    from rococo_jax.perturb.text.influence_table import InfluenceTable, read_influence_table

    texts = [caption(number) for number in np.random.default_rng(0).integers(0, count, 20_000).tolist()]
    before = private_bytes()
    table = InfluenceTable(path) if how == "map" else read_influence_table(path)
    start = time.perf_counter()
    for text in texts:
        table[text]
    seconds = time.perf_counter() - start
    answer.put({"private_bytes": private_bytes() - before, "microseconds_a_caption": 1e6 * seconds / len(texts)})


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--captions", type=int, default=1_000_000)
    parser.add_argument("--port", type=int, default=29417)
    arguments = parser.parse_args()
    spawn, count = multiprocessing.get_context("spawn"), arguments.captions
    with tempfile.TemporaryDirectory() as folder:
        path, figures = f"{folder}/influence.jsonl", {"captions": count}
        for turn, stop in enumerate((count // 2, None)):
            start = time.perf_counter()
            runs = [spawn.Process(target=write, args=(path, count, arguments.port + turn, n, stop)) for n in (0, 1)]
            for each in runs:
                each.start()
            for each in runs:
                each.join()
            figures[f"seconds_{'killed' if stop else 'resumed'}"] = round(time.perf_counter() - start, 1)
        figures["table_bytes"] = Path(path).stat().st_size
        for how in ("map", "map again", "dictionary"):
            answer, start = spawn.Queue(), time.perf_counter()
            reader = spawn.Process(target=read, args=(path, count, how.split()[0], answer))
            reader.start()
            figures[how] = answer.get()
            reader.join()
            figures[how]["seconds"] = round(time.perf_counter() - start, 1)
        figures["map_bytes"] = Path(folder, ".influence.jsonl.map").stat().st_size
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
