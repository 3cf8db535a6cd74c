"""Influence tables: JSON lines on disk, written by runs that can resume after an interruption.

    {"image": name, "caption": text, "words": ["A", "dog"], "influence": [0.0012, 0.34]}

There is one line per caption, in file order, with null for words whose influence was not computed. An unfinished table
is a hidden file in the same folder, with the fingerprint of everything that decides its content; an unfinished table of
another model or captions file is discarded.

Training reads a table through a memory map in the same folder (`.NAME.map`; in the cache folder if that is not
writable), an Arrow file with the columns

    key          uint64             the first 8 bytes of each caption's BLAKE2b, ascending
    influence    list of float32    the influence of its words, NaN if it was not computed

All processes and workers of a machine share the map, which has about 16 bytes per caption and 4 per word. It is
remembered (`remember`): verified, and written again if the table has changed. The last line of a repeated caption
counts. A caption that is not in a table of n captions is mistaken for another one with a probability
of n / 2^64.
"""

import contextlib
import hashlib
import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.remember import Kind, map_content, remembered
from rococo_jax.data.remote import file_state
from rococo_jax.encoders import Encoder
from rococo_jax.encoders.embedding import cache_key
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import find_candidates
from rococo_jax.perturb.text.words import split_words
from rococo_jax.processes import gather, run_on_all_processes
from rococo_jax.storage import hash_json, read_json, write_json
from rococo_jax.texts import read_jsonl

_EXPECTED = "an influence table (rococo influence)"
_MAP = Kind("influence", ".map", 2, is_beside=True)
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
    """Write the table of all captions, and return the number of lines that an earlier run had written.

    All processes must call this. They share the captions, each on its own devices, and process 0 writes. The bytes of
    the table do not depend on the number of processes.

    Args:
        encoder: the model.
        images: the captions; they are iterated several times.
        path: the file; it gets this name when it is complete.
        lexicon: compute only the words that this lexicon can replace, a third of the work.
        captions_at_once, on_progress: see `word_influence`.
    """
    process, processes = jax.process_index(), jax.process_count()

    def rows(start: int = 0) -> Iterator[tuple[str, str]]:
        """Yield image and caption of every line from `start` on, without holding all of them."""
        return islice(((image.image, caption) for image in images for caption in image.captions), start, None)

    def captions_of_process() -> Iterator[str]:
        """Yield the captions of this process: every chunk whose number it has modulo the number of processes."""
        for row, (_, caption) in enumerate(rows(complete)):
            if row // captions_at_once % processes == process:
                yield caption

    row_hash = hashlib.sha256()
    for row in rows():
        row_hash.update(hash_json(row).encode())
    identity = cache_key("influence", encoder, encoder.describe())
    identity |= {"rows": row_hash.hexdigest(), "at_once": captions_at_once}
    identity |= {} if lexicon is None else {"lexicon": lexicon.hash()}
    unfinished = _UnfinishedTable(Path(path), hash_json(identity))
    resume = partial(unfinished.resume, rows(), captions_at_once)
    complete = gather("influence, complete lines", lambda: resume() if process == 0 else 0)[0]
    if on_progress is not None and complete:
        on_progress(complete)
    wanted = None
    if lexicon is not None:
        wanted = (
            [candidate.index for candidate in find_candidates(split_words(caption), lexicon)]
            for caption in captions_of_process()
        )
    start = partial(word_influence, encoder, captions_of_process(), wanted=wanted, captions_at_once=captions_at_once)
    influences, lines = run_on_all_processes("influence, start", start), rows(complete)
    with unfinished.lines.open("ab") if process == 0 else contextlib.nullcontext() as file:
        # Each round has one chunk for each process. Chunks, and so results, do not depend on the number of processes.
        while any(chunks := [list(islice(lines, captions_at_once)) for _ in range(processes)]):
            chunk_influences = islice(influences, len(chunks[process]))
            gathered = gather("influence", partial(list, chunk_influences))
            for chunk, values in zip(chunks, gathered, strict=True):
                if file is not None:
                    file.writelines(_line(*row, influence) for row, influence in zip(chunk, values, strict=True))
                if on_progress is not None and chunk:
                    on_progress(len(chunk))
    if process == 0:
        unfinished.finish()
    return complete


class _UnfinishedTable:
    """The hidden files of an incomplete table: its lines, and the fingerprint of everything that decides them."""

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint
        self.lines, self.head = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.partial.json")

    def resume(self, rows: Iterable[tuple[str, str]], at_once: int) -> int:
        """Return the number of lines, in complete chunks, of an earlier run of the same table, and remove the rest.

        A damaged line and everything after it are removed.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ends = [0]
        if self.lines.is_file() and self._head_fingerprint() == self.fingerprint:
            with self.lines.open("rb") as file:
                for number, (line, (image, caption)) in enumerate(zip(file, rows, strict=False), 1):
                    try:
                        entry = json.loads(line)
                        is_equal = line.endswith(b"\n") and _check_entry(self.lines, number, entry)[0] == caption
                    except (ValueError, RecursionError, InputError):
                        break
                    if not is_equal or entry.get("image") != image:
                        break
                    ends.append(ends[-1] + len(line))
        complete = (len(ends) - 1) // at_once * at_once
        with self.lines.open("ab") as file:
            file.truncate(ends[complete])
        write_json(self.head, {"fingerprint": self.fingerprint})
        return complete

    def _head_fingerprint(self) -> str | None:
        try:
            return read_json(self.head, "a fingerprint").get("fingerprint")
        except (InputError, AttributeError):
            return None

    def finish(self) -> None:
        """Rename the complete table."""
        with self.lines.open("ab") as file:
            os.fsync(file.fileno())
        self.lines.replace(self.path)
        self.head.unlink()


def read_influence_table(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the influence of the words of each caption, float32.

    Raises InputError for a line without caption, words or influence.
    """
    return dict(iterate_influence_table(path))


def iterate_influence_table(path: str | os.PathLike) -> Iterator[tuple[str, np.ndarray]]:
    """Yield caption and influence of its words, line by line. Raises InputError as `read_influence_table`."""
    for number, entry in read_jsonl(path, _EXPECTED):
        caption, values = _check_entry(path, number, entry)
        yield caption, np.array([math.nan if value is None else value for value in values], np.float32)


def _check_entry(path: str | os.PathLike, number: int, entry: Any) -> tuple[str, list[float | int | None]]:
    """Return caption and influences of a line. Raises InputError as `read_influence_table`."""
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
    """Return whether a value is a number in the range of float32."""
    return type(value) in (int, float) and abs(value) <= _LARGEST


def influences_from_table(
    table: Mapping[str, np.ndarray], images: Sequence[CaptionedImage], source: object
) -> list[np.ndarray]:
    """Return the table's rows for every caption of `images`, in order.

    Raises InputError with the name `source` for a caption without a line.
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
    """Look-up of the influence of a caption's words in the memory map of a table; pickled as the table's path.

    Raises InputError as `read_influence_table`, or if the table changes while it is read.
    """

    def __init__(self, path: str | os.PathLike):
        import pyarrow as pa

        self.path = Path(path)
        source = str(path)
        content = remembered(_MAP, source, "", partial(_write_map, source), lambda: [file_state(source, _EXPECTED)])
        table = pa.ipc.open_file(pa.py_buffer(map_content(content))).get_batch(0)
        self._keys, lists = table["key"].to_numpy(), table["influence"]
        self._ends, self._values = lists.offsets.to_numpy(), lists.values.to_numpy()

    def __reduce__(self):
        return InfluenceTable, (self.path,)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, caption: str) -> Float[np.ndarray, " words"]:
        """Return the influence of the words of a caption. Raises KeyError if it is not in the table."""
        key = _key(caption)
        row = int(np.searchsorted(self._keys, key))
        if row == len(self._keys) or self._keys[row] != key:
            raise KeyError(caption)
        return self._values[self._ends[row] : self._ends[row + 1]].copy()


def _key(caption: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(caption.encode(), digest_size=8).digest(), "little"))


def _write_map(path: str, file: BufferedIOBase, earlier: memoryview | None) -> None:
    """Write the map of a table. Raises InputError as `read_influence_table`."""
    import pyarrow as pa

    del earlier
    keys, ends, values = array("Q"), array("q", [0]), array("f")
    for caption, influence in iterate_influence_table(path):
        keys.append(int(_key(caption)))
        values.frombytes(influence.astype(np.float32).tobytes())
        ends.append(len(values))
    keys = np.array(keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    order = order[np.append(keys[order][1:] != keys[order][:-1], True)] if len(order) else order
    lists = pa.LargeListArray.from_arrays(np.array(ends, np.int64), np.array(values, np.float32)).take(pa.array(order))
    table = pa.record_batch({"key": keys[order], "influence": lists})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_batch(table)
