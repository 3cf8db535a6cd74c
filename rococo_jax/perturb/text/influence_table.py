"""Influence tables: JSON lines on disk, written so that an interrupted run resumes.

    {"image": name, "caption": text, "words": ["A", "dog"], "influence": [0.0012, 0.34]}

One line a caption, in file order; null for words whose influence was not computed. An unfinished table is a hidden file
beside the final one, with the fingerprint of everything that decides its content; an unfinished table of another model
or captions file is discarded.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.lexicon import Lexicon
from rococo_jax.perturb.text.replacement import find_candidates
from rococo_jax.perturb.text.words import split_words
from rococo_jax.processes import gather, run_on_all_processes
from rococo_jax.storage import hash_json, read_json, write_json

_DECIMALS = 7
_LARGEST = float(np.finfo(np.float32).max)
_CAPTIONS_AT_ONCE = 512


def write_influence_table(
    encoder: Encoder,
    images: Sequence[CaptionedImage],
    path: str | os.PathLike,
    *,
    method: str = "remove",
    lexicon: Lexicon | None = None,
    captions_at_once: int = _CAPTIONS_AT_ONCE,
    on_progress: Callable[[int], None] | None = None,
    together: bool = False,
) -> int:
    """Write the table of all captions. Returns how many lines an earlier run had left.

    Args:
        encoder: the model.
        images: the captions; read several times, an image at a time.
        path: the file; it appears when it is complete.
        method: see `word_influence`.
        lexicon: compute only the words that are candidates for replacement under it; a third of the work.
        captions_at_once: how many captions are computed together.
        on_progress: called with the number of captions done.
        together: all processes call this and share the captions, each on its own devices; process 0 writes. The bytes
            of the table are the same.
    """
    path = Path(path)
    partial, head = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.partial.json")

    def rows(start: int = 0) -> Iterator[tuple[str, str]]:
        """Image and caption of every line from `start` on; read anew each time, so that no process holds them all."""
        return islice(((image.image, caption) for image in images for caption in image.captions), start, None)

    total, content = 0, hashlib.sha256()
    for row in rows():
        content.update(hash_json(row).encode())
        total += 1
    about = {"model": encoder.describe(), "method": method, "rows": content.hexdigest(), "at_once": captions_at_once}
    fingerprint = hash_json({**about, **({} if lexicon is None else {"lexicon": lexicon.hash()})})
    number, count = (jax.process_index(), jax.process_count()) if together else (0, 1)
    start_all, collect = (
        (run_on_all_processes, gather) if together else (lambda _, make: make(), lambda _, make: [make()])
    )

    def begin() -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        done = _lines_left(partial, head, fingerprint, rows(), captions_at_once)
        write_json(head, {"fingerprint": fingerprint})
        return done

    done = collect("influence, where it stands", lambda: begin() if number == 0 else 0)[0]
    if on_progress is not None and done:
        on_progress(done)

    def mine() -> Iterator[str]:
        """This process's captions: every `count`-th chunk."""
        for place, (_, caption) in enumerate(rows(done)):
            if place // captions_at_once % count == number:
                yield caption

    wanted = None
    if lexicon is not None:
        wanted = ([each.index for each in find_candidates(split_words(text), lexicon)] for text in mine())
    at_once = {"captions_at_once": captions_at_once}
    influences = start_all(
        "influence, its start", lambda: word_influence(encoder, mine(), method=method, wanted=wanted, **at_once)
    )
    with partial.open("ab") if number == 0 else contextlib.nullcontext() as file:
        # Rounds of one chunk for each process. Chunks, and so results, do not depend on the number of processes.
        lines = rows(done)
        for start in range(done, total, count * captions_at_once):
            ends = [min(start + (each + 1) * captions_at_once, total) for each in range(count)]
            sizes = [max(end - start - each * captions_at_once, 0) for each, end in enumerate(ends)]
            turn, size = [list(islice(lines, each)) for each in sizes], sizes[number]
            made = collect("influence", lambda size=size: list(islice(influences, size)))
            for chunk, values in zip(turn, made, strict=True):
                if file is not None:
                    file.writelines(_line(*row, influence) for row, influence in zip(chunk, values, strict=True))
                if on_progress is not None and chunk:
                    on_progress(len(chunk))
        if file is not None:
            file.flush()
            os.fsync(file.fileno())
    if number == 0:
        partial.replace(path)
        head.unlink()
    return done


def read_influence_table(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Caption -> influence of its words, float32. Raises InputError where a line lacks a caption, its words or
    influence.
    """
    return dict(iterate_influence_table(path))


def iterate_influence_table(path: str | os.PathLike) -> Iterator[tuple[str, np.ndarray]]:
    """Yields caption and influence of its words, line by line; raises InputError as `read_influence_table`."""
    for number, entry in enumerate(_read_lines(Path(path)), 1):
        if not isinstance(entry, dict) or not {"caption", "words", "influence"} <= entry.keys():
            raise InputError(path, f"line {number}", "other keys", "caption, words and influence")
        words = [word.text for word in split_words(str(entry["caption"]))]
        values = entry["influence"]
        are_numbers = isinstance(values, list) and all(value is None or _is_influence(value) for value in values)
        if entry["words"] != words or not are_numbers or len(values) != len(words):
            found = entry["words"] if are_numbers else f"the influence {values!r}"[:200]
            raise InputError(path, f"words of line {number}", found, f"{words}, and a number or null for each")
        yield str(entry["caption"]), np.array([math.nan if value is None else value for value in values], np.float32)


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


def _read_lines(path: Path) -> Iterator[object]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise InputError(path, f"line {number}", error.msg, "JSON, one caption a line") from None
    except FileNotFoundError:
        raise InputError(path, "file", "nothing there", "an influence table (rococo influence)") from None
    except UnicodeDecodeError as error:
        raise InputError(path, "encoding", f"bytes that are not UTF-8 at offset {error.start}", "JSON lines") from None


def _lines_left(partial: Path, head: Path, fingerprint: str, rows: Iterable[tuple[str, str]], at_once: int) -> int:
    """Number of lines, in whole chunks, left by an earlier run of the same table; the rest of the file is removed."""
    if not partial.is_file() or not head.is_file() or _fingerprint(head) != fingerprint:
        partial.unlink(missing_ok=True)
        return 0
    ends = [0]
    with partial.open("rb") as file:
        for line, (_, caption) in zip(file, rows, strict=False):
            if not line.endswith(b"\n") or json.loads(line)["caption"] != caption:
                break
            ends.append(ends[-1] + len(line))
    done = (len(ends) - 1) // at_once * at_once
    os.truncate(partial, ends[done])
    return done


def _fingerprint(head: Path) -> str | None:
    try:
        return read_json(head, "a fingerprint").get("fingerprint")
    except (InputError, AttributeError):
        return None
