"""Damage files at random for a given time, one reader after the other, and check that each reader refuses them.

    python tools/fuzz.py                                 an hour for each reader
    python tools/fuzz.py --minutes 5 tars images         five minutes for each of two readers
    python tools/fuzz.py --table                         results so far

A case is a test of `tests/faults/test_fuzz*.py`: it damages one kind of file and reads it as a command would. The cases
of a reader share its minutes. A case fails if an error is not a refusal in one line, a read takes more than ten
seconds, or memory exceeds 2 GB. Every case adds a line to --out; the same command resumes after an interruption, with
other damage. The exit code is 1 if a case failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
TESTS = ("tests/faults/test_fuzz.py", "tests/faults/test_fuzz_data.py")
# Patterns of the names of each reader's cases; the first that matches counts.
READERS = {
    "lines": r"\[(captions as JSON lines|influence table|hard positives|labels as a table|training images)\]",
    "arrays": r"\[(\.npy|\.npz|logits|logits as \.npy|labels|embeddings)\]",
    "safetensors": r"\[safetensors\]",
    "torch archives": r"\[\.pt\]|pickle_of_any_bytes",
    "models": r"\[(model\.json|config\.json|preprocessor_config\.json|tokenizer_config\.json|tokenizer\.json)\]",
    "tars": r"\[tar\]",
    "tables": r"\[(hits of a run|examples|embeddings as a table)\]",
    "images": r"\[(PNG|JPEG)\]",
    "annotations": r"test_(damaged|changed)_",
}


def cases_of_readers() -> dict[str, list[str]]:
    """Return the tests of each reader; every test that damages files belongs to one."""
    listed = _pytest(["--collect-only", "-q", *TESTS], capture_output=True, text=True, check=True).stdout
    cases: dict[str, list[str]] = {name: [] for name in READERS}
    for case in re.findall(r"^tests/\S+::.*$", listed, re.MULTILINE):
        reader = next((name for name, pattern in READERS.items() if re.search(pattern, case)), None)
        if reader is not None:
            cases[reader].append(case)
    return cases


def read_totals(path: Path) -> dict[str, dict[str, int]]:
    """Return seconds, examples and peak megabytes of each case over all runs in the file."""
    total: dict[str, dict[str, int]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        case_total = total.setdefault(row["case"], {"seconds": 0, "examples": 0, "peak_megabytes": 0})
        for key in ("seconds", "examples"):
            case_total[key] += row[key]
        case_total["peak_megabytes"] = max(case_total["peak_megabytes"], row["peak_megabytes"])
    return total


def fuzz(cases: list[str], minutes: float, out: Path) -> bool:
    """Run each case for its share of the remaining minutes, and return whether all passed."""
    passed, totals = True, read_totals(out)
    for case in cases:
        remaining = minutes * 60 / len(cases) - totals.get(case, {"seconds": 0})["seconds"]
        if remaining > 1:
            settings = {"ROCOCO_FUZZ": "100", "ROCOCO_FUZZ_SECONDS": str(remaining), "ROCOCO_FUZZ_LOG": str(out)}
            passed &= _pytest(["-q", "--no-header", case], env={**os.environ, **settings}).returncode == 0
    return passed


def print_table(out: Path, cases: dict[str, list[str]]) -> None:
    """Print minutes, examples and peak memory of every reader."""
    total = read_totals(out)
    print(f"{'reader':16}{'cases':>6}{'minutes':>9}{'examples':>10}{'peak MB':>9}")
    for reader, names in cases.items():
        rows = [total[name] for name in names if name in total]
        minutes, examples = (sum(row[key] for row in rows) for key in ("seconds", "examples"))
        peak = max((row["peak_megabytes"] for row in rows), default=0)
        print(f"{reader:16}{len(rows):>6}{minutes / 60:>9.1f}{examples:>10,}{peak:>9,}")


def _pytest(arguments: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=CHECKOUT, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"{', '.join(READERS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=60, help="for each reader")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "fuzz.jsonl")
    parser.add_argument("--table", action="store_true", help="print the results so far, run nothing")
    options = parser.parse_args()
    if wrong := set(options.readers) - set(READERS):
        parser.error(f"no reader {sorted(wrong)}: {', '.join(READERS)}")
    cases, out = cases_of_readers(), options.out.resolve()
    passed = True
    if not options.table:
        out.parent.mkdir(parents=True, exist_ok=True)
        for reader in options.readers or READERS:
            passed &= fuzz(cases[reader], options.minutes, out)
    print_table(out, cases)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
