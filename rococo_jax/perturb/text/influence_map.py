"""An influence table as a memory map, which all processes and workers of a machine share.

    head       32 bytes     size and time of the table's file in nanoseconds, captions n, values
    keys       uint64 (n,)      the first 8 bytes of each caption's BLAKE2b, ascending
    ends       uint64 (n,)      where its values end
    values     float32          the influence of its words, NaN where it was not computed

It lies beside the table as `.NAME.map`, or in the cache folder where nothing can be written there, and is made again
when the table's file changes. About 16 bytes and 4 a word a caption; a worker holds none of it. Of captions that come
twice the last counts, as in `read_influence_table`. A caption that is not in the table is taken for another one with a
probability of n / 2^64.
"""

import hashlib
import os
import struct
from array import array
from pathlib import Path

import numpy as np
from jaxtyping import Float

from rococo_jax.perturb.text.influence_table import iterate_influence_table
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_json

_HEAD = struct.Struct("<4Q")


class InfluenceTable:
    """Caption -> influence of its words. Pickles as its path.

    Raises InputError as `read_influence_table`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.map = _place_of(self.path)
        state = _state(self.path)
        if not _is_of(self.map, state):
            _make_map(self.path, self.map, state)
        raw = np.memmap(self.map, np.uint8, "r")
        *_, captions, values = _HEAD.unpack(raw[: _HEAD.size].tobytes())
        parts = np.cumsum([_HEAD.size, 8 * captions, 8 * captions, 4 * values])
        self._keys, self._ends = (raw[parts[each] : parts[each + 1]].view(np.uint64) for each in (0, 1))
        self._values = raw[parts[2] : parts[3]].view(np.float32)

    def __reduce__(self):
        return InfluenceTable, (self.path,)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, caption: str) -> Float[np.ndarray, " words"]:
        """The influence of the words of a caption. Raises KeyError for one that is not in the table."""
        key = _key(caption)
        place = int(np.searchsorted(self._keys, key))
        if place == len(self._keys) or self._keys[place] != key:
            raise KeyError(caption)
        start = int(self._ends[place - 1]) if place else 0
        return np.array(self._values[start : int(self._ends[place])])


def _key(caption: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(caption.encode(), digest_size=8).digest(), "little"))


def _state(path: Path) -> tuple[int, int]:
    about = path.stat() if path.is_file() else None
    return (about.st_size, about.st_mtime_ns) if about else (0, 0)


def _is_of(path: Path, state: tuple[int, int]) -> bool:
    try:
        with path.open("rb") as file:
            *found, captions, values = _HEAD.unpack(file.read(_HEAD.size))
        return tuple(found) == state and path.stat().st_size == _HEAD.size + 16 * captions + 4 * values
    except (OSError, struct.error):
        return False


def _place_of(path: Path) -> Path:
    if os.access(path.absolute().parent, os.W_OK):
        return path.with_name(f".{path.name}.map")
    return cache_folder() / "influence" / f"{hash_json(str(path.absolute()))[:24]}.map"


def _make_map(path: Path, place: Path, state: tuple[int, int]) -> None:
    keys, counts, values = array("Q"), array("Q"), array("f")
    for caption, influence in iterate_influence_table(path):
        keys.append(int(_key(caption)))
        counts.append(len(influence))
        values.frombytes(influence.astype(np.float32).tobytes())
    keys, counts, values = np.array(keys, np.uint64), np.array(counts, np.int64), np.array(values, np.float32)
    ends = np.cumsum(counts)
    order = np.argsort(keys, kind="stable")
    last = np.append(keys[order][1:] != keys[order][:-1], True) if len(order) else np.zeros(0, bool)
    order = order[last]
    lengths = counts[order]
    # Where each kept value stands: the start of its caption's, and its place among them.
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = values[np.repeat(ends[order] - lengths, lengths) + within]
    with atomic_write(place) as temporary, temporary.open("wb") as file:
        file.write(_HEAD.pack(*state, len(order), len(kept)))
        for each in (keys[order], np.cumsum(lengths).astype(np.uint64), kept):
            each.tofile(file)
