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
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SECONDS = 300

# Name: the script's arguments, `{data}` the folder of real data. Sizes are such that all take under half an hour on two
# idle cores.
ENTRIES = {
    "cold_start": ["cold_start.py"],
    "input_small": ["input_rate.py", "--images", "{data}/coco/images", "--captions", "{data}/coco/captions_train.json",
                    "--tokenizer", "{data}/towers/minilm_l6_v2", "--most", "1024", "--count", "1024", "--rounds", "2"],
    "input_published_size": ["input_rate.py", "--images", "{data}/coco/originals", "--captions",
                             "{data}/coco/captions_test.json", "--tokenizer", "{data}/towers/minilm_l6_v2", "--most",
                             "512", "--count", "512", "--rounds", "2", "--batch-size", "128"],
    "influence_table": ["influence_table.py", "--captions", "200000"],
    "image_tower": ["image_tower.py"],
    "text_tower": ["text_tower.py", "--captions", "{data}/coco/captions_test.json", "--count", "1000"],
    "recipes": ["recipes.py"],
    "loss": ["loss.py", "--pairs", "4096", "--repeats", "3"],
    # Time and memory of 1, 2, 4 and 8 times the work.
    **{f"ranking_{times}": ["ranking.py", "--images", str(1250 * times), "--captions", str(12_500 * times)]
       for times in (1, 2, 4, 8)},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="real data: coco, towers")
    parser.add_argument("--out", type=Path, default=Path("build/perf.json"))
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    parser.add_argument("--again", action="store_true", help="measure entries that are done, too")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help="at most for an entry")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name] or list(ENTRIES)
    unknown = sorted(set(chosen) - ENTRIES.keys())
    if unknown:
        raise SystemExit(f"--only: found {unknown[0]!r}; wanted of {', '.join(ENTRIES)}")
    found = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    for name in chosen:
        if "figures" not in found.get(name, {}) or arguments.again:
            found[name] = measured([each.format(data=arguments.data) for each in ENTRIES[name]], arguments.seconds)
            write(arguments.out, found)
            print(name, json.dumps(found[name]), flush=True)


def measured(words: list[str], seconds: int) -> dict:
    """The figures of one entry, or why there are none."""
    command, start = [sys.executable, str(HERE / words[0]), *words[1:]], time.perf_counter()
    about = {"command": " ".join(["python", f"perf/{words[0]}", *words[1:]])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {**about, "failed": f"longer than {seconds} seconds"}
    if done.returncode:
        return {**about, "failed": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}
    machine = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0], "cpu": platform.processor()}
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    return {**about, "seconds": round(time.perf_counter() - start, 1), "machine": machine, "figures": figures}


def write(path: Path, found: dict) -> None:
    """By rename: an interrupted run leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(found, indent=2) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()
