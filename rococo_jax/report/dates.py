"""The time at which results were computed. `results.json` has none, because equal results have equal bytes."""

import datetime
import json
from pathlib import Path

from rococo_jax.errors import object_of
from rococo_jax.report.collection import Run

_JOURNAL = "journal.jsonl"


def evaluation_time(run: Run) -> datetime.datetime:
    """Return when a model was last evaluated, in UTC.

    The journal of `rococo evaluate`, in the folder of the results or above it, records the time. Without one it is that
    of the last change of the results file, which copies and downloads may not keep.
    """
    folder = run.path.resolve().parent
    times = [time for each in (folder, folder.parent) for time in _journal_times(each / _JOURNAL, run.results["model"])]
    if times:
        return max(times)
    return datetime.datetime.fromtimestamp(int(run.path.stat().st_mtime), datetime.UTC)


def _journal_times(path: Path, model: str) -> list[datetime.datetime]:
    """Return the times at which a model was evaluated; lines that are cut short or something else are skipped."""
    times = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            entry = object_of(json.loads(line))
            if entry.get("event") == "evaluated" and entry.get("model") == model:
                times.append(datetime.datetime.fromisoformat(str(entry.get("time"))).astimezone(datetime.UTC))
        except ValueError:
            continue
    return times
