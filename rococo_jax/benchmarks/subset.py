"""Image and item lists that a benchmark is evaluated on, such as `rococo select` writes.

A list is applied where a benchmark's images or items are first known, before anything is built from them. Results are
therefore those of annotation files that contain the listed images or items only.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, KeysView, Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.errors import InputError, is_whole, object_of, unknown_name
from rococo_jax.storage import hash_json
from rococo_jax.texts import parse_json, read_text, split_lines

# Entry of a benchmark's data and conditions.
ONLY = "only"
_FORM = "one image or item per line, a JSON list or JSON lines of them, or a file of `rococo select`"


@dataclasses.dataclass(frozen=True)
class Subset:
    """Images or items to evaluate.

    Attributes:
        source: the file that lists them.
        keys: names of images or items, each once, in the order of the file.
    """

    source: str
    keys: KeysView[str]

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    def refuse_unknown(self, known: Collection[str], wanted: str) -> None:
        """Raise InputError if a key is unknown to the benchmark; `wanted` describes its keys."""
        unknown = [key for key in self.keys if key not in known]
        if unknown:
            found = f"{len(unknown):,} of {len(self.keys):,} that the benchmark does not have, the first {unknown[0]!r}"
            raise InputError(self.source, "entries", found, wanted)

    def describe(self, selected: int, of: int, unit: str) -> dict[str, Any]:
        """Return the entry of `Benchmark.data`: the file, a hash of the keys in sorted order, and the counts.

        `selected` of `of` images or items (the `unit`) of the benchmark are evaluated.
        """
        sha256 = hash_json(sorted(self.keys))
        return {ONLY: {"file": self.source, "sha256": sha256, "selected": selected, "of": of, "unit": unit}}


def phrase_of(data: Mapping[str, Any]) -> str:
    """Return a phrase for the list in the data of results; empty if there is none.

    >>> phrase_of({"only": {"file": "hard.json", "selected": 40, "of": 5000, "unit": "images"}})
    '40 of 5,000 images, listed in hard.json'
    """
    only = object_of(data.get(ONLY))
    selected, total = only.get("selected"), only.get("of")
    if not (is_whole(selected) and is_whole(total)):
        return ""
    return f"{selected:,} of {total:,} {only.get('unit')}, listed in {only.get('file')}"


def read_subset(path: str | os.PathLike) -> Subset:
    """Read a list: one key per line, a JSON list or JSON lines of keys, or a file of `rococo select`.

    In JSON, an entry is a name, or an object with an `image` or an `id`.

    Raises InputError: the file has another form, no key, or a key twice.
    """
    text = read_text(path, _FORM)
    keys = [line.strip() for line in split_lines(text)]
    keys = [key for key in keys if key]
    if len(keys) > 1 and all(key[0] + key[-1] in ('""', "{}") for key in keys):
        keys = _keys_of_json(path, [parse_json(key, path, _FORM, f"line {n}") for n, key in enumerate(keys, 1)])
    elif text.lstrip()[:1] in ("[", "{"):
        keys = _keys_of_json(path, parse_json(text, path, _FORM))
    if not keys:
        raise InputError(path, "entries", "none", f"at least one: {_FORM}")
    duplicates = [key for key, count in Counter(keys).items() if count > 1]
    if duplicates:
        raise InputError(path, "entries", f"{len(duplicates):,} repeated, the first {duplicates[0]!r}", "each once")
    return Subset(str(path), dict.fromkeys(keys).keys())


def _keys_of_json(path: str | os.PathLike, value: Any) -> list[str]:
    if isinstance(value, dict):
        entries = value.get("chosen") if value.get("format") == "rococo_jax.selection" else None
        if not isinstance(entries, list):
            raise InputError(path, "JSON", f"an object with {', '.join(map(repr, value)) or 'nothing'}"[:80], _FORM)
        value = entries
    value = [object_of(each).get("image", object_of(each).get("id", each)) for each in value]
    not_names = [each for each in value if not isinstance(each, str) or not each]
    if not_names:
        raise InputError(path, "entries", f"{not_names[0]!r}"[:80], "names of images or items, as strings")
    return value


def lists_by_benchmark(only: Sequence[str], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the file for each benchmark as a tuple, empty for none, from entries `FILE` or `NAME=FILE`.

    Raises InputError: a file without a name for several benchmarks, an unknown name, or two files for one benchmark.
    """
    lists: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    for entry in only:
        is_file = "=" not in entry or Path(entry).exists()
        name, _, file = ("", "", entry) if is_file else entry.partition("=")
        if not name and not Path(file).exists() and len(only) > len(names):
            problem = f"{len(only):,} entries for {len(names)}, such as {entry!r}, which is no file"
            raise InputError(
                "evaluate", "only", problem, "a file for each benchmark: write the names to it, one per line"
            )
        if not name and len(names) > 1:
            raise InputError("evaluate", "only", f"{entry!r} for {len(names)} benchmarks", "NAME=FILE, once for each")
        name = name or names[0]
        if name not in lists:
            raise unknown_name("evaluate", "only", name, names)
        if lists[name]:
            raise InputError("evaluate", "only", f"two files for {name}", "one")
        lists[name] = (file,)
    return lists
