"""Influence tables: JSON lines on disk, written so that an interrupted run resumes.

    {"image": name, "caption": text, "words": ["A", "dog"], "influence": [0.0012, 0.34]}

One line a caption, in file order; null for words whose influence was not computed. An unfinished table is a hidden file
beside the final one, with the fingerprint of everything that decides its content; an unfinished table of another model
or captions file is discarded.

Training reads a table through a memory map beside it (`.NAME.map`, or in the cache folder where nothing can be written
there), an Arrow file of

    key          uint64             the first 8 bytes of each caption's BLAKE2b, ascending
    influence    list of float32    of its words, NaN where it was not computed

All processes and workers of a machine share it, about 16 bytes and 4 a word a caption, and no worker holds it. It is
made again when the table's file changes. Of captions that come twice the last counts. A caption that is not among the
n of the table is taken for another one with a probability of n / 2^64.
"""

import contextlib
import hashlib
import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.file_state import local_stamp
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import find_candidates
from rococo_jax.perturb.text.words import split_words
from rococo_jax.processes import gather, run_on_all_processes
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import atomic_write, hash_json, read_json, write_json
from rococo_jax.texts import read_jsonl

_DECIMALS = 7
_LARGEST = float(np.finfo(np.float32).max)
_CAPTIONS_AT_ONCE = 512


def write_influence_table(
    encoder: Encoder,
    images: Sequence[CaptionedImage],
    path: str | os.PathLike,
    *,
    lexicon: Lexicon | None = None,
    captions_at_once: int = _CAPTIONS_AT_ONCE,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write the table of all captions. Returns how many lines an earlier run had left.

    All processes call this and share the captions, each on its own devices; process 0 writes. The bytes of the table do
    not depend on their number.

    Args:
        images: the captions; read several times, an image at a time.
        path: the file; it appears when it is complete.
        captions_at_once, on_progress: see `word_influence`.
        lexicon: compute only the words that are candidates for replacement under it; a third of the work.
    """
    number, count = jax.process_index(), jax.process_count()

    def rows(start: int = 0) -> Iterator[tuple[str, str]]:
        """Image and caption of every line from `start` on; read anew each time, so that no process holds them all."""
        return islice(((image.image, caption) for image in images for caption in image.captions), start, None)

    def mine() -> Iterator[str]:
        """This process's captions: every `count`-th chunk."""
        for place, (_, caption) in enumerate(rows(done)):
            if place // captions_at_once % count == number:
                yield caption

    content = hashlib.sha256()
    for row in rows():
        content.update(hash_json(row).encode())
    about = {"model": encoder.describe(), "rows": content.hexdigest(), "at_once": captions_at_once}
    about |= {} if lexicon is None else {"lexicon": lexicon.hash()}
    unfinished = _UnfinishedTable(Path(path), hash_json(about))
    resume = partial(unfinished.resume, rows(), captions_at_once)
    done = gather("influence, where it stands", lambda: resume() if number == 0 else 0)[0]
    if on_progress is not None and done:
        on_progress(done)
    wanted = None
    if lexicon is not None:
        wanted = ([each.index for each in find_candidates(split_words(text), lexicon)] for text in mine())
    start = partial(word_influence, encoder, mine(), wanted=wanted, captions_at_once=captions_at_once)
    influences, lines = run_on_all_processes("influence, its start", start), rows(done)
    with unfinished.lines.open("ab") if number == 0 else contextlib.nullcontext() as file:
        # Rounds of one chunk for each process. Chunks, and so results, do not depend on the number of processes.
        while any(turn := [list(islice(lines, captions_at_once)) for _ in range(count)]):
            own = islice(influences, len(turn[number]))
            of_processes = gather("influence", partial(list, own))
            for chunk, values in zip(turn, of_processes, strict=True):
                if file is not None:
                    file.writelines(_line(*row, influence) for row, influence in zip(chunk, values, strict=True))
                if on_progress is not None and chunk:
                    on_progress(len(chunk))
    if number == 0:
        unfinished.finish()
    return done


class _UnfinishedTable:
    """The hidden files beside a table that is not complete: its lines, and the fingerprint of what decides them."""

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint
        self.lines, self.head = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.partial.json")

    def resume(self, rows: Iterable[tuple[str, str]], at_once: int) -> int:
        """Number of lines, in whole chunks, left by an earlier run of the same table; the rest of them is removed.

        A damaged line is rest, as is what comes after it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ends = [0]
        if self.lines.is_file() and self._head_fingerprint() == self.fingerprint:
            with self.lines.open("rb") as file:
                for number, (line, (image, caption)) in enumerate(zip(file, rows, strict=False), 1):
                    try:
                        entry = json.loads(line)
                        whole = line.endswith(b"\n") and _checked_entry(self.lines, number, entry)[0] == caption
                    except (ValueError, RecursionError, InputError):
                        break
                    if not whole or entry.get("image") != image:
                        break
                    ends.append(ends[-1] + len(line))
        done = (len(ends) - 1) // at_once * at_once
        with self.lines.open("ab") as file:
            file.truncate(ends[done])
        write_json(self.head, {"fingerprint": self.fingerprint})
        return done

    def _head_fingerprint(self) -> str | None:
        try:
            return read_json(self.head, "a fingerprint").get("fingerprint")
        except (InputError, AttributeError):
            return None

    def finish(self) -> None:
        """Give the complete table its name."""
        with self.lines.open("ab") as file:
            os.fsync(file.fileno())
        self.lines.replace(self.path)
        self.head.unlink()


def read_influence_table(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Caption -> influence of its words, float32. Raises InputError where a line lacks a caption, its words or
    influence.
    """
    return dict(iterate_influence_table(path))


def iterate_influence_table(path: str | os.PathLike) -> Iterator[tuple[str, np.ndarray]]:
    """Yields caption and influence of its words, line by line; raises InputError as `read_influence_table`."""
    for number, entry in read_jsonl(path, "an influence table (rococo influence)"):
        caption, values = _checked_entry(path, number, entry)
        yield caption, np.array([math.nan if value is None else value for value in values], np.float32)


def _checked_entry(path: str | os.PathLike, number: int, entry: Any) -> tuple[str, list[float | int | None]]:
    """Caption and influences of a line. Raises InputError as `read_influence_table`."""
    if not isinstance(entry, dict) or not {"caption", "words", "influence"} <= entry.keys():
        raise InputError(path, f"line {number}", "other keys", "caption, words and influence")
    words = [word.text for word in split_words(str(entry["caption"]))]
    values = entry["influence"]
    are_numbers = isinstance(values, list) and all(value is None or _is_influence(value) for value in values)
    if entry["words"] != words or not are_numbers or len(values) != len(words):
        found = entry["words"] if are_numbers else f"the influence {values!r}"[:200]
        raise InputError(path, f"words of line {number}", found, f"{words}, and a number or null for each")
    return str(entry["caption"]), values


def _is_influence(value: Any) -> bool:
    """A number that float32 holds."""
    return type(value) in (int, float) and abs(value) <= _LARGEST


def influences_from_table(
    table: Mapping[str, np.ndarray], images: Sequence[CaptionedImage], source: object
) -> list[np.ndarray]:
    """The table's rows for every caption of `images`, in order. Raises InputError, which names `source`, for a missing
    one.
    """
    captions = [caption for image in images for caption in image.captions]
    for caption in captions:
        if caption not in table:
            raise InputError(source, "captions", f"no line for {caption!r}", "a line for every caption")
    return [table[caption] for caption in captions]


def _line(image: str, caption: str, influence: np.ndarray) -> bytes:
    words = [word.text for word in split_words(caption)]
    values = [None if np.isnan(value) else round(float(value), _DECIMALS) for value in influence]
    entry = {"image": image, "caption": caption, "words": words, "influence": values}
    return (json.dumps(entry, ensure_ascii=False) + "\n").encode()


class InfluenceTable:
    """Caption -> influence of its words, from the map beside the table; pickles as its path.

    Raises InputError as `read_influence_table`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        place, state = _map_of(self.path), _state(self.path)
        table = _open_map(place, state)
        if table is None:
            _make_map(self.path, place, state)
            table = _open_map(place, state)
        self._keys, lists = table["key"].to_numpy(), table["influence"]
        self._ends, self._values = lists.offsets.to_numpy(), lists.values.to_numpy()

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
        return self._values[self._ends[place] : self._ends[place + 1]].copy()


def _key(caption: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(caption.encode(), digest_size=8).digest(), "little"))


def _state(path: Path) -> dict[bytes, bytes]:
    """Size, times and place of a file, as the metadata of its map."""
    return {b"table": local_stamp(path).encode() if path.is_file() else b"none"}


def _map_of(path: Path) -> Path:
    if os.access(path.absolute().parent, os.W_OK):
        return path.with_name(f".{path.name}.map")
    return cache_folder() / "influence" / f"{hash_json(str(path.absolute()))[:24]}.map"


def _open_map(place: Path, state: Mapping[bytes, bytes]) -> Any:
    """The columns of a map; None where there is none, it is damaged, or of another state of the file."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.memory_map(str(place))).get_batch(0)
    except (OSError, pa.ArrowException):
        return None
    return table if table.schema.metadata == state else None


def _make_map(path: Path, place: Path, state: Mapping[bytes, bytes]) -> None:
    import pyarrow as pa

    keys, ends, values = array("Q"), array("q", [0]), array("f")
    for caption, influence in iterate_influence_table(path):
        keys.append(int(_key(caption)))
        values.frombytes(influence.astype(np.float32).tobytes())
        ends.append(len(values))
    keys = np.array(keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    order = order[np.append(keys[order][1:] != keys[order][:-1], True)] if len(order) else order
    lists = pa.LargeListArray.from_arrays(np.array(ends, np.int64), np.array(values, np.float32)).take(pa.array(order))
    table = pa.record_batch({"key": keys[order], "influence": lists}).replace_schema_metadata(state)
    with atomic_write(place) as temporary, pa.ipc.new_file(str(temporary), table.schema) as file:
        file.write_batch(table)
