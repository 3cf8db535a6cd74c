"""`journal.jsonl`, in the folder of the results or above it: what happened to each model, and when.

The time at which results were computed is here, and not in `results.json`, because equal results have equal bytes.
"""

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rococo_jax.errors import object_of

JOURNAL = "journal.jsonl"


def write_journal(path: Path, **entry: Any) -> None:
    """Append a line. Short lines appended by several processes do not interleave."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def journal_entries(path: Path, results: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries on the model of a results file; lines that are cut short or something else are skipped."""
    folder = path.resolve().parent
    for journal in (folder.parent / JOURNAL, folder / JOURNAL):
        lines = journal.read_text(encoding="utf-8", errors="replace").splitlines() if journal.is_file() else ()
        for line in lines:
            with contextlib.suppress(ValueError):
                entry = object_of(json.loads(line))
                if entry.get("model") == results["model"]:
                    yield entry


def evaluation_time(path: Path, results: Mapping[str, Any]) -> datetime.datetime:
    """Return when the model of a results file was last evaluated, in UTC.

    Without a journal it is the time of the last change of the file, which copies and downloads may not keep.
    """
    times = []
    for entry in journal_entries(path, results):
        with contextlib.suppress(ValueError):
            if entry.get("event") == "evaluated":
                times.append(datetime.datetime.fromisoformat(str(entry.get("time"))).astimezone(datetime.UTC))
    changed = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.UTC)
    return max(times, default=changed)
