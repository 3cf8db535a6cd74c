"""Run the measurements of this folder, each in a process of its own, and keep their figures in one JSON file.

    python perf/run_all.py --data DATA --out build/perf.json          or `make perf DATA=...`
    python perf/run_all.py --data DATA --out build/perf.json --only ranking,loss --again

An entry is done once; the same command goes on with those that are missing, or that failed or took too long. The file
is `{name: {"command", "seconds", "machine", "figures"} or {"command", "failed"}}`, written after every entry.
"""

import argparse
import json
import os
import platform
import re
import time
from pathlib import Path

import measuring

from rococo_jax.storage import write_json

_SECONDS = 300
_INPUT = "input_rate.py --tokenizer {data}/towers/minilm_l6_v2 --workers 2 --rounds 3"
_TEST_CAPTIONS = "--captions {data}/coco/captions_test.json"

# Name: the script and its arguments, `{data}` the folder of real data and `{beside}` that of open_clip. Sizes are such
# that all take under half an hour on two idle cores; the largest ranking takes a third of it.
ENTRIES = {
    "cold_start": "cold_start.py",
    "input_small": f"{_INPUT} --images {{data}}/coco/images --captions {{data}}/coco/captions_train.json",
    "input_published_size": f"{_INPUT} --images {{data}}/coco/originals {_TEST_CAPTIONS} --most 512 --count 512 "
                            "--batch-size 128",
    "image_tower": "towers.py images",
    "text_tower": f"towers.py captions {_TEST_CAPTIONS} --count 1000",
    "text_open_clip": f"towers.py captions-open-clip {_TEST_CAPTIONS} --beside {{beside}} --count 500 "
                      "--reference-count 128",
    "files_to_vectors": "towers.py files --images {data}/coco/originals --beside {beside}",
    "loss": "loss.py --pairs 8192 --repeats 3 --strategies all_gather,torch --memory",
    "ranking": "ranking.py",
    # Time and memory of 1, 2, 4 and 8 times the work.
    **{f"ranking_{times}": f"ranking.py --images 5000 --captions {25_000 * times} --once 0.5"
       for times in (1, 2, 4, 8)},
    "ranking_large": "ranking.py --images 100000 --captions 500000 --once 0.05",
}  # fmt: skip
LONGEST = "ranking_large"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="real data: coco, towers")
    parser.add_argument("--out", type=Path, default=Path("build/perf.json"))
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    parser.add_argument("--again", action="store_true", help="measure entries that are done, too")
    parser.add_argument("--beside", default="", metavar="DIR", help="where open_clip is (`measuring.py`)")
    parser.add_argument(
        "--seconds", type=int, default=_SECONDS, help="at most for an entry (five times for the longest)"
    )
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name] or list(ENTRIES)
    unknown = sorted(set(chosen) - ENTRIES.keys())
    if unknown:
        raise SystemExit(f"--only: found {unknown[0]!r}; wanted of {', '.join(ENTRIES)}")
    found = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    for name in chosen:
        if "figures" not in found.get(name, {}) or arguments.again:
            places = {"data": arguments.data, "beside": arguments.beside}
            seconds = arguments.seconds * (5 if name == LONGEST else 1)
            found[name] = measured(ENTRIES[name], places, seconds)
            write_json(arguments.out, found)
            print(name, json.dumps(found[name]), flush=True)


def measured(line: str, places: dict[str, str], seconds: int) -> dict:
    """The figures of one entry, or why there are none. Its command names no place of this machine."""
    script, *options = [word.format(**places) for word in line.split()]
    about, start = {"command": f"python perf/{line.format(data='DATA', beside='BESIDE')}"}, time.perf_counter()
    try:
        figures = measuring.printed([str(measuring.HERE / script), *options], seconds)
    except measuring.NoFigures as error:
        return {**about, "failed": str(error)}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "cpu": cpu_name()}
    return {**about, "seconds": round(time.perf_counter() - start, 1), "machine": machine, "figures": figures}


def cpu_name() -> str:
    """The processor, as Linux names it."""
    if Path("/proc/cpuinfo").is_file():
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if names:
            return names[0]
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
