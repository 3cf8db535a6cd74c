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
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SECONDS = 300
_TOKENIZER = ["--tokenizer", "{data}/towers/minilm_l6_v2"]
_TEST_CAPTIONS = ["--captions", "{data}/coco/captions_test.json"]
_INPUT = ["input_rate.py", *_TOKENIZER, "--workers", "2", "--rounds", "3"]
_OPEN_CLIP = ["--beside", "{beside}"]

# Name: the script's arguments, `{data}` the folder of real data and `{beside}` that of open_clip. Sizes are such that
# all take under half an hour on two idle cores; the largest ranking takes a third of it.
ENTRIES = {
    "cold_start": ["cold_start.py"],
    "input_small": [*_INPUT, "--images", "{data}/coco/images", "--captions", "{data}/coco/captions_train.json"],
    "input_published_size": [*_INPUT, "--images", "{data}/coco/originals", *_TEST_CAPTIONS, "--most", "512", "--count",
                             "512", "--batch-size", "128"],
    "influence_table": ["influence_table.py", "--captions", "200000"],
    "image_tower": ["towers.py", "images"],
    "text_tower": ["towers.py", "captions", *_TEST_CAPTIONS, "--count", "1000"],
    "text_open_clip": ["towers.py", "captions-open-clip", *_TEST_CAPTIONS, *_OPEN_CLIP, "--count", "500",
                       "--reference-count", "128"],
    "files_to_vectors": ["towers.py", "files", "--images", "{data}/coco/originals", *_OPEN_CLIP],
    "recipes": ["recipes.py", "--pairs", "8", "--rounds", "3"],
    "loss": ["loss.py", "--pairs", "8192", "--repeats", "3", "--strategies", "all_gather,torch", "--memory"],
    "ranking": ["ranking.py"],
    # Time and memory of 1, 2, 4 and 8 times the work.
    **{f"ranking_{times}": ["ranking.py", "--images", "5000", "--captions", str(25_000 * times), "--once",
                            "0.5"] for times in (1, 2, 4, 8)},
    "ranking_large": ["ranking.py", "--images", "100000", "--captions", "500000", "--once", "0.05"],
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
            write(arguments.out, found)
            print(name, json.dumps(found[name]), flush=True)


def measured(words: list[str], places: dict[str, str], seconds: int) -> dict:
    """The figures of one entry, or why there are none. Its command names no place of this machine."""
    script, *options = [each.format(**places) for each in words]
    command, start = [sys.executable, str(HERE / script), *options], time.perf_counter()
    told = [each.format(data="DATA", beside="BESIDE") for each in words[1:]]
    about = {"command": " ".join(["python", f"perf/{words[0]}", *told])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {**about, "failed": f"longer than {seconds} seconds"}
    if done.returncode:
        return {**about, "failed": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "cpu": cpu_name()}
    figures = json.loads(done.stdout[[found.start() for found in re.finditer(r"^\{", done.stdout, re.M)][-1] :])
    return {**about, "seconds": round(time.perf_counter() - start, 1), "machine": machine, "figures": figures}


def cpu_name() -> str:
    """The processor, as Linux names it."""
    if Path("/proc/cpuinfo").is_file():
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def write(path: Path, found: dict) -> None:
    """By rename: an interrupted run leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(found, indent=2) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()
