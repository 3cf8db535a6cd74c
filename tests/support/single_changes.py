"""Single changes of a model's folder: each value of its JSON files, a letter of each text, a number of each archive."""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

# Other values of fields whose values are names that the library must know.
_OTHER = {
    "quick_gelu": "gelu", "gelu": "relu", "silu": "gelu", "mean": "max", "cls": "mean", "cosine": "dot",
    "right": "left", "Right": "Left", "longest_first": "only_first", "default": "full", "LongestFirst": "OnlyFirst",
    "torch.nn.modules.activation.Tanh": "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.activation.Sigmoid": "torch.nn.modules.linear.Identity", "query": "document",
    "lower": "whitespace",
}  # fmt: skip
Change = tuple[str, Callable[[Path], None]]


def changes_of(folder: Path) -> Iterator[Change]:
    """Yield the name of each change, and a function that makes it in a copy of the folder.

    Entries of a list are alike: only the first and the last are changed, unless `ROCOCO_THOROUGH` is set.
    """
    for path in sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".json":
            for place, value in _json_changes(json.loads((folder / path).read_text()), path.name == "tokenizer.json"):
                yield f"{path}: {place}", lambda copy, path=path, value=value: _write_json(copy / path, value)
        elif path.suffix == ".safetensors":
            name = min(load_file(folder / path))
            yield f"{path}: {name}", lambda copy, path=path, name=name: _nudge(copy / path, name)
        elif path.suffix in (".jinja", ".txt", ".model"):
            yield str(path), lambda copy, path=path: (copy / path).write_text((copy / path).read_text() + "x")


def one_of_each_field(changes: Iterable[Change], decisive: Iterable[str], depth: int = 1) -> list[Change]:
    """Return the first change of each field of a JSON file, `depth` levels deep, and of each other file.

    Of the changes with a decisive beginning, the first and the last are returned.
    """
    groups: dict[str, list[Change]] = {}
    for label, change in changes:
        file, _, place = label.partition(": ")
        field = "/".join([file, *(part for part in place.split("/")[:depth] if not part.isdecimal())])
        field = next((beginning for beginning in decisive if label.startswith(beginning)), field)
        groups.setdefault(field, []).append((label, change))
    lasts = [group[-1] for field, group in groups.items() if field in decisive and len(group) > 1]
    return [group[0] for group in groups.values()] + lasts


def unchanged_copies(folder: Path) -> Iterator[Change]:
    """Yield changes after which a model is the same."""
    yield "modification times", lambda copy: [os.utime(path, (1, 1)) for path in copy.rglob("*")]
    yield "order of keys", _reverse_keys
    yield "a further file", lambda copy: (copy / "NOTES.md").write_text("a note")


def copied(folder: Path, to: Path) -> Path:
    """Copy a model under another name, in place of an earlier copy."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def _json_changes(value: Any, is_tokenizer: bool) -> Iterator[tuple[str, Any]]:
    """Yield the value with each of its leaves changed; of a vocabulary or merges two neighbours change places."""
    for place, leaf in _leaves(value):
        if is_tokenizer and place[:2] in (("model", "vocab"), ("model", "merges")):
            continue
        if leaf is not None:
            yield "/".join(map(str, place)), _replaced(value, place, _other(leaf))
    if not is_tokenizer:
        return
    vocabulary, merges = value["model"]["vocab"], value["model"].get("merges", [])
    for one, other in list(itertools.pairwise(vocabulary))[::5]:
        swapped = {**vocabulary, one: vocabulary[other], other: vocabulary[one]}
        yield f"model/vocab/{one}", _replaced(value, ("model", "vocab"), swapped)
    for row in range(len(merges) - 1):
        swapped = [*merges[:row], merges[row + 1], merges[row], *merges[row + 2 :]]
        yield f"model/merges/{row}", _replaced(value, ("model", "merges"), swapped)
    yield "normalizer", _replaced(value, ("normalizer",), None if value["normalizer"] else {"type": "Lowercase"})
    yield "padding", {**value, "padding": {"strategy": {"Fixed": 7}, "direction": "Right", "pad_to_multiple_of": None,
                                           "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}}  # fmt: skip


def _leaves(value: Any, place: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
        if not os.environ.get("ROCOCO_THOROUGH"):
            inside = inside[:1] + inside[1:][-1:]
    else:
        yield place, value
        return
    for key, each in inside:
        yield from _leaves(each, (*place, key))


def _replaced(value: Any, place: tuple, leaf: Any) -> Any:
    if not place:
        return leaf
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _replaced(value[place[0]], place[1:], leaf)
    return copy


def _other(leaf: Any) -> Any:
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int):
        return leaf + 1
    return leaf * 1.5 + 1e-7 if isinstance(leaf, float) else _OTHER.get(leaf, leaf + "x")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _reverse_keys(folder: Path) -> None:
    def reverse(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(reverse, value))
        return {key: reverse(value[key]) for key in reversed(value)} if isinstance(value, dict) else value

    for path in folder.rglob("*.json"):
        _write_json(path, reverse(json.loads(path.read_text())))


def _nudge(path: Path, name: str) -> None:
    arrays = load_file(path)
    array = np.array(arrays[name])
    array.flat[-1] += np.array(0.25 if array.dtype.kind == "f" else 1, array.dtype)
    save_file({**arrays, name: array}, path, {"format": "pt"})
