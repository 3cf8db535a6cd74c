"""From the files a user names to sections of comparable results.

Results whose fingerprints differ in anything but the model are never put into one table: each such group becomes a
section, and the section says in what it differs from the first.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError
from rococo_jax.evaluation.results import read_results
from rococo_jax.report.scores import Run
from rococo_jax.storage import hash_json

RESULTS_FILE = "results.json"
# A digest of the other conditions inside the fingerprint: where it differs, so does what it digests.
_DIGEST = "comparable"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One field of the fingerprint that two sections do not share, as text."""

    field: str
    first: str
    here: str


@dataclasses.dataclass(frozen=True)
class Section:
    """Runs that may stand in one table, and how they differ from the page's first section (empty for the first)."""

    runs: tuple[Run, ...]
    differences: tuple[Difference, ...]


def find_results(sources: Iterable[Path]) -> list[Path]:
    """The results files under `sources`: a file stands for itself, a folder for each results.json in or below it.

    Raises:
        InputError: a source is not there, or is a folder without results.
    """
    found: dict[Path, Path] = {}
    for source in map(Path, sources):
        for path in _results_under(source):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _results_under(source: Path) -> list[Path]:
    if not source.is_dir():
        if not source.exists():
            raise InputError(source, "results", "nothing there", f"a {RESULTS_FILE} or a folder that contains one")
        return [source]
    below = [path for path in sorted(source.rglob(RESULTS_FILE)) if path.is_file()]
    # A folder whose name starts with a dot is being written by somebody and will be renamed or removed.
    whole = [path for path in below if not any(part.startswith(".") for part in path.relative_to(source).parts)]
    if not whole:
        raise InputError(source, "results", f"a folder without {RESULTS_FILE}", "results of `rococo evaluate`")
    return whole


def load_results(sources: Iterable[Path]) -> list[tuple[Path, dict[str, Any]]]:
    """Path and checked content of every results file under `sources`.

    Raises:
        InputError: a source holds no results, a file is cut short, or a part of it is not what it should be.
    """
    return [(path, _checked(path, read_results(path))) for path in find_results(sources)]


def _checked(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Beyond what the reader checks: shapes that the page indexes into, for metrics that it has never heard of."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InputError(path, "text", f"a lone surrogate, U+{ord(error.object[error.start]):04X}", "Unicode") from None
    for task, variants in content["intervals"].items():
        for variant, metrics in _object(path, f"intervals: {task}", variants).items():
            for name, interval in _object(path, f"intervals: {task}: {variant}", metrics).items():
                pair = isinstance(interval, list) and len(interval) == 2 and all(map(_is_number, interval))
                if interval is not None and not pair:
                    field = f"intervals: {task}: {variant}: {name}"
                    raise InputError(path, field, json.dumps(interval)[:80], "[low, high] or null")
    tasks = {
        task: {
            variant: {name: value for name, value in metrics.items() if value is None or _is_number(value)}
            for variant, metrics in variants.items()
        }
        for task, variants in content["tasks"].items()
    }
    return content | {"tasks": tasks}


def _object(path: Path, field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(path, field, f"a JSON {type(value).__name__}", "an object")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def group_by_fingerprint(results: Sequence[tuple[Path, dict[str, Any]]]) -> list[Section]:
    """Sections in the order in which their first result was named.

    Args:
        results: path and checked content of each results.json.
    """
    groups: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for path, content in results:
        groups.setdefault(hash_json(_without_model(content)), []).append((path, content))
    first = _flat(_without_model(results[0][1])) if results else {}
    return [
        Section(_labelled(members), _differences(first, _flat(_without_model(members[0][1]))))
        for members in groups.values()
    ]


def _without_model(content: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": content["protocol"]} | {
        name: value for name, value in content["fingerprint"].items() if name != "model"
    }


def _labelled(members: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Run, ...]:
    """Runs with unique labels: a name that occurs twice gets its folder, and a number where that is no help."""
    names = [content["model"] for _, content in members]
    runs: list[Run] = []
    for (path, content), name in zip(members, names, strict=True):
        label = name if names.count(name) == 1 else f"{name} ({path.resolve().parent.name})"
        taken = {run.label for run in runs}
        numbered = (f"{label} #{number}" for number in range(2, len(members) + 2))
        runs.append(Run(label if label not in taken else next(n for n in numbered if n not in taken), path, content))
    return tuple(runs)


def _differences(first: dict[str, str], here: dict[str, str]) -> tuple[Difference, ...]:
    fields = [field for field in dict.fromkeys([*first, *here]) if field != _DIGEST]
    pairs = [Difference(field, first.get(field, "not recorded"), here.get(field, "not recorded")) for field in fields]
    return tuple(pair for pair in pairs if pair.first != pair.here)


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """A tree of JSON as `{"versions.jax": "0.10.2"}`."""
    if isinstance(value, dict) and value:
        parts = [_flat(child, f"{name}.{key}" if name else str(key)) for key, child in value.items()]
        return {field: text for part in parts for field, text in part.items()}
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}


def flat_fingerprint(content: dict[str, Any]) -> dict[str, str]:
    """The whole fingerprint of a result, one line a field."""
    return _flat(content["fingerprint"])
